"""Importer against the checker's reader against onnxruntime, model by model."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch

from softhull.checker.network import Networks
from softhull.errors import ModelError
from softhull.formats import onnx as importer
from softhull.formats.agreement import disagreements
from softhull.formats.network import Network

from ...checker.evaluate import values
from .models import Sample, sample


@dataclass
class Tally:
    """What happened so far; ``wrong`` says where two readings of one file differ."""

    models: int = 0
    imported: Counter[str] = field(default_factory=Counter)  # by operator
    checked: Counter[str] = field(default_factory=Counter)
    tried: set[tuple[str, int]] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def merge(self, other: Tally) -> None:
        self.models += other.models
        self.imported += other.imported
        self.checked += other.checked
        self.tried |= other.tried
        self.refused += other.refused
        self.wrong += other.wrong


def _import(case: Sample) -> Network | str:
    """As the importer reads it, before it compares anything itself."""
    compare, importer._compare = importer._compare, lambda network: None
    try:
        return importer.parse_onnx(case.content, "model", None)
    except ModelError as error:
        return str(error)
    finally:
        importer._compare = compare


def _check(case: Sample, folder: str) -> Networks | str:
    path = Path(folder) / "model.onnx"
    path.write_bytes(case.content)
    try:
        return Networks([path])
    except ModelError as error:
        return str(error)


def compare(seeds: range, only: str | None = None) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            _compare_one(seed, sample(seed, only), folder, tally)
    return tally


def _compare_one(seed: int, case: Sample, folder: str, tally: Tally) -> None:
    tally.models += 1
    tally.tried.add((case.operator, case.opset))
    network, networks = _import(case), _check(case, folder)
    what = f"seed {seed}, {case.operator} in operator set {case.opset}"
    operators = {node.op_type for node in onnx.load_from_string(case.content).graph.node}
    if isinstance(network, str):
        tally.refused[re.sub(r"[0-9]+", "0", network.partition("): ")[2] or network)] += 1
    try:
        theirs = _replay(case)
    except Exception as error:  # what the runtime does not run, nobody certifies: the importer would refuse it
        if not isinstance(network, str):
            tally.refused["runtime: " + str(error).splitlines()[0][:80]] += 1
        return
    ours = None
    if not isinstance(network, str):
        try:
            apart, explained, overflow = disagreements(network, case.x)
        except ValueError as error:
            tally.wrong.append(f"{what}: importer: {error}")
            return
        wrong = ~(overflow | (apart <= explained))
        if wrong.any():
            tally.wrong.append(f"{what}: importer {apart[wrong].max():.3g} away from onnxruntime")
        elif not overflow.all():
            tally.imported.update(operators)
        ours = network.graph(torch.from_numpy(case.x).double()).numpy()
    if not isinstance(networks, str):
        found = np.stack([_evaluated(networks, x, folder) for x in case.x])
        # The reader computes in the same precision as the graph; with nothing but the runtime the rounding is guessed.
        target, share = (theirs, 1e-3) if ours is None else (ours.reshape(found.shape), 1e-8)
        usable = np.isfinite(theirs).all(tuple(range(1, theirs.ndim)))
        usable &= np.isfinite(found).all(1)
        gap = np.abs(found - target.reshape(found.shape))[usable].max(initial=0)
        if found.size != theirs.size or not gap <= share * (1 + np.abs(target[usable]).max(initial=0)):
            tally.wrong.append(
                f"{what}: checker {gap:.3g} away from {'onnxruntime' if ours is None else 'the importer'}"
            )
        elif usable.any():
            tally.checked.update(operators)


def _evaluated(networks: Networks, x: np.ndarray, folder: str) -> np.ndarray:
    """The output itself: the final softmax that the checker takes off is part of it, and so is its logarithm."""
    model = onnx.load(f"{folder}/model.onnx")
    view = networks.tensors[f"0:{model.graph.output[0].name}"]
    found = view.index.of(values(networks, x)[view.node]).ravel()
    last = next(node for node in model.graph.node if model.graph.output[0].name in node.output)
    return np.log(found) if last.op_type == "LogSoftmax" else found


def _replay(case: Sample) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(case.content, options, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, {"x": x})[0] for x in case.x])


def summary(tally: Tally) -> str:
    refused = sum(tally.refused.values())
    return f"{tally.models} ONNX files, {refused} refused by importer or runtime, {len(tally.wrong)} with two meanings"
