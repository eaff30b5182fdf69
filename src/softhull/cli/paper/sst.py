"""``softhull paper sst``: certified sentences of the attention network on SST-2."""

from __future__ import annotations

from typing import Any

import click

from .attention import shared_options, show_table


@click.command("sst", short_help="Section 7.2: certified sentences of an attention network on SST-2.")
@click.option("--networks", default="sst", show_default=True, help="sst, or paths of ONNX files, separated by commas.")
@shared_options
def command(**options: Any) -> None:
    """The second table of section 7.2: certified percentages on SST-2, printed cells in brackets.

    The perturbed vector is the hidden one after the embedding, not clipped. One logit has two classes by its sign, so
    there is one property. Columns as in `softhull paper attention`.

    \b
    Example
      softhull paper sst --artifact DIR --data sentences.npz
    """
    from ...paper.attention import SST

    show_table(SST, **options)
