"""Proofs of regions that were cut into cells: accepted where the cells cover everything, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

from softhull.branch.product_leaves import ProductLeaves
from softhull.certificates import cuts, tree
from softhull.certificates.write import NoProof, class_certificate
from softhull.checker.certificate import Certificate, CertificateError, Refused, write_certificate
from softhull.checker.check import check_certificate
from softhull.checker.network import Networks, View
from softhull.checker.positions import Entries, Places
from softhull.checker.replay import Knowledge, Region
from softhull.checker.session import exactly
from softhull.checker.tree import LEAF, Cell, cells_of, halves
from softhull.errors import SofthullError
from softhull.formats.onnx import load_onnx
from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.propagate.methods import Branch, Linear
from softhull.regions import Perturbation
from softhull.verify import branching
from softhull.verify.result import Record, Verdict
from softhull.verify.robustness import verify_robustness

from .evaluate import random_attention, save, values


def random_tree(rng: np.random.Generator, region: Region, depth: int) -> list[tuple[int, float]]:
    """Cuts of a region, every node before its children."""
    if depth == 0 or rng.random() < 0.2:
        return [(LEAF, 0.0)]
    entry = int(rng.integers(len(region.lower)))
    value = float(rng.uniform(region.lower[entry], region.upper[entry]))
    below, above = region.upper.copy(), region.lower.copy()
    below[entry] = above[entry] = value
    parts = replace(region, upper=below), replace(region, lower=above)
    return [(entry, value), *(cut for part in parts for cut in random_tree(rng, part, depth - 1))]


def as_arrays(cuts: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([e for e, _ in cuts], dtype=np.int64), np.array([v for _, v in cuts])


def boxes(region: Region, entries: np.ndarray, where: np.ndarray) -> list[Cell]:
    """Cells by cuts of an input."""
    networks: Any = SimpleNamespace(masked=lambda view: np.zeros(view.size, dtype=bool))
    given = View(0, Entries(np.arange(len(region.lower)), len(region.lower)))
    return cells_of(networks, region, [given] * len(entries), entries, where)


@pytest.mark.parametrize("seed", range(30))
def test_cells_cover_their_region_and_a_tree_with_a_gap_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    region = Region(-rng.uniform(0, 1, 3), rng.uniform(0, 1, 3))
    cuts = random_tree(rng, region, 5)
    entries, where = as_arrays(cuts)
    cells = boxes(region, entries, where)
    assert len(cells) == (entries == LEAF).sum()
    for point in rng.uniform(region.lower, region.upper, (200, 3)):
        assert any(((cell.region.lower <= point) & (point <= cell.region.upper)).all() for cell in cells)
    for place in range(len(cuts)):
        with pytest.raises(Refused):
            boxes(region, np.delete(entries, place), np.delete(where, place))
    with pytest.raises(Refused):
        boxes(region, np.append(entries, LEAF), np.append(where, 0.0))
    for place in np.flatnonzero(entries != LEAF).tolist():
        for outside in (2.0, -2.0, np.nan, np.inf):
            moved = where.copy()
            moved[place] = outside
            with pytest.raises(Refused):
                boxes(region, entries, moved)


@pytest.mark.parametrize("seed", range(3))
def test_cuts_are_of_what_stands_at_a_place_of_their_tensor(seed: int, tmp_path: Path) -> None:
    """Cells by cuts of any tensor, also of one that moves entries, hold the inputs whose numbers are on their side."""
    rng = np.random.default_rng(seed)
    networks = Networks([random_attention(tmp_path / "m.onnx", rng)])
    at = [values(networks, x) for x in rng.uniform(-1, 1, (20, 6))]
    for name, view in networks.tensors.items():
        both = [(int(i), int(j)) for i, j in rng.integers(0, view.size, (4, 2))]
        for places in [*((i,) for i in range(view.size) if view.node), *both]:
            held = [view.index.of(found[view.node]).ravel()[list(places)] for found in at]
            numbers = [float(some[0] - some[1:].sum()) for some in held]
            where = float(np.median(numbers))
            below, above = halves(Cell(Region(-np.ones(6), np.ones(6))), view, places, where)
            for number, found in zip(numbers, at):
                for (cut,), inside in ((below.cuts, number <= where), (above.cuts, number >= where)):
                    value = float((cut.row() * cut.view.index.of(found[cut.view.node])).sum())
                    assert (cut.sign * (value - cut.value) <= 0) == inside, name


@exactly
def test_what_a_cell_learns_stays_in_it(tmp_path: Path) -> None:
    networks = Networks([random_attention(tmp_path / "m.onnx", np.random.default_rng(0))])
    view, both = networks.tensors["0:h"], Places([0, 1], 12)
    known = Knowledge(networks, Region(-np.ones(6), np.ones(6)))
    known.learn_entries(view, both, np.full(2, -9.0), np.full(2, 9.0))
    known.learn_differences(view, Places([(0, 1)], 12), np.full(1, -9.0), np.full(1, 9.0))
    before = [end.copy() for end in known.box(view)], known.difference(view, 0, 1)
    low, high = (float(end.ravel()[0]) for end in before[0])
    below, _ = halves(Cell(known.region), view, [0], low + (high - low) / 4)
    cell = known.within(below.region, below.cuts)
    assert cell.box(view)[1].ravel()[0] == low + (high - low) / 4
    cell.learn_entries(view, both, np.full(2, 5.0), np.full(2, 6.0))
    cell.learn_differences(view, Places([(0, 1)], 12), np.full(1, 5.0), np.full(1, 6.0))
    known.learn_entries(view, Places([2], 12), np.full(1, -9.0), np.full(1, 9.0))  # ranges are found anew
    after = known.box(view), known.difference(view, 0, 1)
    assert all(np.array_equal(was, now) for was, now in zip(before[0], after[0]))
    assert before[1] == after[1]


@exactly
def test_a_difference_that_is_cut_is_known_on_its_own_side_alone(tmp_path: Path) -> None:
    networks = Networks([random_attention(tmp_path / "m.onnx", np.random.default_rng(0))])
    view, known = networks.tensors["0:h"], Knowledge(networks, Region(-np.ones(6), np.ones(6)))
    below, above = (known.within(cell.region, cell.cuts) for cell in halves(Cell(known.region), view, [2, 5], 0.25))
    assert (below.difference(view, 5, 2), below.difference(view, 2, 5)) == (-0.25, -np.inf)
    assert (above.difference(view, 5, 2), above.difference(view, 2, 5)) == (-np.inf, 0.25)
    assert known.difference(view, 2, 5) == -np.inf


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, int, Perturbation, Certificate]:
    """A small attention network, an input, and the first radius of some for which the whole region has no proof."""
    rng = np.random.default_rng(1)
    model = random_attention(tmp_path_factory.mktemp("branched") / "m.onnx", rng)
    x = rng.uniform(-0.5, 0.5, 6)
    label = int(load_onnx(model).replay(x[None])[0].argmax())
    asked = Perturbation(0.2)
    while True:
        try:
            class_certificate(model, x, label, asked)
        except NoProof:
            run = Record(0, Verdict.CERTIFIED, cuts=((LEAF, 0.0),))
            return model, x, label, asked, class_certificate(model, x, label, asked, run=run)
        asked = Perturbation(asked.eps * 1.1)


@pytest.fixture(scope="module")
def cut_inside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, int, Perturbation, Certificate]:
    """A network of rectifiers that a run proves by cuts of what goes into them."""
    rng = np.random.default_rng(6)
    model = rectifiers(tmp_path_factory.mktemp("inside") / "m.onnx", rng)
    network, x, asked = load_onnx(model), rng.uniform(-0.5, 0.5, 6), Perturbation(0.4)
    label = int(network.replay(x[None])[0].argmax())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branching, "BOXES", 0)  # as with many inputs
        run = verify_robustness(network, x[None], [label], asked, method=Branch(seconds=60))[0]
    assert "cuts" in (run.proved_by or {}).values()
    return model, x, label, asked, class_certificate(model, x, label, asked, run=run, network=network)


@pytest.fixture(scope="module")
def cut_logits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, int, Perturbation, Certificate]:
    """A small attention network, proved by second order in cells of differences of its scores, and of nothing else."""
    rng = np.random.default_rng(1)
    model = random_attention(tmp_path_factory.mktemp("logits") / "m.onnx", rng)
    network, x, asked = load_onnx(model), rng.uniform(-0.5, 0.5, 6), Perturbation(0.67)
    label = int(network.replay(x[None])[0].argmax())
    run = Record(0, Verdict.CERTIFIED, proved_by={min({0, 1} - {label}): "cuts of logits"})
    widest, by_quadratics = ProductLeaves._widest, cuts._by_quadratics

    def below_the_root(followed: Any, view: Any, label: int, rivals: Any, part: Any, warm: Any) -> float:
        """The whole could be proved, by little: halves that are taken for one another cannot."""
        return by_quadratics(followed, view, label, rivals, part, warm) if part.known.cuts else -math.inf

    def differences(leaves: ProductLeaves, spans: Any, *rest: Any) -> Any:
        return widest(leaves, {place: span for place, span in spans.items() if place[2] >= 0}, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProductLeaves, "_widest", differences)
        patch.setattr(cuts, "_by_quadratics", below_the_root)
        return model, x, label, asked, class_certificate(model, x, label, asked, run=run, network=network)


def rectifiers(path: Path, rng: np.random.Generator) -> Path:
    """Three layers of twelve rectifiers and three logits."""
    sizes, at = (6, 12, 12, 12, 3), "x"
    constants: dict[str, np.ndarray] = {}
    nodes = []
    for k, (before, behind) in enumerate(pairwise(sizes)):
        weights = rng.standard_normal((before, behind)) / np.sqrt(before)
        constants |= {f"w{k}": weights.astype(np.float32), f"b{k}": rng.standard_normal(behind).astype(np.float32)}
        nodes.append(helper.make_node("Gemm", [at, f"w{k}", f"b{k}"], [f"h{k}" if behind > 3 else "y"]))
        nodes += [helper.make_node("Relu", [f"h{k}"], [f"r{k}"])] if behind > 3 else []
        at = f"r{k}"
    return save(path, nodes, constants, [1, 6])


def _negative(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    for step in [step for cell in tree["cells"] for step in cell if "cuts" in step]:
        arrays[step["cuts"]] = -1 - arrays[step["cuts"]]  # also where a cell needs no multiplier


def _other_entry(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    entries = arrays[tree["entries"]].copy()
    entries[entries >= 0] = (entries[entries >= 0] + 1) % 12
    arrays[tree["entries"]] = entries


def _other_tensor(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    tree["tensors"] = [name and ("0:h2" if name == "0:h1" else "0:h1") for name in tree["tensors"]]


def _of_another_network(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    tree["tensors"] = [name and name.replace("0:", "1:") for name in tree["tensors"]]


def _sides_swapped(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    tree["cells"].reverse()


def _cuts_of_no_cell(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Multipliers before anything is cut."""
    before = next(step for step in steps if "rules" in step)
    before["cuts"] = tree["cells"][0][0]["cuts"]


def _fewer_multipliers(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    for step in [step for cell in tree["cells"] for step in cell]:
        arrays[step["cuts"]] = np.concatenate([arrays[step["cuts"]]] * 2, 1)


def _other_difference(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    arrays[tree["minus"]], arrays[tree["entries"]] = arrays[tree["entries"]], arrays[tree["minus"]]


def _one_entry(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    del tree["minus"]


def _minus_nothing(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    minus = arrays[tree["minus"]].copy()
    minus[minus >= 0] += 1000
    arrays[tree["minus"]] = minus


def _planes_of_another_cell(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The first cell derives planes, the others only name their step."""
    for cell in tree["cells"][1:]:
        cell[:] = [deepcopy(cell[0]) if step["claim"] == "planes" else step for step in cell]


def _fits_of_another_cell(steps: list[Any], tree: dict[str, Any], arrays: dict[str, Any]) -> None:
    first, *others = [cell[-1] for cell in tree["cells"]]
    for step in others:
        step["rules"] = first["rules"]


REASONS = {
    _negative: "cuts holds numbers outside of their range",
    _planes_of_another_cell: "planes that were not derived",
}
INSIDE = [
    _negative,
    _other_entry,
    _other_tensor,
    _of_another_network,
    _sides_swapped,
    _cuts_of_no_cell,
    _fewer_multipliers,
]


@pytest.mark.parametrize("forge", INSIDE)
def test_forged_cuts_inside_are_rejected(cut_inside: Any, forge: Callable[..., None], tmp_path: Path) -> None:
    model, *_, certificate = cut_inside
    header, arrays = deepcopy(certificate.header), dict(certificate.arrays)
    forge(header["steps"], next(step["tree"] for step in header["steps"] if "tree" in step), arrays)
    write_certificate(tmp_path / "c.npz", Certificate(header, arrays))
    checked = check_certificate(tmp_path / "c.npz", [model])
    assert not checked.accepted
    if forge in REASONS:  # whatever would follow from them
        assert REASONS[forge] in checked.reason


@pytest.mark.parametrize(
    "forge",
    [
        _negative,
        _other_difference,
        _one_entry,
        _minus_nothing,
        _planes_of_another_cell,
        _fits_of_another_cell,
        _sides_swapped,
    ],
)
def test_forged_cuts_of_differences_are_rejected(cut_logits: Any, forge: Callable[..., None], tmp_path: Path) -> None:
    tree = _tree(cut_logits[-1].header)
    assert len(tree["cells"]) > 1
    assert "minus" in tree
    test_forged_cuts_inside_are_rejected(cut_logits, forge, tmp_path)


def test_a_tree_that_is_too_large_has_no_certificate(cut_inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, label, asked, _ = cut_inside
    monkeypatch.setattr(tree, "MOST_CELLS", 1)
    run = Record(0, Verdict.CERTIFIED, proved_by={k: "cuts" for k in range(3) if k != label})
    with pytest.raises(SofthullError, match="no certificate of more than 1 cells"):
        class_certificate(model, x, label, asked, run=run)


def test_the_cuts_of_a_search_cover_its_region() -> None:
    rng, eps = torch.Generator().manual_seed(10), 0.2
    builder = GraphBuilder((1, 2))
    first, second = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((2, 8), (8, 2)))
    graph = builder.finish(builder.linear(builder.elementwise(Relu(), builder.linear(-1, first)), second))
    x = np.array([[0.3, -0.2]])
    label = int(graph(torch.from_numpy(x)[None]).argmax())
    found = verify_robustness(graph, x, [label], Perturbation(eps), method=Branch(Linear(optimize=0), nodes=64))[0]
    assert found.verdict is Verdict.CERTIFIED
    entries, where = as_arrays(list(found.cuts))
    cells = boxes(Region(x[0] - eps, x[0] + eps), entries, where)
    assert len(cells) > 1


@pytest.mark.parametrize("where", ["branched", "cut_inside", "cut_logits"])
def test_what_was_cut_is_checked(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    model, x, label, asked, certificate = request.getfixturevalue(where)
    if where != "cut_logits":  # there, rows that are fitted with their values prove the whole
        with pytest.raises(NoProof):
            class_certificate(model, x, label, asked)
    assert any("tree" in step for step in certificate.header["steps"])
    write_certificate(tmp_path / "c.npz", certificate)
    checked = check_certificate(tmp_path / "c.npz", [model], eps=asked.eps, norm="inf", label=label)
    assert checked.accepted, checked.reason
    networks = Networks([model])
    view = networks.logits[0]
    rng = np.random.default_rng(0)
    for _ in range(200):
        at = x + asked.eps * rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], 6)
        assert view.index.of(values(networks, at)[view.node]).ravel().argmax() == label


def _grow(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["region"]["eps"] *= 1.5


def _tree(header: dict[str, Any]) -> dict[str, Any]:
    (found,) = (step["tree"] for step in header["steps"] if "tree" in step)
    return found


def _leave_out(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The first cell stands for the whole region."""
    tree = _tree(header)
    arrays[tree["entries"]], arrays[tree["values"]] = np.array([LEAF]), np.zeros(1)
    tree["cells"] = tree["cells"][:1]
    tree.pop("tensors", None)


def _repeat(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The proof of one cell is given for its neighbours, too."""
    _tree(header)["cells"] = [_tree(header)["cells"][0]] * len(_tree(header)["cells"])


def _shift(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """A cut is moved: one of its two cells is larger than the one that was proved."""
    where = arrays[_tree(header)["values"]].copy()
    where[0] += 0.4 * header["region"]["eps"]
    arrays[_tree(header)["values"]] = where


def _fewer_cells(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    _tree(header)["cells"].pop()


def _tree_in_place_of_steps(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["tree"] = _tree(header)


def _no_steps(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    _tree(header)["cells"] = [[] for _ in _tree(header)["cells"]]


def _nested(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """A proof by cells inside of a cell."""
    _tree(header)["cells"][0] = deepcopy(header["steps"])


def _outside(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """What a cell proves is said of the whole region."""
    header["steps"][-1:] = deepcopy(_tree(header)["cells"][-1])


FORGERIES = [
    _grow,
    _leave_out,
    _repeat,
    _shift,
    _fewer_cells,
    _tree_in_place_of_steps,
    _no_steps,
    _nested,
    _outside,
]


@pytest.mark.parametrize("where", ["branched", "cut_inside"])
@pytest.mark.parametrize("forge", FORGERIES)
def test_forged_trees_are_rejected(
    where: str, forge: Callable[..., None], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model, *_, certificate = request.getfixturevalue(where)
    header, arrays = deepcopy(certificate.header), dict(certificate.arrays)
    forge(header, arrays)
    write_certificate(tmp_path / "c.npz", Certificate(header, arrays))
    checked = check_certificate(tmp_path / "c.npz", [model])
    assert not checked.accepted
    assert "\n" not in checked.reason


@pytest.mark.parametrize("given", [None, [], {"entries": "a", "values": "b", "cells": []}, {"cells": [[]]}])
def test_trees_that_are_none(branched: Any, given: Any, tmp_path: Path) -> None:
    model, *_, certificate = branched
    header = deepcopy(certificate.header)
    header["steps"][-1]["tree"] = given
    write_certificate(tmp_path / "c.npz", Certificate(header, certificate.arrays))
    with pytest.raises(CertificateError, match=r"malformed|no array"):
        check_certificate(tmp_path / "c.npz", [model])
