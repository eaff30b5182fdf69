"""``softhull inspect``: a network as softhull sees it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .options import json_option
from .output import console, is_stdout, write_json


@click.command("inspect", short_help="The graph of a network, and how each operator is relaxed.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@json_option
def command(model: str, json_out: Path | None) -> None:
    """The nodes of an ONNX network in order: shapes, parameters, and what would be relaxed how.

    \b
    Example
      softhull inspect MODEL.onnx
    """
    from ..formats.describe import describe
    from ..formats.onnx import load_onnx

    network = load_onnx(model)
    rows = describe(network)
    shape = list(network.graph.input_shape)
    write_json(
        json_out,
        {"path": network.path, "sha256": network.sha256, "input_shape": shape, "nodes": [asdict(row) for row in rows]},
    )
    if is_stdout(json_out):
        return
    from ..report.tables import network_table

    console().print(network_table(model, network.graph.input_shape, rows))
