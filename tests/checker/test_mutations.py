"""Certificates changed at random are rejected, or what they still claim is true; the checker never breaks.

``SOFTHULL_MUTATIONS`` sets how many are tried, ``SOFTHULL_SEED`` the first seed.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softhull.checker.certificate import Certificate, read_certificate, write_certificate
from softhull.checker.check import check_certificate, region_of
from softhull.checker.network import Networks
from softhull.errors import SofthullError

from .conftest import Case
from .evaluate import values

COUNT = int(os.environ.get("SOFTHULL_MUTATIONS", "24"))
SEED = int(os.environ.get("SOFTHULL_SEED", "0"))


@pytest.mark.parametrize("kind", ["attention", "quadratic", "ensemble"])
def test_claims_are_true(kind: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(kind)
    assert_true(case.certificate, case, np.random.default_rng(0), 0)


@pytest.mark.parametrize("kind", ["attention", "quadratic", "ensemble"])
def test_mutations(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case: Case = request.getfixturevalue(kind)
    outcomes: Counter[str] = Counter()
    for seed in range(SEED, SEED + COUNT // 3):
        rng = np.random.default_rng([seed, len(kind)])
        path = tmp_path / "mutated.npz"
        if rng.random() < 0.1:
            content = bytearray(case.path.read_bytes())
            content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(content)
        else:
            write_certificate(path, mutated(case.certificate, rng))
        try:
            found = check_certificate(path, case.models)
        except SofthullError:
            outcomes["unreadable"] += 1
            continue
        outcomes["accepted" if found.accepted else "rejected"] += 1
        if found.accepted:
            assert_true(read_certificate(path), case, rng, seed)
    print(kind, dict(outcomes))
    assert sum(outcomes.values()) == COUNT // 3
    assert COUNT < 20 or outcomes["rejected"]


def mutated(certificate: Certificate, rng: np.random.Generator) -> Certificate:
    """One number, name or part of a certificate changed."""
    header, arrays = copy.deepcopy(certificate.header), dict(certificate.arrays)
    if rng.random() < 0.7:
        name = list(arrays)[int(rng.integers(len(arrays)))]
        arrays[name] = changed_array(arrays[name], rng)
    else:
        change_header(header, rng)
    return Certificate(header, arrays)


def changed_array(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    found = array.copy()
    if not found.size or rng.random() < 0.1:
        return found[:-1] if found.ndim and len(found) else found.reshape(1, -1)
    flat = found.reshape(-1)
    place = int(rng.integers(flat.size))
    if found.dtype.kind == "i":
        flat[place] += int(rng.choice([-1, 1, 7, -(1 << 62), 1 << 62]))
        return found
    value = flat[place]
    bits = np.array([value]).view(np.uint64) ^ (np.uint64(1) << np.uint64(rng.integers(64)))
    choices = [bits.view(np.float64)[0], -value, 0.0, 2 * value, value + 1, value - 1, value * (1 + 1e-9)]
    flat[place] = rng.choice([*choices, np.nan, np.inf, -np.inf, 1e300])
    return found


def change_header(header: Any, rng: np.random.Generator) -> None:
    at = header
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.95:
            at = at[key]
            continue
        if rng.random() < 0.2:
            del at[key]
        else:
            others = [None, -1, 0, 1, 10**30, 0.5, 1e400, "", "a1", [], {}, True, [0, [1]], at[keys[0]]]
            at[key] = others[int(rng.integers(len(others)))]
        return


def assert_true(certificate: Certificate, case: Case, rng: np.random.Generator, seed: int) -> None:
    """Every bound that an accepted certificate claims holds at points of its region."""
    networks = Networks(case.models)
    header = certificate.header
    region = header["region"]
    x = certificate.array(header["input"]["array"], "f").ravel()
    box = region_of(x, region["eps"], str(region["norm"]), region["clip"])
    label = header["property"]["label"]
    for _ in range(50):
        share = rng.choice([0.0, 0.5, 1.0], x.shape)
        found = values(networks, np.clip(box.lower + share * (box.upper - box.lower), box.lower, box.upper))
        for step in header["steps"]:
            if step["claim"] in ("planes", "logits", "form"):
                continue
            if step["claim"] == "score":
                total = sum(view.index.of(found[view.node]).ravel() for view in networks.probabilities)
                got = certificate.arrays[step["rows"]] @ total
                upper = np.full(len(got), np.inf)
            else:
                view = networks.tensors[step["tensor"]]
                entries = view.index.of(found[view.node]).ravel()
                if step["claim"] == "functions":
                    got = certificate.arrays[step["rows"]] @ entries
                else:
                    got = entries[certificate.arrays[step["entries"]]]
                    got = got[:, 0] - got[:, 1] if got.ndim > 1 else got
                upper = certificate.arrays[step["upper"]]
            slack = 1e-9 * (1 + np.abs(got))
            assert (got >= certificate.arrays[step["lower"]] - slack).all(), seed
            assert (got <= upper + slack).all(), seed
        claim = header["property"]
        if claim["kind"] == "class":
            view = networks.logits[0]
            logits = view.index.of(found[view.node]).ravel()
            assert all(logits[label] > logits[rival] for rival in claim["rivals"]), seed
        elif claim["score"] == "nll":
            p = np.mean([view.index.of(found[view.node]).ravel() for view in networks.probabilities], axis=0)
            assert -np.log(p[label]) <= claim["bound"] + 1e-9, seed
