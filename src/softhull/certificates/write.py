"""Certificates of single instances, and the folder that a command fills with them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from ..checker.certificate import Certificate, Refused, write_certificate
from ..checker.check import conclusion
from ..checker.network import Product, View
from ..checker.ranges import LARGEST_BRIER, ProvedRanges, proved_ranges
from ..checker.session import exactly
from ..errors import InvalidInput, SofthullError
from .prover import Proof
from .second_order import PASSES, QuadraticRows, SecondOrder
from .tree import lead, prove_boxes

if TYPE_CHECKING:
    from torch import Tensor

    from ..formats.network import Network
    from ..regions import Alternatives, AnyPerturbation, Perturbation, Region
    from ..verify.ranges import Ranges
    from ..verify.result import Record
    from ..verify.scores import Score
    from ..verify.uncertainty import ScoreRecord
    from .ensemble import LagrangianRows
    from .gradient import Followed


P = ParamSpec("P")

# Ways that leave no choices: their rows are claimed by plain walks, which may fall short of what they proved.
_PLAIN = (None, "linear", "contracted", "affine forms", "quadratic forms", "factors that move together")
# What proves rivals with rectifiers that are bent.
_BENT = ("second order, gradient", "second order, bent rectifiers")
# What a row must gain on an end of a range to be worth its steps.
ROW_GAIN = 1e-3


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
    perturbation: AnyPerturbation,
    rivals: Sequence[int] | None = None,
    index: int | None = None,
    run: Record | None = None,
    network: Network | None = None,
) -> Certificate:
    """A proof that ``label`` stays ahead of its rivals within the perturbation.

    Raises NoProof, or ModelError for operators that the checker does not cover.

    Args:
        model: The model file.
        x: One input in the shape of the network's input.
        label: The class.
        perturbation: The region.
        rivals: The other classes; all of them by default.
        index: The number of the input in its data file.
        run: What a run says of the instance: the cuts of its region, what excluded every rival, what gradient steps
            chose. The proof follows it.
        network: The network of the run; by default that of the model file.
    """
    proof = Proof([model], x, *_region(perturbation, x))
    classes = proof.networks.logits[0].size
    rivals = range(classes) if rivals is None else rivals
    rivals = [int(k) for k in rivals if k != label] if classes > 1 else []
    if classes > 1 and not rivals:
        raise NoProof("there is no other class to stay ahead of")
    property = {"kind": "class", "label": int(label), "rivals": rivals}
    if run is not None and run.cuts:
        logits = proof.networks.logits[0]
        prove_boxes(proof, run.cuts, logits, label, rivals, lambda cell: _lead(cell, label, rivals))
    elif why := _lead(proof, label, rivals, run, network, perturbation):
        raise NoProof(why)
    return proof.certificate(property, index)


def _lead(
    proof: Proof,
    label: int,
    rivals: Sequence[int],
    run: Record | None = None,
    network: Network | None = None,
    perturbation: AnyPerturbation | None = None,
) -> str:
    """Claim that the label stays ahead of its rivals, or of nothing but zero; returns why that is not proved."""
    logits = proof.networks.logits[0]
    hows, chosen = (run.proved_by if run is not None else None), (run.chosen if run is not None else {})
    # Contracted products are tight and take most of the time: first where the run took them, else where all else fails.
    contracted = bool({"contracted", "gradient"} & set((hows or {}).values()))
    proof.prepare([logits], contract=contracted)
    cut = [k for k, how in (hows or {}).items() if how in ("cuts", "cuts of logits")]
    sharpened = run.sharpened if run is not None else {}
    stepped = [k for k in chosen if (hows or {}).get(k) == "gradient"]
    bent = [k for k in chosen if (hows or {}).get(k) in _BENT]
    followed = None
    if (chosen or cut or sharpened) and perturbation is not None:
        followed, region = _followed(proof, network, perturbation)
    if cut and followed is not None:
        from .cuts import prove_cuts

        if "cuts of logits" in (hows or {}).values():
            SecondOrder.sharpened(proof, [logits])
        for rival in [k for k in cut if not rivals or k in rivals]:
            by_logits = (hows or {})[rival] == "cuts of logits"
            prove_cuts(proof, followed, region, logits, label, [rival] if rivals else [], by_logits)
    if not rivals:
        found = float(lead(proof, logits, label, ())[0])
        if not found > 0:
            found = proof.claim_sign(logits, label == 1)
        if not found > 0 and followed is not None and stepped:
            row, apart = chosen[1 - label]
            followed.differ(apart)
            with proof.following(partial(followed.choose, row)):
                found = proof.claim_sign(logits, label == 1)
        if not found > 0:
            found = SecondOrder.claimed(proof, [logits]).sign(logits, label == 1)
        return _verdict(found)
    margins = lead(proof, logits, label, rivals)
    plain = [i for i, k in enumerate(rivals) if (hows or {}).get(k) in _PLAIN]
    margins[plain] = proof.claim_lead(logits, label, [rivals[i] for i in plain], contracted)
    if followed is not None and stepped:
        _, apart = chosen[stepped[0]]  # the same for all
        followed.differ(apart)
        for i in [i for i, k in enumerate(rivals) if k in stepped and not margins[i] > 0]:
            with proof.following(partial(followed.choose, chosen[rivals[i]][0])):
                margins[i] = proof.claim_difference(logits, label, rivals[i])
    if not contracted and not (margins[plain] > 0).all():
        proof.contract([logits])
        left = [i for i in plain if not margins[i] > 0]
        margins[left] = proof.claim_lead(logits, label, [rivals[i] for i in left])
    if not (margins > 0).all():
        second_order = SecondOrder.claimed(proof, [logits])
        plain = [i for i, k in enumerate(rivals) if k not in bent]
        _quadratics(second_order, logits, label, rivals, margins, plain)
        if not (margins > 0).all() and followed is not None and sharpened:
            second_order.sharpen(followed.activated(sharpened))
            _quadratics(second_order, logits, label, rivals, margins, plain)
        for i in [i for i, k in enumerate(rivals) if k in bent and not margins[i] > 0]:
            assert followed is not None
            choose = partial(followed.choose, chosen[rivals[i]][0])
            margins[i] = second_order.first(partial(second_order.lead, logits, label, rivals[i], first=choose))
            _quadratics(second_order, logits, label, rivals, margins, [i])
    return _verdict(*margins.tolist())


def _quadratics(
    second_order: SecondOrder,
    logits: View,
    label: int,
    rivals: Sequence[int],
    margins: np.ndarray,
    among: Sequence[int],
) -> None:
    """Claim what is left of some margins by second order, the smallest first; the array holds what was proved."""
    for place in sorted((i for i in among if not margins[i] > 0), key=margins.__getitem__):
        margins[place] = second_order.first(partial(second_order.lead, logits, label, rivals[place]))
        if not margins[place] > 0:  # what is not proved of one rival need not be proved of others
            return


def _verdict(*margins: float) -> str:
    """Nothing, or how far short they fall; a margin of -inf was not tried, as another one had failed."""
    short = [margin for margin in margins if not margin > 0]
    proved = f"a margin of {min(tried):.3g} only" if (tried := [m for m in short if math.isfinite(m)]) else "no margin"
    return f"the rules of the checker prove {proved}" if short else ""


def _followed(proof: Proof, network: Network | None, perturbation: AnyPerturbation) -> tuple[Followed, Region]:
    """Choices of a run on the network, by default on that of the model file, and the region of the run."""
    from ..formats.onnx import load_onnx
    from ..verify.ensemble import Ensemble, Joined
    from .gradient import Followed

    graph = (network or load_onnx(proof.models[0])).logits
    region = _around(proof, graph.input_shape, perturbation)
    return Followed(proof, Joined((Ensemble(graph),)).over(region).graphs[0].graph), region


@_proving
def score_certificate(
    models: Sequence[str | Path],
    networks: Sequence[Network],
    x: np.ndarray,
    label: int,
    perturbation: AnyPerturbation,
    score: str | Score = "nll",
    index: int | None = None,
    record: ScoreRecord | None = None,
) -> Certificate:
    """A proof of the bound on the score of the mean probabilities that a run reported, or of one as close as possible.

    Networks with attention are bounded by second order, others by the multipliers of the Lagrangian method.

    Args:
        models: The model files.
        networks: The networks read from them.
        x: One input in the shape of the networks' input.
        label: The class.
        perturbation: The region.
        score: The score.
        index: The number of the input in its data file.
        record: The record of the run with its choices (``proofs=True``); without one there is a run first.
    """
    import torch

    from ..propagate.methods import SecondOrder as SecondOrderMethod
    from ..regions import as_perturbation
    from ..verify.scores import find_score
    from ..verify.uncertainty import verify_uncertainty

    kind = find_score(score)
    perturbation = as_perturbation(perturbation)
    proof = Proof(models, x, *_region(perturbation, x))
    products = _has_products(proof)
    wanted = "pairs" if products else "multipliers"
    if record is None or not any(wanted in found for found in record.proof or ()):
        method = SecondOrderMethod(row_fit=False) if products else "auto"
        again = verify_uncertainty(networks, x[None], np.array([label]), perturbation, kind, method, proofs=True)[0]
        record = again if record is None else replace(again, bound=record.bound)
    chosen = [found for found in record.proof or () if wanted in found]
    if not chosen or record.failed:
        raise NoProof(record.message or "the run keeps no choices that the checker could follow")
    attempts: list[Callable[[Mapping[str, Tensor]], None]]
    if products:
        at = torch.from_numpy(record.worst_input)[None]
        logits = [network.logits(at.reshape(1, *network.input_shape)).flatten().numpy() for network in networks]
        quadratics = QuadraticRows.claimed(proof, np.argwhere(chosen[0]["pairs"].cpu().numpy()), logits)
        attempts = [partial(quadratics.follow, rows=rows) for rows in PASSES]
    else:
        attempts = [_lagrangian_rows(proof, networks, perturbation).follow]
    bound = None
    for follow in attempts:
        for found in chosen:
            follow(found)
        bound = _nearest(proof, kind, int(label), record.bound)
        if bound == record.bound:
            break
    if bound is None:
        raise NoProof("the rules of the checker prove no bound on the score")
    return proof.certificate(_about(kind, int(label), bound), index)


def _about(kind: Score, label: int, bound: float) -> dict[str, Any]:
    return {"kind": "score", "score": kind.name, "label": label, "bound": bound}


def _nearest(proof: Proof, kind: Score, label: int, bound: float) -> float | None:
    """The bound itself where what is proved implies it, or one that is hardly weaker than need be, or None."""

    def follows(stated: float) -> bool:
        try:
            conclusion(_about(kind, label, stated), proof.networks, proof.known, proof.scores)
        except Refused:
            return False
        return True

    outward, unit = 1 if kind.worst_when == "high" else -1, 1 + abs(bound)
    if follows(bound):
        return bound
    weakest = next((e for e in range(-15, 3) if follows(bound + outward * unit * 10.0**e)), None)
    if weakest is None:
        return None
    low, high = 10.0 ** (weakest - 1), 10.0**weakest
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if follows(bound + outward * unit * middle) else (middle, high)
    return bound + outward * unit * high


@_proving
def ranges_certificate(
    models: Sequence[str | Path],
    networks: Sequence[Network],
    x: np.ndarray,
    label: int,
    perturbation: Perturbation,
    wanted: Ranges,
    index: int | None = None,
) -> Certificate:
    """A proof of ranges of the mean probabilities, of which classes may be on top, and of a bound on the Brier score.

    ``wanted`` is what was certified of this one input. A row of its own is spent where it says more than the bounds on
    the probabilities of every network do, by more than ``ROW_GAIN``; what is stated is what the checker derives.
    """
    import torch

    from ..verify.scores import Brier

    label = int(label)
    proof = Proof(models, x, perturbation.eps, norm_of(perturbation), perturbation.clip)
    rows = _rows_of(proof, networks, label, perturbation)
    low, high, may_win = wanted.least[0], wanted.most[0], wanted.on_top[0]
    unit, top = torch.eye(len(low), dtype=torch.float64), int(low.argmax())

    def known() -> ProvedRanges:
        return proved_ranges(label, proof.networks, proof.known, proof.scores)

    def claim(found: list[Tensor]) -> None:
        if found:
            rows.claim(torch.stack(found))

    least, most = known().ends
    claim(
        [unit[k] for k in np.flatnonzero(most - high > ROW_GAIN)]
        + [-unit[k] for k in np.flatnonzero(low - least > ROW_GAIN)]
    )
    losers = [k for k in np.flatnonzero(~may_win).tolist() if k != top]
    claim([unit[k] - unit[top] for k in losers if not known().ahead(k, top)])
    if _stated_brier(known(), label, wanted.brier[0]) > wanted.brier[0] + ROW_GAIN:
        (piece,) = Brier().pieces(torch.tensor([label]), *(torch.from_numpy(end)[None] for end in known().ends))
        claim([piece.tangent(unit[:1]).coefficients[0]])
    proved = known()
    least, most = proved.ends
    stated = {
        "kind": "ranges",
        "label": label,
        "least": least.tolist(),
        "most": most.tolist(),
        "ahead": [top if k in losers and proved.ahead(k, top) else -1 for k in range(len(low))],
        "brier": _stated_brier(proved, label, wanted.brier[0]),
    }
    conclusion(stated, proof.networks, proof.known, proof.scores)
    return proof.certificate(stated, index)


def _stated_brier(known: ProvedRanges, label: int, wanted: float) -> float:
    """A bound on the Brier score that the checker derives, as near to what is wanted as a search by halves comes."""
    low, high = float(wanted), LARGEST_BRIER
    if known.brier_below(label, low):
        return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if known.brier_below(label, middle) else (middle, high)
    return high


def _rows_of(
    proof: Proof, networks: Sequence[Network], label: int, perturbation: Perturbation | Alternatives
) -> QuadraticRows | LagrangianRows:
    """Claims on linear functions of the probabilities, by the method that fits the networks."""
    if not _has_products(proof):
        return _lagrangian_rows(proof, networks, perturbation)
    return QuadraticRows.claimed(
        proof, np.array([(label, k) for k in range(proof.networks.logits[0].size) if k != label])
    )


def _lagrangian_rows(
    proof: Proof, networks: Sequence[Network], perturbation: Perturbation | Alternatives
) -> LagrangianRows:
    from .ensemble import LagrangianRows

    return LagrangianRows(proof, networks, _around(proof, networks[0].input_shape, perturbation))


def _around(proof: Proof, shape: Sequence[int], perturbation: AnyPerturbation) -> Region:
    """The region of a proof as that of a run."""
    import torch

    from ..regions import as_perturbation

    centre = torch.as_tensor(proof.x, dtype=torch.float64).reshape(1, *shape)
    return as_perturbation(perturbation).around(centre)


def _has_products(proof: Proof) -> bool:
    return any(isinstance(node, Product) for node in proof.networks.nodes)


class Folder:
    """One file per certified instance; what could not be written is remembered with its reason.

    Files are called by ``prefix`` and index.
    """

    def __init__(self, path: str | Path, prefix: str = "certificate") -> None:
        self.path, self.prefix = Path(path), prefix
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InvalidInput(f"{path}: {problem.strerror or 'cannot be made a folder'}") from None
        self.written: dict[int, dict[str, Any]] = {}
        self.missing: dict[int, str] = {}

    def model(self, network: Network, path: str) -> str:
        """The file that certificates of a network are about: its own, or here, if inputs were fixed or it was cut."""
        return self._written(path, network.model) if network.changed else path

    def simpler(self, network: Network, path: str) -> str:
        """A copy of the model here, in which what depends on no input is computed: the checker reads more of these."""
        from ..formats.cut import with_constants

        return self._written(path, with_constants(network.model))

    def _written(self, path: str, model: bytes) -> str:
        made = self.path / f"{Path(path).stem}-{hashlib.sha256(model).hexdigest()[:12]}.onnx"
        made.write_bytes(model)
        return str(made)

    def keep(self, index: int, make: Callable[[], Certificate]) -> Certificate | None:
        """Write the certificate of an instance, or note why there is none: a verdict stands without its file."""
        name = f"{self.prefix}-{index:05d}.npz"
        try:
            certificate = make()
            write_certificate(self.path / name, certificate)
        except SofthullError as problem:
            self.missing[index] = str(problem)
            return None
        except Exception as problem:  # whatever fails here must not take the verdicts with it
            line = " ".join(str(problem).split())
            self.missing[index] = f"the writer failed ({type(problem).__name__}{': ' if line else ''}{line})"
            return None
        self.written[index] = {"certificate": name}
        if "bound" in certificate.header["property"]:
            self.written[index]["certificate_bound"] = certificate.header["property"]["bound"]
        return certificate

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


def _region(
    given: AnyPerturbation, x: np.ndarray
) -> tuple[float | None, str, tuple[float, float] | None, dict[str, Any]]:
    """The region around ``x [*shape]`` in the language of the checker: radius, norm, clip range, and all else.

    Where real numbers were rounded, as units of pixels are, the region is the larger one.
    """
    from ..regions import Alternatives, as_perturbation

    asked = as_perturbation(given)
    if isinstance(asked, Alternatives):
        listed = asked.options(x.astype(np.float64))
        positions = [p for p, options in enumerate(listed) for _ in options[1:]]
        parts = {"options": np.concatenate([o[1:] for o in listed]), "positions": np.array(positions, dtype=np.int64)}
        return None, "inf", None, parts | {"at_most": asked.at_most}
    norm = norm_of(asked)
    if asked.plain:
        return asked.radius, norm, asked.clip, {}
    found = asked.bounds(x.shape)
    own = x.astype(np.float64)
    ends = {"low": found.low and np.minimum(found.low[0], own), "high": found.high and np.maximum(found.high[1], own)}
    ends["scale"] = found.scale and found.scale[1]
    return found.eps, norm, None, {name: array for name, array in ends.items() if array is not None}


def norm_of(perturbation: Perturbation) -> str:
    """The norm of a perturbation as certificates write it: ``inf``, ``2`` or ``1``."""
    return "inf" if math.isinf(perturbation.norm) else str(int(perturbation.norm))
