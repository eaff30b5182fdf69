"""``softhull inspect``: a network as softhull sees it."""

from __future__ import annotations

from dataclasses import asdict

import click

from .options import console, show_json


@click.command("inspect", short_help="The graph of a network, and how each operator is relaxed.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(model: str, as_json: bool) -> None:
    """The nodes of an ONNX network in order: shapes, parameters, and what would be relaxed how.

    \b
    Example
      softhull inspect MODEL.onnx
    """
    from ..formats.describe import describe
    from ..formats.onnx import load_onnx

    network = load_onnx(model)
    rows = describe(network)
    if as_json:
        shape = list(network.graph.input_shape)
        show_json({"sha256": network.sha256, "input_shape": shape, "nodes": [asdict(row) for row in rows]})
        return
    from ..report.tables import network_table

    console().print(network_table(model, network.graph.input_shape, rows))
