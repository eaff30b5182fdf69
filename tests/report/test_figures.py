"""Figures: what is on them comes from the table of bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from softhull import BOUNDS, InvalidInput
from softhull.branch.tree import Grown, Moment
from softhull.report.figures import COLOURS, colour, drawn_by_default, names_in_table, save, sigmoid_figure
from softhull.report.tree_figure import tree_figure

pytest.importorskip("matplotlib")


def lines(figure: object, axes: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for line in figure.axes[axes].get_lines():  # type: ignore[attr-defined]
        yield line.get_label(), np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_figure_1_shows_the_papers_bounds_and_the_hull() -> None:
    assert drawn_by_default() == ("lin", "er", "lse", "hull")
    labels = [label for label, _, _ in lines(sigmoid_figure(), 0) if not label.startswith("_")]
    assert labels == ["lin", "ER", "LSE", "hull", "softmax"]


def test_a_new_row_of_the_table_is_drawn_by_itself() -> None:
    table = {**BOUNDS, "new": BOUNDS["lse"]}
    assert drawn_by_default(table) == (*drawn_by_default(), "new")


def test_curves_enclose_softmax_and_the_paper_reads_them_right() -> None:
    """ER is about twice as far from softmax as LSE, on both sides; lin touches ER from below."""
    figure = sigmoid_figure((-2.0, 2.0), ("lin", "er", "lse", "hull"))
    # The last line is the axis itself.
    gaps = [values for _, _, values in lines(figure, 1)][:-1]
    below, above = gaps[0::2], gaps[1::2]
    assert all(np.all(gap <= 1e-15) for gap in below)
    assert all(np.all(gap >= -1e-15) for gap in above)
    lin, er, lse, hull = (float(np.mean(-gap)) for gap in below)
    assert lin > er > lse > hull
    assert 1.6 < er / lse < 2.4
    assert 1.6 < np.mean(above[1]) / np.mean(above[2]) < 2.4
    assert np.min(below[1] - below[0]) == pytest.approx(0, abs=1e-4)
    assert np.mean(above[3]) < 0.3 * np.mean(above[2])


def test_every_bound_has_its_own_colour() -> None:
    assert len({colour(name) for name in BOUNDS}) == len(BOUNDS)
    assert set(COLOURS) <= set(BOUNDS)


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    for ending in ("png", "svg", "pdf"):
        first, second = (save(sigmoid_figure(), tmp_path / f"{name}.{ending}") for name in "ab")
        assert first.read_bytes() == second.read_bytes()


def test_names_are_checked() -> None:
    assert names_in_table(["lse2", "hull"], 2) == ("lse2", "hull")
    with pytest.raises(InvalidInput, match="not defined for 3"):
        names_in_table(["lse2"], 3)
    with pytest.raises(InvalidInput, match="interval"):
        sigmoid_figure((0.0, np.inf))


def test_a_tree_shows_every_cell_once() -> None:
    """Two problems: one that is cut twice, one that is not; a cell is proved, open or cut, and the bound rises."""
    trees = (((-1.0, "x[0] <= 0.5"), (0.2, None), (-0.5, "n3[1] <= 0.0"), (0.1, None), (-0.1, None)), ((0.3, None),))
    grown = Grown(trees, (Moment(0.1, -1.0, 1), Moment(0.2, -0.5, 1), Moment(0.3, -0.1, 1)))
    tree, bound = tree_figure(grown, 0.4, "title").axes
    assert [text.get_text() for text in tree.get_legend().get_texts()] == ["2 cut", "3 proved", "1 open"]
    assert {text.get_text() for text in tree.texts} == {"x[0] <= 0.5", "n3[1] <= 0.0", "0.2", "0.1", "-0.1", "0.3"}
    assert bound.get_lines()[0].get_ydata().tolist() == [-1.0, -0.5, -0.1]
