"""Tables: one row per bound, the tightest marked."""

from __future__ import annotations

from rich.console import Console

from softhull import BOUNDS
from softhull.report.tables import BEST, point_table
from softhull.study.point import bounds_at_point


def test_every_bound_is_a_row_and_the_tightest_stands_out() -> None:
    study = bounds_at_point([-1.0, 0.0, 2.0], [0.0, 1.0, 3.0])
    table = point_table(study)
    columns = {str(column.header): list(column.cells) for column in table.columns}
    assert columns["bound"] == list(BOUNDS)
    marked = [name for name, cell in zip(columns["bound"], columns["lower"]) if cell.style == BEST]  # type: ignore[union-attr]
    assert marked == ["hull", "best"]


def test_equations_of_both_sides_share_what_they_have_in_common() -> None:
    study = bounds_at_point([-1.0, 0.0], [0.0, 1.0])
    console = Console(width=200)
    with console.capture() as captured:
        console.print(point_table(study))
    assert "Wei et al. 2023, eq. ER_LB, ER_UB" in captured.get()
