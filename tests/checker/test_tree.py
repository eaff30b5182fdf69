"""Proofs of regions that were cut into cells: accepted where the cells cover everything, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softhull.certificates.write import NoProof, class_certificate
from softhull.checker.certificate import Certificate, CertificateError, Refused, write_certificate
from softhull.checker.check import check_certificate
from softhull.checker.network import Networks
from softhull.checker.replay import Region
from softhull.checker.tree import LEAF, cells_of
from softhull.formats.onnx import load_onnx
from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.propagate.methods import Branch, Linear
from softhull.regions import Perturbation
from softhull.verify.result import Record, Verdict
from softhull.verify.robustness import verify_robustness

from .evaluate import random_attention, values


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


@pytest.mark.parametrize("seed", range(30))
def test_cells_cover_their_region_and_a_tree_with_a_gap_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    region = Region(-rng.uniform(0, 1, 3), rng.uniform(0, 1, 3))
    cuts = random_tree(rng, region, 5)
    entries, where = as_arrays(cuts)
    cells = cells_of(region, entries, where)
    assert len(cells) == (entries == LEAF).sum()
    for point in rng.uniform(region.lower, region.upper, (200, 3)):
        assert any(((cell.lower <= point) & (point <= cell.upper)).all() for cell in cells)
    for place in range(len(cuts)):
        with pytest.raises(Refused):
            cells_of(region, np.delete(entries, place), np.delete(where, place))
    with pytest.raises(Refused):
        cells_of(region, np.append(entries, LEAF), np.append(where, 0.0))
    for place in np.flatnonzero(entries != LEAF).tolist():
        for outside in (2.0, -2.0, np.nan, np.inf):
            moved = where.copy()
            moved[place] = outside
            with pytest.raises(Refused):
                cells_of(region, entries, moved)


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
    cells = cells_of(Region(x[0] - eps, x[0] + eps), entries, where)
    assert len(cells) > 1


def test_what_was_cut_is_checked(branched: Any, tmp_path: Path) -> None:
    model, x, label, asked, certificate = branched
    with pytest.raises(NoProof):
        class_certificate(model, x, label, asked)
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


def _leave_out(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The first cell stands for the whole region."""
    tree = header["tree"]
    arrays[tree["entries"]], arrays[tree["values"]] = np.array([LEAF]), np.zeros(1)
    tree["cells"] = tree["cells"][:1]


def _repeat(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The proof of one cell is given for its neighbours, too."""
    header["tree"]["cells"] = [header["tree"]["cells"][0]] * len(header["tree"]["cells"])


def _shift(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """A cut is moved: one of its two cells is larger than the one that was proved."""
    where = arrays[header["tree"]["values"]].copy()
    where[0] += 0.4 * header["region"]["eps"]
    arrays[header["tree"]["values"]] = where


def _fewer_cells(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["tree"]["cells"].pop()


def _steps_beside(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["steps"] = header["tree"]["cells"][0]


def _no_steps(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["tree"]["cells"] = [[] for _ in header["tree"]["cells"]]


@pytest.mark.parametrize("forge", [_grow, _leave_out, _repeat, _shift, _fewer_cells, _steps_beside, _no_steps])
def test_forged_trees_are_rejected(branched: Any, forge: Callable[..., None], tmp_path: Path) -> None:
    model, *_, certificate = branched
    header, arrays = deepcopy(certificate.header), dict(certificate.arrays)
    forge(header, arrays)
    write_certificate(tmp_path / "c.npz", Certificate(header, arrays))
    checked = check_certificate(tmp_path / "c.npz", [model])
    assert not checked.accepted
    assert "\n" not in checked.reason


@pytest.mark.parametrize("tree", [None, [], {"entries": "a", "values": "b", "cells": []}, {"cells": [[]]}])
def test_trees_that_are_none(branched: Any, tree: Any, tmp_path: Path) -> None:
    model, *_, certificate = branched
    header = deepcopy(certificate.header) | {"tree": tree}
    write_certificate(tmp_path / "c.npz", Certificate(header, certificate.arrays))
    with pytest.raises(CertificateError, match=r"malformed|no array"):
        check_certificate(tmp_path / "c.npz", [model])
