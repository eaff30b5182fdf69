"""Does what a certificate claims follow? Accepted, or rejected with the first step that does not."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flint import arb, ctx

from ..errors import ModelError, one_line, quoted
from .balls import PRECISION, Balls, Floats, exact, round_down, round_up
from .cells import MOST_CELLS
from .certificate import Certificate, CertificateError, Refused, read_array, read_certificate, read_members
from .forms import unit_rows
from .network import Networks, Softmax, View
from .positions import Places
from .ranges import ranges_follow
from .replay import Choices, Functions, Knowledge, Region, Rule, Rules
from .scores import score_bound
from .statement import Statement, read_statement, whole
from .tree import cells_of

LARGEST_STEP = 1 << 19  # coefficients held at once: rows times the largest node
LARGEST_PROOF = 1 << 28  # the same over all steps: bounds the time
LARGEST_DATA = 1 << 30  # bytes


class Accepted(Protocol):
    """What was accepted: in lines of words, and as plain data."""

    def lines(self) -> list[str]:
        """What was accepted, line by line, for people."""

    def to_dict(self) -> dict[str, Any]:
        """What was accepted, as plain values."""


@dataclass(frozen=True)
class Checked:
    """The verdict; ``reason`` says what was proved, or the first step that fails and why.

    ``statement`` is the whole of what was accepted.
    """

    accepted: bool
    reason: str
    step: int | None = None
    steps: int = 0
    statement: Accepted | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))  # parts of it come from files

    def __str__(self) -> str:
        """The verdict in one line, and below it what was accepted."""
        first = f"{'accepted' if self.accepted else 'rejected'}: {self.reason}"
        return "\n  ".join([first, *(self.statement.lines() if self.statement is not None else ())])

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values; the statement only where it was accepted."""
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

    Args:
        path: The certificate.
        models: The model files, in the order in which they were certified.
        data: A data file; input and label of the certificate are compared with it.
        index: The number of the input in the data.
        eps: The radius.
        norm: ``"inf"``, ``"2"`` or ``"1"``.
        clip: The two ends of the clip range.
        label: The class.
    """
    with ctx.workprec(PRECISION):
        certificate = read_certificate(path)
        networks = networks_of(models, certificate.header)
        inputs = None if data is None else DataFile(data)

        def check() -> Checked:
            statement = read_statement(certificate.header, models, networks.digests, data, certificate.arrays)
            statement.demand(index, eps, norm, clip, label)
            return replay_certificate(certificate, networks, statement, index, inputs)

        return judge(path, check)


def networks_of(models: Sequence[str | Path], header: Any) -> Networks:
    """The networks of some files; where these cannot be read, it says which files the certificate is about instead."""
    try:
        return Networks(models)
    except ModelError as problem:
        listed = header.get("models") if isinstance(header, dict) else None
        names = [str(m.get("file")) for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        if not names or names == [Path(model).name for model in models]:
            raise
        about = ", ".join(map(quoted, names[:3]))
        raise ModelError(f"the certificate is about {about}, another file than was given; {problem}") from None


def judge(path: str | Path, check: Callable[[], Checked]) -> Checked:
    """The verdict on a file: what does not follow is rejected, what is malformed a CertificateError of one line."""
    try:
        return check()
    except Refused as problem:
        return Checked(False, str(problem))
    except CertificateError as problem:
        raise CertificateError(f"{path}: {problem}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as problem:
        raise CertificateError(f"{path}: malformed ({type(problem).__name__}: {str(problem)[:80]})") from None


class DataFile:
    """Inputs, and labels where there are some, of an npz file."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        members = read_members(path, LARGEST_DATA)
        if "x.npy" not in members:
            raise CertificateError(f"{path}: no array x; the checker reads npz files")
        self._x = read_array("x", members["x.npy"])
        self._y = read_array("y", members["y.npy"]) if "y.npy" in members else None

    def __len__(self) -> int:
        return len(self._x)

    @property
    def labelled(self) -> bool:
        """Whether the file has labels."""
        return self._y is not None

    def input(self, at: int | None) -> Floats:
        """One input as a row; bytes are shades from 0 to 1."""
        if at is None or not 0 <= at < len(self):
            raise CertificateError(f"{self.path}: there is no input {at} among {len(self)}; name one with --index")
        values = self._x[at].astype(np.float64) / (255 if self._x.dtype == np.uint8 else 1)
        return np.asarray(values.ravel())

    def label(self, at: int) -> float | None:
        """The label at this place; None where the file has none."""
        return None if self._y is None else float(self._y[at])


def replay_certificate(
    certificate: Certificate, networks: Networks, statement: Statement, index: int | None, inputs: DataFile | None
) -> Checked:
    """The verdict on what a certificate states; where ``inputs`` are given, it must be about ``index`` of them."""
    return _Check(certificate, networks, statement).run(index, inputs)


class _Check:
    def __init__(self, certificate: Certificate, networks: Networks, statement: Statement) -> None:
        self.certificate, self.header, self.networks = certificate, certificate.header, networks
        self.statement = statement
        if max(node.size for node in networks.nodes) > LARGEST_STEP:
            raise Refused("a model with a tensor that is too large for any step")
        self.region = self._region()
        self.known = Knowledge(networks, self.region)
        self.scores: list[tuple[Floats, Floats]] = []
        self.spent, self.count = 0, 0  # coefficients and steps, those of cells with them
        self.whole: Knowledge | None = None  # in a cell: what is known of the whole region

    def run(self, index: int | None, inputs: DataFile | None) -> Checked:
        """Replays all steps; a verdict with the first that does not follow."""
        if inputs is not None:
            self._same_input(inputs, index)
        if "tree" in self.header:
            raise Refused("a tree in place of steps, as older versions wrote them; write the certificate again")
        for number, step in enumerate(self.header["steps"]):
            try:
                self._step(number, step)
            except Refused as problem:
                return Checked(False, f"{_described(number, step)}: {problem}", number, self.count)
        claim, words = conclusion(self.statement.property, self.networks, self.known, self.scores)
        moving = int((self.region.lower < self.region.upper).sum())
        found = self.statement.concluded(words, claim, moving, self.networks.input_size)
        return Checked(True, str(found), None, self.count, found)

    def _region(self) -> Region:
        x = self.certificate.array(self.header["input"]["array"], "f").ravel()
        if sha256(x.astype("<f8").tobytes()) != self.statement.input_sha256:
            raise Refused("the input of the certificate is not the one its header names")
        if x.size != self.networks.input_size or not np.isfinite(x).all():
            raise Refused(f"the input is not {self.networks.input_size} finite numbers")
        return region_of(x, self.statement.eps, self.statement.norm, self.statement.clip, self._parts())

    def _parts(self) -> dict[str, Any]:
        """What a region is made of beside its radius: arrays, by name, and the number of positions that may change."""
        stated = self.header["region"]
        kinds = {"scale": "f", "low": "f", "high": "f", "options": "f", "positions": "i"}
        found: dict[str, Any] = {n: self.certificate.array(stated[n], k) for n, k in kinds.items() if n in stated}
        return found | {name: stated[name] for name in ("at_most",) if name in stated}

    def _same_input(self, inputs: DataFile, index: int | None) -> None:
        at = self.statement.index if index is None else index
        values = inputs.input(at)
        if not np.array_equal(values, self.certificate.array(self.header["input"]["array"], "f").ravel()):
            raise Refused(f"input {at} of {inputs.path} is not the one that the certificate is about")
        label = inputs.label(at or 0)
        if label is not None and label != self.statement.property["label"]:
            raise Refused(f"input {at} of {inputs.path} has label {label:g}, the certificate speaks of another")

    # Steps

    def _step(self, number: int, step: Mapping[str, Any]) -> None:
        """Derives one step and learns its claim, or refuses it."""
        self.count += 1
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
        if "tree" in step:
            self._prove_in_cells(number, step, view, places, lower, upper)
        else:
            self._prove([(view, unit_rows(places))], lower, upper, step)
        learn = self.known.learn_entries if claim == "entries" else self.known.learn_differences
        learn(view, places, lower, upper)

    def _prove_in_cells(
        self, number: int, step: Mapping[str, Any], view: View, places: Places, lower: Floats, upper: Floats
    ) -> None:
        """The claimed bounds against what is known in the end of every cell.

        Theorem: what holds in every one of some cells holds in whatever they cover.
        """
        check_bounds(lower, upper, len(lower))
        for cell, (low, high) in enumerate(self._known_in_cells(number, step, view, places)):
            if not ((low >= lower).all() and (high <= upper).all()):
                raise Refused(f"the bounds are not proved in cell {cell}")

    def _known_in_cells(
        self, number: int, step: Mapping[str, Any], view: View, places: Places
    ) -> list[tuple[Floats, Floats]]:
        """What the steps of every cell prove of entries, or of differences of pairs of them.

        They may use what was proved of the whole region before; nothing of what they learn leaves their cell.
        """
        if self.whole is not None:
            raise Refused("cells inside of a cell")
        tree = step["tree"]
        entries, values = self.certificate.array(tree["entries"], "i"), self.certificate.array(tree["values"], "f")
        minus = self.certificate.array(tree["minus"], "i") if "minus" in tree else None
        names = tree.get("tensors", [None] * entries.size)
        tensors = [self.networks.whole(0) if name is None else self._view(name) for name in names]
        cells = cells_of(self.networks, self.region, tensors, entries, values, minus)
        if not isinstance(tree["cells"], list) or len(tree["cells"]) != len(cells):
            raise Refused(f"a tree of {len(cells)} cells needs the steps of each, and no others")
        found, whole, scores = [], self.known, self.scores
        whole.box(view)  # once for all cells
        self.whole = whole
        try:
            for place, (cell, steps) in enumerate(zip(cells, tree["cells"])):
                self._spend(whole.size + sum(self.networks.nodes[cut.view.node].size for cut in cell.cuts))
                self.known, self.scores = whole.within(cell.region, cell.cuts), []
                for n, own in enumerate(steps):
                    try:
                        self._step(number + n, own)
                    except Refused as problem:
                        raise Refused(f"cell {place}, {_described(n, own)}: {problem}") from None
                found.append(self._known(step["claim"], view, places))
        finally:
            self.known, self.scores, self.whole = whole, scores, None
        return found

    def _known(self, claim: str, view: View, places: Places) -> tuple[Floats, Floats]:
        """What is known of some entries, or of the differences of pairs of them."""
        if claim == "entries":
            return self.known.box(view.at(places))
        pairs = places.at.tolist()
        ends = [(self.known.difference(view, i, j), -self.known.difference(view, j, i)) for i, j in pairs]
        low, high = np.array(ends).reshape(-1, 2).T
        return low, high

    def _second_order(self, index: int, step: Mapping[str, Any]) -> None:
        """Differences of the logits of a softmax from the forms before it, or its own form from planes."""
        node = self.networks.nodes[index]
        if not isinstance(node, Softmax):
            raise Refused("the form of a node that is no softmax")
        own = bool(step.get("own", False))
        if own:  # of each, matrices over the noise
            self.spent += 8 * node.rows.size * node.rows.shape[1] * self.known.forms.count
        self._spend(node.rows.size * node.rows.shape[1] * max(self.known.forms.count, node.size))
        if step["claim"] == "form":
            planes = self.known.planes.get(step["planes"])
            if planes is None or planes.node != index:
                raise Refused("planes that were not derived for this node")
            self.known.forms.learn_softmax(index, planes)
        else:
            self.known.learn_logits(index, own)

    def _prove(self, start: list[tuple[View, Balls]], lower: Floats, upper: Floats, step: Mapping[str, Any]) -> None:
        """The claimed bounds against those of a walk for every row and its negative, where they claim anything."""
        rows = start[0][1]
        if any(r.ndim != 2 or r.shape[1] != v.size for v, r in start):
            raise Refused("rows of the wrong length")
        check_bounds(lower, upper, len(rows))
        sides = np.concatenate((lower, -upper))
        wanted = np.flatnonzero(sides > -np.inf)
        rules = step.get("rules", {}).values()
        if any({"split", "fit", "bend", "kept"} & rule.keys() for rule in rules):
            self.spent += 8 * self.known.forms.count**2  # matrices over the noise
        widest = max(node.size for node in self.networks.nodes)
        # Forms of all entries of a kink.
        self.spent += 8 * widest**2 * sum("bend" in rule or "kept" in rule for rule in rules)
        for pairs in (self._plain(rule["pairs"]) for rule in rules if "pairs" in rule):
            self.spent += 8 * widest * (widest + np.size(pairs))  # what pairs leave of a product
        for rule in (rule for rule in rules if "fit" in rule):
            self.spent += (32 if "price" in rule else 16) * MOST_CELLS * np.size(self._plain(rule["fit"]))
        self._spend(len(wanted) * max(len(self.known.cuts), widest))
        if not len(wanted):
            return
        both = [(view, np.concatenate((r, -r))[wanted]) for view, r in start]
        on_cuts = self.certificate.array(step["cuts"], "f") if "cuts" in step else None
        found = self.known.lower_bounds(both, self._rules(step), bool(step.get("stops", False)), on_cuts)
        for row, value, claimed in zip(wanted.tolist(), found, sides[wanted].tolist()):
            if not proves(value, claimed):
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


def proves(derived: arb, claimed: float) -> bool:
    """Whether a claimed lower bound follows; an infinity is what is left of something unknown, whatever its sign."""
    return bool(derived.is_finite() and derived >= arb(claimed))


def check_bounds(lower: Floats, upper: Floats, count: int) -> None:
    """Refuse bounds that are not ``count`` numbers, from below perhaps -inf and from above perhaps inf."""
    if lower.shape != (count,) or upper.shape != lower.shape or np.isnan(lower).any() or np.isnan(upper).any():
        raise Refused("bounds of the wrong length, or a NaN")
    if (lower == np.inf).any() or (upper == -np.inf).any():
        raise Refused("an infinite bound")


def _described(number: int, step: Any) -> str:
    """A step by its number, its claim and its tensor."""
    claim, tensor = (step.get(name) if isinstance(step, dict) else None for name in ("claim", "tensor"))
    return f"step {number} ({quoted(claim)} of {quoted(tensor)})"


def region_of(
    x: Floats, eps: float | None, norm: str, clip: Sequence[float] | None, parts: Mapping[str, Any] | None = None
) -> Region:
    """The inputs within ``eps`` of x, inside ``clip`` where given; ends rounded outward.

    Theorem: every entry of such an input is within ``eps`` of that of x, in any of the three norms, and in ``clip``.
    ``parts``: ``scale``, the unit of every entry in the norm, so that it is within ``eps * scale``; ``low`` and
    ``high``, more limits, without an ``eps`` the whole region; or ``options`` and ``positions``, see ``choices``.
    """
    parts = parts or {}
    if norm not in ("inf", "1", "2"):
        raise Refused("a region with an invalid radius or norm")
    if parts.keys() & {"options", "positions", "at_most"}:
        if eps is not None or norm != "inf" or clip is not None:
            raise Refused("alternatives with a radius, a norm or a clip range")
        return choices(x, parts)
    low, high, scale = (_entries(parts.get(name), x, name) for name in ("low", "high", "scale"))
    if scale is not None and not (np.isfinite(scale) & (scale >= 0)).all():
        raise Refused("a unit that is no finite number of at least 0")
    if eps is None:
        if low is None or high is None or scale is not None or norm != "inf":
            raise Refused("a region without radius is a box of two limits")
        lower, upper = low, high
    else:
        if not (isinstance(eps, int | float) and math.isfinite(eps) and eps >= 0):
            raise Refused("a region with an invalid radius or norm")
        steps = [arb(float(eps)) * arb(s) for s in (np.ones(x.size) if scale is None else scale).tolist()]
        lower = np.array([round_down(arb(v) - step) for v, step in zip(x.tolist(), steps)])
        upper = np.array([round_up(arb(v) + step) for v, step in zip(x.tolist(), steps)])
    if clip is not None:
        limits = [np.full(x.size, float(end)) for end in clip]
        low = limits[0] if low is None else np.maximum(low, limits[0])
        high = limits[1] if high is None else np.minimum(high, limits[1])
    for limit, outside in ((low, np.less), (high, np.greater)):
        if limit is not None and (np.isnan(limit).any() or outside(x, limit).any()):
            raise Refused("the input lies outside of the clip range")
    lower = lower if low is None else np.maximum(lower, low)
    upper = upper if high is None else np.minimum(upper, high)
    if not (np.isfinite(lower) & np.isfinite(upper)).all():
        raise Refused("a region without end")
    if norm == "inf":
        return Region(lower, upper)
    return Region(lower, upper, x, float(eps or 0), int(norm), scale)


def _entries(array: Any, x: Floats, name: str) -> Floats | None:
    """An array over the entries of the input."""
    if array is not None and array.size != x.size:
        raise Refused(f"{name} is not one number for each of the {x.size} entries of the input")
    return None if array is None else np.asarray(array, dtype=np.float64).ravel()


def choices(x: Floats, parts: Mapping[str, Any]) -> Choices:
    """The input x with some of its positions replaced: finitely many inputs.

    ``options [N, d]`` may stand at ``positions [N]``, where position p is the p-th run of d entries. Theorem: every
    entry lies between the least and the largest of what may stand there, x itself included.
    """
    options, positions, most = parts.get("options"), parts.get("positions"), parts.get("at_most")
    if options is None or positions is None or options.ndim != 2 or positions.shape != (len(options),):
        raise Refused("alternatives need rows of options and the position of each")
    d = options.shape[1]
    if not d or x.size % d or not np.isfinite(options).all():
        raise Refused("options that are no finite rows of the input")
    count = x.size // d
    if positions.min(initial=0) < 0 or positions.max(initial=0) >= count:
        raise Refused("an option at a position that the input does not have")
    if not (most is None or (whole(most) and most >= 0)):
        raise Refused("a number of positions that is no whole number")
    own = x.reshape(count, d)
    if most == 0:  # nothing may be replaced
        options, positions = options[:0], positions[:0]
    listed = tuple(np.concatenate((own[p : p + 1], options[positions == p])) for p in range(count))
    lower, upper = (np.concatenate([end(rows, axis=0) for rows in listed]) for end in (np.min, np.max))
    return Choices(lower, upper, options=listed, at_most=most)


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
    if claim["kind"] == "ranges":
        return ranges_follow(claim, networks, known, scores)
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
    """The hash by which certificates name files and inputs."""
    return hashlib.sha256(content).hexdigest()
