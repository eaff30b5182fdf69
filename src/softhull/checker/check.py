"""Does what a certificate claims follow? Accepted, or rejected with the first step that does not."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flint import arb, ctx

from ..errors import one_line, quoted
from .balls import PRECISION, Balls, Floats, exact, round_down, round_up
from .certificate import Certificate, CertificateError, Refused, read_array, read_certificate, read_members
from .forms import unit_rows
from .network import Networks, Softmax, View
from .positions import Places
from .replay import Functions, Knowledge, Region, Rule, Rules
from .scores import score_bound
from .statement import Statement, read_statement, whole

LARGEST_STEP = 1 << 19  # coefficients held at once: rows times the largest node
LARGEST_PROOF = 1 << 28  # the same over all steps: bounds the time
LARGEST_DATA = 1 << 30  # bytes


@dataclass(frozen=True)
class Checked:
    """The verdict; ``reason`` says what was proved, or the first step that fails and why.

    ``statement`` is the whole of what was accepted.
    """

    accepted: bool
    reason: str
    step: int | None = None
    steps: int = 0
    statement: Statement | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))  # parts of it come from files

    def __str__(self) -> str:
        """The verdict in one line, and below it what was accepted."""
        first = f"{'accepted' if self.accepted else 'rejected'}: {self.reason}"
        return "\n  ".join([first, *(self.statement.lines() if self.statement is not None else ())])

    def to_dict(self) -> dict[str, Any]:
        verdict = "accepted" if self.accepted else "rejected"
        statement = None if self.statement is None else self.statement.to_dict()
        return {
            "verdict": verdict,
            "reason": self.reason,
            "step": self.step,
            "steps": self.steps,
            "statement": statement,
        }


def check_certificate(
    path: str | Path,
    models: Sequence[str | Path],
    data: str | Path | None = None,
    index: int | None = None,
    *,
    eps: float | None = None,
    norm: str | float | None = None,
    clip: Sequence[float] | None = None,
    label: int | None = None,
) -> Checked:
    """Whether the claim of a certificate follows for these model files, and for this input where one is named.

    ``index``, ``eps``, ``norm``, ``clip`` and ``label`` demand that the certificate is about exactly these; one about
    anything else is rejected. A file that cannot be read raises a SofthullError; everything else is a verdict.
    """
    with ctx.workprec(PRECISION):
        certificate = read_certificate(path)
        networks = Networks(models)
        try:
            statement = read_statement(certificate.header, models, networks.digests, data)
            statement.demand(index, eps, norm, clip, label)
            return _Check(certificate, networks, statement).run(index)
        except Refused as problem:
            return Checked(False, str(problem))
        except CertificateError as problem:
            raise CertificateError(f"{path}: {problem}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as problem:
            raise CertificateError(f"{path}: malformed ({type(problem).__name__}: {str(problem)[:80]})") from None


class _Check:
    def __init__(self, certificate: Certificate, networks: Networks, statement: Statement) -> None:
        self.certificate, self.header, self.networks = certificate, certificate.header, networks
        self.statement = statement
        self.region = self._region()
        self.known = Knowledge(networks, self.region)
        self.scores: list[tuple[Floats, Floats]] = []
        self.spent = 0

    def run(self, index: int | None) -> Checked:
        if self.statement.data is not None:
            self._same_input(self.statement.data, index)
        steps = self.header["steps"]
        for number, step in enumerate(steps):
            try:
                self._step(number, step)
            except Refused as problem:
                what = f"step {number} ({quoted(step.get('claim'))} of {quoted(step.get('tensor'))}): {problem}"
                return Checked(False, what, number, len(steps))
        claim, words = conclusion(self.statement.property, self.networks, self.known, self.scores)
        found = self.statement.concluded(words, claim, bool(np.array_equal(self.region.lower, self.region.upper)))
        return Checked(True, str(found), None, len(steps), found)

    def _region(self) -> Region:
        x = self.certificate.array(self.header["input"]["array"], "f").ravel()
        if sha256(x.astype("<f8").tobytes()) != self.statement.input_sha256:
            raise Refused("the input of the certificate is not the one its header names")
        if x.size != self.networks.input_size or not np.isfinite(x).all():
            raise Refused(f"the input is not {self.networks.input_size} finite numbers")
        return region_of(x, self.statement.eps, self.statement.norm, self.statement.clip)

    def _same_input(self, data: str | Path, index: int | None) -> None:
        members = read_members(data, LARGEST_DATA)
        if "x.npy" not in members:
            raise CertificateError(f"{data}: no array x; the checker reads npz files")
        x = read_array("x", members["x.npy"])
        at = self.statement.index if index is None else index
        if at is None or not 0 <= at < len(x):
            raise CertificateError(f"{data}: there is no input {at} among {len(x)}; name one with --index")
        values = x[at].astype(np.float64) / (255 if x.dtype == np.uint8 else 1)
        if not np.array_equal(values.ravel(), self.certificate.array(self.header["input"]["array"], "f").ravel()):
            raise Refused(f"input {at} of {data} is not the one that the certificate is about")
        labels = read_array("y", members["y.npy"]) if "y.npy" in members else None
        if labels is not None and float(labels[at]) != self.statement.property["label"]:
            raise Refused(f"input {at} of {data} has label {float(labels[at]):g}, the certificate speaks of another")

    # Steps

    def _step(self, number: int, step: Mapping[str, Any]) -> None:
        claim = step["claim"]
        if claim == "planes":
            node = self._view(step["tensor"]).node
            below, above = (self.certificate.array(step[side], "f") for side in ("below", "above"))
            self._spend(below.size + above.size)
            self.known.planes[number] = self.known.derive_planes(node, below, above)
            return
        if claim in ("logits", "form"):
            self._second_order(self._view(step["tensor"]).node, step)
            return
        lower = self.certificate.array(step["lower"], "f")
        if claim == "score":
            upper = np.full(lower.shape, np.inf)
            rows = self.certificate.array(step["rows"], "f")
            start = [(view, exact(rows)) for view in self.networks.probabilities]
            self._prove(start, lower, upper, step)
            self.scores.append((rows, lower))
            return
        view, upper = self._view(step["tensor"]), self.certificate.array(step["upper"], "f")
        if claim == "functions":
            rows = self.certificate.array(step["rows"], "f")
            if not view.index.distinct:  # the sum of two floats may be none
                raise Refused("functions of a tensor that repeats entries")
            self._prove([(view, exact(rows))], lower, upper, step)
            spread = np.zeros((len(rows), view.index.among))
            spread[:, view.index.flat] = rows
            self.known.functions[number] = Functions(view.node, spread, lower, upper)
            return
        if claim not in ("entries", "differences"):
            raise CertificateError(f"unknown claim {quoted(claim)}")
        chosen = self.certificate.array(step["entries"], "i")
        shape = (len(lower),) if claim == "entries" else (len(lower), 2)
        if chosen.shape != shape or chosen.min(initial=0) < 0 or chosen.max(initial=0) >= view.size:
            raise Refused("entries out of range")
        if chosen.size * view.size > LARGEST_STEP:
            raise Refused("more rows than the checker allows; split the step")
        places = Places(chosen, view.size)
        self._prove([(view, unit_rows(places))], lower, upper, step)
        learn = self.known.learn_entries if claim == "entries" else self.known.learn_differences
        learn(view, places, lower, upper)

    def _second_order(self, index: int, step: Mapping[str, Any]) -> None:
        """Differences of the logits of a softmax from the forms before it, or its own form from planes."""
        node = self.networks.nodes[index]
        if not isinstance(node, Softmax):
            raise Refused("the form of a node that is no softmax")
        self._spend(node.rows.size * node.rows.shape[1] * max(self.known.forms.count, node.size))
        if step["claim"] == "form":
            planes = self.known.planes.get(step["planes"])
            if planes is None or planes.node != index:
                raise Refused("planes that were not derived for this node")
            self.known.forms.learn_softmax(index, planes)
        else:
            self.known.learn_logits(node)

    def _prove(self, start: list[tuple[View, Balls]], lower: Floats, upper: Floats, step: Mapping[str, Any]) -> None:
        """The claimed bounds against those of a walk for every row and its negative, where they claim anything."""
        rows = start[0][1]
        if any(r.ndim != 2 or r.shape[1] != v.size for v, r in start):
            raise Refused("rows of the wrong length")
        if lower.shape != (len(rows),) or upper.shape != lower.shape or np.isnan(lower).any() or np.isnan(upper).any():
            raise Refused("bounds of the wrong length, or a NaN")
        if (lower == np.inf).any() or (upper == -np.inf).any():
            raise Refused("an infinite bound")
        sides = np.concatenate((lower, -upper))
        wanted = np.flatnonzero(sides > -np.inf)
        if any("split" in rule for rule in step.get("rules", {}).values()):
            self.spent += 8 * self.known.forms.count**2  # matrices over the noise
        self._spend(len(wanted) * max(node.size for node in self.networks.nodes))
        if not len(wanted):
            return
        both = [(view, np.concatenate((r, -r))[wanted]) for view, r in start]
        found = self.known.lower_bounds(both, self._rules(step), bool(step.get("stops", False)))
        for row, value, claimed in zip(wanted.tolist(), found, sides[wanted].tolist()):
            if not value >= arb(claimed):
                side, place = ("lower", row) if row < len(rows) else ("upper", row - len(rows))
                raise Refused(
                    f"{side} bound of row {place} does not follow: {claimed!r} claimed, {value.str(8)} proved"
                )

    def _rules(self, step: Mapping[str, Any]) -> Rules:
        found: dict[int, Rule] = {}
        for name, rule in step.get("rules", {}).items():
            found[self._view(name).node] = {key: self._plain(value) for key, value in rule.items()}
        return lambda index, _: found.get(index)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            if value not in self.certificate.arrays:
                raise CertificateError(f"there is no array {quoted(value)}")
            return self.certificate.arrays[value]
        return value

    def _view(self, name: Any) -> View:
        found = self.networks.tensors.get(name) if isinstance(name, str) else None
        if found is None:
            raise Refused(f"the models have no tensor {quoted(name)}")
        return found

    def _spend(self, size: int) -> None:
        self.spent += size
        if size > LARGEST_STEP or self.spent > LARGEST_PROOF:
            raise Refused("more rows than the checker allows; split the step")


def region_of(x: Floats, eps: float, norm: str, clip: Sequence[float] | None) -> Region:
    """The inputs within ``eps`` of x, inside ``clip`` where given; ends rounded outward.

    Theorem: every entry of such an input is within ``eps`` of that of x, in any of the three norms, and in ``clip``.
    """
    if not (isinstance(eps, int | float) and math.isfinite(eps) and eps >= 0) or norm not in ("inf", "1", "2"):
        raise Refused("a region with an invalid radius or norm")
    radius = arb(float(eps))
    lower = np.array([round_down(arb(v) - radius) for v in x.tolist()])
    upper = np.array([round_up(arb(v) + radius) for v in x.tolist()])
    if clip is not None:
        low, high = (float(end) for end in clip)
        if not ((x >= low) & (x <= high)).all():
            raise Refused("the input lies outside of the clip range")
        lower, upper = np.maximum(lower, low), np.minimum(upper, high)
    return Region(lower, upper) if norm == "inf" else Region(lower, upper, x, float(eps), int(norm))


def conclusion(
    claim: Mapping[str, Any], networks: Networks, known: Knowledge, scores: list[tuple[Floats, Floats]]
) -> tuple[dict[str, Any], str]:
    """The property as data and in words, where what is known implies it; otherwise Refused.

    Theorem: class y stays ahead of k where a lower bound on ``x_y - x_k`` over the region is above 0; a network of one
    logit keeps its class where the sign of the logit is proved.
    """
    label = claim["label"]
    logits = networks.logits[0]
    classes = logits.size
    if not whole(label) or not 0 <= label < max(2, classes):
        raise Refused(f"label {quoted(label)} is out of range")
    if claim["kind"] == "score":
        words = score_bound(claim, networks, known, scores)
        return {name: claim[name] for name in ("kind", "score", "label", "bound")}, words
    if claim["kind"] != "class" or len(networks.logits) != 1:
        raise Refused("a property that the checker does not know")
    found = {"kind": "class", "label": label}
    if classes == 1:
        lower, upper = (float(end.ravel()[0]) for end in known.box(logits))
        if not (lower > 0 if label else upper < 0):
            raise Refused("the sign of the output is not proved")
        return found | {"rivals": [1 - label], "all_rivals": True}, f"class {label} is kept"
    rivals = claim["rivals"]
    if not isinstance(rivals, list) or not all(whole(r) and 0 <= r < classes for r in rivals):
        raise Refused("rivals out of range")
    if not rivals or label in rivals:
        raise Refused("no rivals, or the label among them")
    for rival in rivals:
        if not known.difference(logits, label, rival) > 0:
            raise Refused(f"it is not proved that class {label} stays ahead of class {rival}")
    named = sorted(set(rivals))
    left = classes - 1 - len(named)
    whom = f"all {classes - 1} other classes"
    if left:
        whom = f"{len(named)} of {classes - 1} other classes ONLY, nothing is said about the rest; these are {named}"
    return found | {"rivals": named, "all_rivals": not left}, f"class {label} stays ahead of {whom}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
