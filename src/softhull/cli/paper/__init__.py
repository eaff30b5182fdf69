"""``softhull paper``: the tables and figures of the paper, computed again.

A table is a file of this package that defines ``command``, and its name in ``TABLES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..app import LazyGroup

TABLES = ("synth", "attention", "sst", "uncertainty")

_group: Callable[..., Any] = click.group(
    "paper",
    cls=LazyGroup,
    package=__package__,
    names=TABLES,
    short_help="The tables and figures of the paper, computed again.",
)


@_group
def command() -> None:
    """The tables and figures of Wei et al. 2023, with the new bounds beside.

    \b
    Examples
      softhull paper synth --out out/synth --regions 20 --points 200
      softhull paper uncertainty --artifact artifact --dataset mnist --images 20
    """
