"""Certificates about parts of an input, pixels and alternatives: accepted as written, rejected for a larger region."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from softhull.certificates.write import class_certificate
from softhull.checker import check, replay
from softhull.checker.balls import exact, matrix, times
from softhull.checker.certificate import Certificate, CertificateError, read_certificate, write_certificate
from softhull.checker.check import check_certificate, region_of
from softhull.checker.statement import Statement
from softhull.regions import Alternatives, Perturbation

WORDS, D = 3, 2
RNG = np.random.default_rng(3)
FIRST, SECOND = RNG.normal(size=(WORDS * D, 5)).astype(np.float32), RNG.normal(size=(5, 2)).astype(np.float32)
X = RNG.normal(size=(1, WORDS, D)).astype(np.float32).astype(np.float64)
TABLE = np.concatenate((X[0], X[0] + 0.05 * RNG.normal(size=(WORDS, D)).astype(np.float32))).astype(np.float32)


def logits(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x.reshape(1, -1) @ FIRST.astype(float), 0) @ SECOND.astype(float))[0]


LABEL = int(logits(X).argmax())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["row"]),
        helper.make_node("MatMul", ["row", "first"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "second"], ["logits"]),
    ]
    constants = {"shape": np.array([1, -1]), "first": FIRST, "second": SECOND}
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WORDS, D])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


REGIONS: dict[str, Any] = {
    "word": Perturbation(0.01, only=[0, 1, 0]),
    "word l2": Perturbation(0.01, 2, only=[0, 1, 0]),
    "pixels l1": Perturbation(0.01, 1, normalize=([0.5, 0.4, 0.3], [0.3, 0.7, 1.1])),
    "radii": Perturbation(np.full((WORDS, D), 0.003) * np.arange(1, 1 + D)),
    "box": Perturbation(lower=X - 0.01, upper=X + 0.005),
    "limits": Perturbation(0.01, lower=X - 0.005),
    "alternatives": Alternatives(TABLE, {k: [k + WORDS] for k in range(WORDS)}),
    "one alternative": Alternatives(TABLE, {k: [k + WORDS] for k in range(WORDS)}, 1),
}


@pytest.fixture(scope="module")
def written(model: Path) -> dict[str, Certificate]:
    return {name: class_certificate(model, X, LABEL, region) for name, region in REGIONS.items()}


@pytest.mark.parametrize("name", REGIONS)
def test_honest_certificates_are_accepted_and_say_what_they_are_about(
    name: str, model: Path, written: dict[str, Certificate], tmp_path: Path
) -> None:
    write_certificate(tmp_path / "c.npz", written[name])
    found = check_certificate(tmp_path / "c.npz", [model])
    assert found.accepted, found.reason
    assert isinstance(found.statement, Statement)
    assert found.statement.more
    assert all("sha256" in words or "positions" in words for _, words in found.statement.more)
    assert found.to_dict()["statement"]["region"].keys() >= {part for part, _ in found.statement.more}
    # A part of a ball must not pass for the ball.
    assert "a plain region is demanded" in check_certificate(tmp_path / "c.npz", [model], eps=0.01).reason


def test_limits_are_said_with_the_clip_range_that_narrows_them(
    model: Path, written: dict[str, Certificate], tmp_path: Path
) -> None:
    box = written["box"]
    clip = [float(X.min()), float(X.max())]
    write_certificate(
        tmp_path / "c.npz", Certificate(box.header | {"region": box.header["region"] | {"clip": clip}}, box.arrays)
    )
    text = str(check_certificate(tmp_path / "c.npz", [model]))
    assert f"all within the limits, clipped to {clip[0]!r} to {clip[1]!r}" in text
    assert f"moving: {X.size} of {X.size} entries" in text


def test_alternatives_that_may_not_be_taken_are_one_input(
    model: Path, written: dict[str, Certificate], tmp_path: Path
) -> None:
    some = written["one alternative"]
    none = Certificate(some.header | {"region": some.header["region"] | {"at_most": 0}}, some.arrays)
    write_certificate(tmp_path / "c.npz", none)
    found = check_certificate(tmp_path / "c.npz", [model])
    assert found.accepted
    assert "AT THIS ONE INPUT ONLY" in found.reason
    assert f"moving: 0 of {X.size} entries" in str(found)


def larger(certificate: Certificate, factor: float) -> Certificate:
    """The same proof about a region that holds the old one, far beyond what is true of it."""
    arrays = dict(certificate.arrays)
    x = arrays["input"]
    for name, array in certificate.arrays.items():
        part = name.removeprefix("region ")
        if part == "scale":
            arrays[name] = array * factor + factor
        elif part in ("low", "high"):
            arrays[name] = x.reshape(array.shape) + factor * (array - x.reshape(array.shape)) * 100
        elif part == "options":
            arrays[name] = -factor * array
    return Certificate(certificate.header, arrays)


@pytest.mark.parametrize("name", [name for name in REGIONS if name != "limits"])
def test_a_proof_does_not_cover_a_larger_region(
    name: str, model: Path, written: dict[str, Certificate], tmp_path: Path
) -> None:
    write_certificate(tmp_path / "c.npz", larger(written[name], 50.0))
    assert not check_certificate(tmp_path / "c.npz", [model]).accepted


@pytest.mark.parametrize(
    "change",
    [
        {"scales": "input"},
        {"scale": "nothing"},
        {"scale": 1},
        {"options": "input", "positions": "input"},
        {"at_most": -1},
        {"at_most": 1},
        {"eps": None},
        {"low": "input", "high": "input", "eps": None, "scale": "input"},
    ],
    ids=str,
)
def test_regions_that_are_none_are_rejected(
    change: dict[str, Any], model: Path, written: dict[str, Certificate], tmp_path: Path
) -> None:
    header = written["word"].header
    forged = Certificate(header | {"region": header["region"] | change}, written["word"].arrays)
    write_certificate(tmp_path / "c.npz", forged)
    with suppress(CertificateError):  # or it is no certificate at all
        assert not check_certificate(tmp_path / "c.npz", [model]).accepted


def test_read_back_a_certificate_is_the_same(written: dict[str, Certificate], tmp_path: Path) -> None:
    write_certificate(tmp_path / "c.npz", written["one alternative"])
    assert read_certificate(tmp_path / "c.npz").header == written["one alternative"].header


# Forgeries: random regions, and rows whose least value over random points of them is known.


def values(rows: np.ndarray, at: np.ndarray) -> Any:
    return times(exact(rows), matrix(exact(at)[:, None]))[:, 0]


def hunt(seed: int) -> None:
    """AssertionError where a rule of a region claims more than is true at one of its points."""
    rng = np.random.default_rng(seed)
    x, rows = rng.normal(size=6), rng.normal(size=(4, 6))
    scale = rng.random(6) * (rng.random(6) < 0.6) * 3
    for norm in ("inf", "2", "1"):
        region = region_of(x, 0.5, norm, None, {"scale": scale})
        claimed = region.minimum(exact(rows))
        for _ in range(20):
            w = rng.normal(size=6) * (rng.random(6) < 0.5)
            w *= 0.499 / max(float(np.linalg.norm(w, {"inf": np.inf, "2": 2, "1": 1}[norm])), 1e-9)
            if rng.random() < 0.5 and norm != "inf":
                w = np.zeros(6)
                w[rng.integers(6)] = rng.choice([-0.499, 0.499])
            at = x + scale * w
            assert ((at >= region.lower) & (at <= region.upper)).all()
            assert not any(c > v for c, v in zip(claimed, values(rows, at)))
    options, positions = rng.normal(size=(5, 2)), rng.integers(0, 3, 5)
    for most in (None, 0, 1, 2):
        found = region_of(x, None, "inf", None, {"options": options, "positions": positions, "at_most": most})
        claimed = found.minimum(exact(rows))
        listed = [[x[2 * p : 2 * p + 2], *options[positions == p]] for p in range(3)]
        for chosen in itertools.product(*(range(len(each)) for each in listed)):
            if most is None or sum(c > 0 for c in chosen) <= most:
                at = np.concatenate([each[c] for each, c in zip(listed, chosen)])
                assert ((at >= found.lower) & (at <= found.upper)).all()
                assert not any(c > v for c, v in zip(claimed, values(rows, at)))


def test_no_rule_of_a_region_claims_more_than_is_true():
    for seed in range(10):
        hunt(seed)


def unscaled(usual: Any) -> Callable[..., Any]:
    return lambda self, rows: usual(replay.Region(self.lower, self.upper, self.centre, self.eps, self.norm), rows)


def fewer(usual: Any) -> Callable[..., Any]:
    def minimum(self: Any, rows: Any) -> Any:
        most = len(self.options) if self.at_most is None else self.at_most
        own = [o[:1] for o in self.options]
        if not most:
            return usual(self, rows)
        return usual(replay.Choices(self.lower, self.upper, options=(*self.options[:-1], own[-1]), at_most=most), rows)

    return minimum


def misplaced(usual: Any) -> Callable[..., Any]:
    return lambda x, parts: usual(x, dict(parts) | {"positions": parts["positions"] * 0})


def without_units(usual: Any) -> Callable[..., Any]:
    return lambda array, x, name: None if name == "scale" else usual(array, x, name)


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a ball without its units": (replay.Region, "minimum", unscaled),
    "a position without its options": (replay.Choices, "minimum", fewer),
    "options at another position": (check, "choices", misplaced),
    "a box without its units": (check, "_entries", without_units),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, rule, change = PLANTED[name]
    monkeypatch.setattr(place, rule, change(getattr(place, rule)))
    with pytest.raises(AssertionError):
        test_no_rule_of_a_region_claims_more_than_is_true()


@pytest.mark.parametrize("norm", ["1", "2"])
def test_a_centre_at_an_end_of_the_clip_range_goes_one_way(norm: str) -> None:
    """The minimum is at most what a point next to the best one has, and more than that of the whole ball."""
    rng = np.random.default_rng(5)
    x = rng.choice([0.0, 1.0, 0.5], 12)
    rows = rng.normal(size=(8, 12))
    inside, whole = (region_of(x, 0.25, norm, clip).minimum(exact(rows)) for clip in ((0.0, 1.0), None))
    for row, low, lower in zip(rows, inside, whole):
        free = np.where(((row < 0) & (x < 1)) | ((row > 0) & (x > 0)), row, 0.0)
        step = free / np.linalg.norm(free) if norm == "2" else np.where(abs(free) == abs(free).max(), np.sign(free), 0)
        point = x - 0.25 * (1 - 1e-9) * step
        assert ((point >= 0) & (point <= 1)).all()
        value = (exact(row) * exact(point)).sum()
        assert low <= value
        assert low > value - 1e-6
        assert low > lower or (free == row).all() or norm == "1"
