"""``softhull inspect``: a network as softhull sees it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .options import json_option
from .output import console, is_stdout, write_json
from .subject import fixed_inputs, model_options


@click.command("inspect", short_help="The graph of a network, and how each operator is relaxed.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--data", type=click.Path(exists=True, dir_okay=False), help="Data whose first input is the example.")
@model_options
@json_option
def command(
    model: str,
    data: str | None,
    fix: tuple[str, ...],
    perturb: str | None,
    output: str | None,
    json_out: Path | None,
) -> None:
    """The nodes of an ONNX network in order: shapes, parameters, and what would be relaxed how.

    \b
    Examples
      softhull inspect MODEL.onnx
      softhull inspect MODEL.onnx --fix attention_mask=mask.npy --perturb embeddings --data text.npz
    """
    from ..formats.datasets import load_dataset
    from ..formats.describe import describe
    from ..formats.onnx import load_onnx

    example = None if data is None or perturb is None else load_dataset(data).raw[:1]
    network = load_onnx(model, fixed_inputs(fix), perturb, output, example)
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
