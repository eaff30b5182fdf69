"""Certificates of single instances, and the folder that a command fills with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from ..checker.certificate import Certificate, Refused, write_certificate
from ..checker.check import conclusion
from ..checker.network import Product
from ..checker.session import exactly
from ..errors import InvalidInput, SofthullError
from .prover import Proof
from .second_order import QuadraticRows, SecondOrder

if TYPE_CHECKING:
    from torch import Tensor

    from ..formats.network import Network
    from ..propagate.perturbation import Perturbation
    from ..verify.scores import Piece, Score


P = ParamSpec("P")


class NoProof(SofthullError):
    """What was certified is not proved by the rules of the checker as they are used here; the message says why."""


def _proving(function: Callable[P, Certificate]) -> Callable[P, Certificate]:
    """With the precision of the checker; what it refuses on the way is no proof."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Certificate:
        try:
            return exactly(function)(*args, **kwargs)
        except Refused as problem:
            raise NoProof(str(problem)) from None

    return run


@_proving
def class_certificate(
    model: str | Path,
    x: np.ndarray,
    label: int,
    perturbation: Perturbation,
    rivals: Sequence[int] | None = None,
    index: int | None = None,
) -> Certificate:
    """A proof that ``label`` stays ahead of ``rivals`` (default: all other classes) within the perturbation.

    ``index`` says where the input stands in its data file. Raises NoProof, or ModelError for operators that the
    checker does not cover.
    """
    proof = Proof([model], x, perturbation.eps, _norm(perturbation), perturbation.clip)
    logits = proof.networks.logits[0]
    classes = logits.size
    proof.prepare([logits])
    if classes == 1:
        found = proof.claim_sign(logits, label == 1)
        rivals = []
    else:
        rivals = [k for k in range(classes) if k != label] if rivals is None else [k for k in rivals if k != label]
        if not rivals:
            raise NoProof("there is no other class to stay ahead of")
        margins = proof.claim_lead(logits, label, rivals)
        if not (margins > 0).all():
            second_order = SecondOrder(proof, [logits])
            for place in np.argsort(margins)[: int((~(margins > 0)).sum())].tolist():
                margins[place] = second_order.lead(logits, label, rivals[place])
                if not margins[place] > 0:
                    break
        found = float(margins.min())
    if not found > 0:
        raise NoProof(f"the rules of the checker prove a margin of {found:.3g} only")
    return proof.certificate({"kind": "class", "label": int(label), "rivals": [int(k) for k in rivals]}, index)


@_proving
def score_certificate(
    models: Sequence[str | Path],
    networks: Sequence[Network],
    x: np.ndarray,
    label: int,
    perturbation: Perturbation,
    score: str | Score = "nll",
    index: int | None = None,
) -> Certificate:
    """A proof of a bound on the score of the mean probabilities.

    Networks with products (attention) are bounded by second order, others by the multipliers of the Lagrangian method.
    """
    import torch

    from ..verify.scores import find_score
    from .ensemble import LagrangianRows

    kind = find_score(score)
    proof = Proof(models, x, perturbation.eps, _norm(perturbation), perturbation.clip)
    rows: QuadraticRows | LagrangianRows
    if any(isinstance(node, Product) for node in proof.networks.nodes):
        rows = QuadraticRows(proof, int(label))
    else:
        centre = torch.as_tensor(x, dtype=torch.float64).reshape(1, *networks[0].input_shape)
        rows = LagrangianRows(proof, networks, perturbation.around(centre))
    least, most = rows.least, rows.most
    y = torch.tensor([label])
    worst = -math.inf
    # The most dangerous pieces first: those that stay below what is proved of them need no proof of their own.
    for piece in sorted(kind.pieces(y, least, most), key=lambda piece: -_reach(piece, least, most)):
        if _reach(piece, least, most) < worst:
            break
        best = math.inf
        point = (least + most) / 2
        for _ in range(piece.rounds):
            plane = piece.tangent(point)
            lower, point = rows.claim(plane.coefficients)
            best = min(best, float(plane.offset[0]) - lower / len(models))
        worst = max(worst, best)
    bound = float(kind.from_badness(torch.tensor([worst], dtype=torch.float64))[0])
    outward = 1 if kind.worst_when == "high" else -1
    for slack in (1e-15, 1e-13, 1e-11, 1e-9, 1e-7):
        stated = bound + outward * slack * (1 + abs(bound))
        claim = {"kind": "score", "score": kind.name, "label": int(label), "bound": stated}
        try:
            conclusion(claim, proof.networks, proof.known, proof.scores)
        except Refused as problem:
            refusal = str(problem)
        else:
            return proof.certificate(claim, index)
    raise NoProof(refusal)


def _reach(piece: Piece, least: Tensor, most: Tensor) -> float:
    """What a piece reaches at most on the ranges of the mean probabilities alone."""
    plane = piece.tangent((least + most) / 2)
    c = plane.coefficients
    return float(plane.offset + (c.clamp(min=0) * most + c.clamp(max=0) * least).sum())


class Folder:
    """One file per certified instance; what could not be written is remembered with its reason."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InvalidInput(f"{path}: {problem.strerror or 'cannot be made a folder'}") from None
        self.written: dict[int, dict[str, Any]] = {}
        self.missing: dict[int, str] = {}

    def keep(self, index: int, make: Callable[[], Certificate]) -> None:
        """Write the certificate of an instance, or note why there is none: a verdict stands without its file."""
        name = f"certificate-{index:05d}.npz"
        try:
            certificate = make()
            write_certificate(self.path / name, certificate)
        except SofthullError as problem:
            self.missing[index] = str(problem)
            return
        except Exception as problem:  # whatever fails here must not take the verdicts with it
            line = " ".join(str(problem).split())
            self.missing[index] = f"the writer failed ({type(problem).__name__}{': ' if line else ''}{line})"
            return
        self.written[index] = {"certificate": name}
        if "bound" in certificate.header["property"]:
            self.written[index]["certificate_bound"] = certificate.header["property"]["bound"]

    def described(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer of a command with the file, or the reason why there is none, beside every instance."""
        for record in answer["instances"]:
            if record["index"] in self.written:
                record.update(self.written[record["index"]])
            elif record["index"] in self.missing:
                record["certificate"], record["no_certificate"] = None, self.missing[record["index"]]
        return answer

    def __str__(self) -> str:
        line = f"{len(self.written)} certificates in {self.path}"
        for index, why in self.missing.items():
            line += f"\nno certificate for {index}: {why}"
        return line


def _norm(perturbation: Perturbation) -> str:
    return "inf" if math.isinf(perturbation.norm) else str(int(perturbation.norm))
