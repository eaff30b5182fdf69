"""The search: change certificates, let the checker prove as much as it will, and compare with what is true.

Most forgeries are *greedy*: every claim is raised to what the checker derives from the changed choices, so that a rule
that proves too much shows at once. The others stand as they were written. Steps that a forgery shares with its seed are
not replayed: the checker goes on from a copy of what it knew there (a test compares that with whole files).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flint import ctx

from softhull.certificates.write import NoProof
from softhull.checker.balls import PRECISION, lower_floats
from softhull.checker.certificate import Certificate, CertificateError, Refused
from softhull.checker.check import _Check, check_bounds, conclusion
from softhull.checker.forms import Forms
from softhull.checker.network import Networks, Softmax
from softhull.checker.replay import Knowledge
from softhull.checker.statement import read_statement
from softhull.errors import ModelError

from .networks import Instance, instances, refused
from .truth import Claims, Truth
from .writer import Writer, honest, own_copy

MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, CertificateError)
GREEDY = 0.7  # of the forgeries
QUIET = ("planes", "form", "logits")  # claims that ask for no rules
MOST_SEEDS = 24  # of one instance


class Greedy(_Check):
    """The checker with claims raised to what it derives."""

    derived: Any = None

    def _step(self, number: int, step: Mapping[str, Any]) -> None:
        """Bounds get arrays of their own, which ``_prove`` may write to; so do those of the steps of cells."""
        own: Any = step
        if self.whole is None:
            own = self.header["steps"][number] = own_copy(step)
        for side in ("lower", "upper"):
            held = self.certificate.arrays.get(str(own.get(side)))
            if held is not None:
                own[side] = f"{side} {len(self.certificate.arrays)}"
                self.certificate.arrays[own[side]] = held.copy()
        super()._step(number, own)

    def _prove_in_cells(self, number: int, step: Any, view: Any, places: Any, lower: Any, upper: Any) -> None:
        check_bounds(lower, upper, len(lower))
        lows, highs = zip(*self._known_in_cells(number, step, view, places))
        lower[np.isfinite(lower)] = np.min(lows, 0)[np.isfinite(lower)]
        upper[np.isfinite(upper)] = np.max(highs, 0)[np.isfinite(upper)]
        check_bounds(lower, upper, len(lower))

    def _prove(self, start: Any, lower: Any, upper: Any, step: Mapping[str, Any]) -> None:
        claimed = np.flatnonzero(np.concatenate((lower.ravel(), -upper.ravel())) > -np.inf)
        lower[np.isfinite(lower)] = -1e300
        upper[np.isfinite(upper)] = 1e300
        honest_walk = self.known.lower_bounds

        def walk(*args: Any, **options: Any) -> Any:
            self.derived = honest_walk(*args, **options)
            return self.derived

        self.known.lower_bounds = walk  # type: ignore[method-assign]
        try:
            super()._prove(start, lower, upper, step)
        finally:
            del self.known.lower_bounds
        sides = np.concatenate((lower, -upper))
        if len(claimed):
            sides[claimed] = lower_floats(self.derived).astype(np.float64)
        lower[:], upper[:] = sides[: len(lower)], -sides[len(lower) :]


def fork(check: _Check) -> Any:
    """A copy that can go on by itself; networks, regions and other things that never change are shared."""
    copies: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: copied(v) for key, v in value.items()}
        if isinstance(value, list):
            return list(value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.copy()
        if isinstance(value, Knowledge | Forms | _Check):
            if id(value) not in copies:
                copies[id(value)] = other = object.__new__(type(value))
                shared = ("networks", "certificate", "header")
                other.__dict__.update({k: v if k in shared else copied(v) for k, v in vars(value).items()})
            return copies[id(value)]
        return value

    return copied(check)


@dataclass
class Seed:
    """A certificate, what the checker knew before each of its steps and after them, and the gap of its last claim."""

    certificate: Certificate
    states: list[_Check]
    gap: float


@dataclass
class Tally:
    """Counts, what was exercised, and every false statement that was accepted."""

    outcomes: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)  # kinds of claims and rules in accepted certificates
    changed: Counter[str] = field(default_factory=Counter)  # and in changed steps that were followed
    false: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    forgeries: int = 0

    def merge(self, other: Tally) -> None:
        self.outcomes += other.outcomes
        self.accepted += other.accepted
        self.changed += other.changed
        self.false += other.false
        self.crashes += other.crashes
        self.forgeries += other.forgeries

    def __str__(self) -> str:
        names = ("refused", "malformed", "accepted and true", "accepted and false")
        counts = ", ".join(f"{self.outcomes[name]} {name}" for name in names)
        return f"{self.forgeries} forgeries: {counts}; {self.outcomes['steps']} changed steps followed"


def kinds(step: Any) -> Iterator[str]:
    """The kind of a claim and of its rules."""
    if not isinstance(step, dict):
        return
    yield str(step.get("claim"))
    if isinstance(step.get("tree"), dict):
        yield "tree"
        for cell in step["tree"].get("cells", ()):
            for own in cell:
                yield from kinds(own)
    if "cuts" in step:
        yield "cuts"
    rules = step.get("rules")
    for rule in rules.values() if isinstance(rules, dict) and step.get("claim") not in QUIET else ():
        for key in (
            "weights",
            "price",
            "fit",
            "kept",
            "slope",
            "planes",
            "pairs",
            "functions",
            "split",
            "multipliers",
            "below",
        ):
            if key in rule:
                yield f"rule {key}"
                break


@dataclass
class Known:
    """What all hunts on an instance share: what is true, and the honest proofs."""

    truth: Truth
    proofs: list[Certificate]


KNOWN: dict[str, Known] = {}


def know(instance: Instance) -> None:
    """Writes the honest proofs of an instance, once in a process; those of a file that is refused are not written."""
    if instance.name not in KNOWN:
        truth = Truth(instance)
        with suppress(ModelError), ctx.workprec(PRECISION):
            KNOWN[instance.name] = Known(truth, list(honest(instance, truth, Networks(instance.paths))))


class Hunt:
    """The search on one instance; honest proofs that the checker, as it is now, refuses are written again."""

    def __init__(self, instance: Instance, seed: int) -> None:
        known = KNOWN.get(instance.name)
        self.instance, self.truth = instance, known.truth if known else Truth(instance)
        self.rng = np.random.default_rng([seed, *instance.name.encode()])
        self.tally = Tally()
        self.seeds: list[Seed] = []
        self.refusal: str | None = None
        try:
            with ctx.workprec(PRECISION):
                self.networks = Networks(instance.paths)
                try:
                    for certificate in known.proofs if known else honest(instance, self.truth, self.networks):
                        self._start(certificate)
                except Refused:
                    if not known:
                        raise
                    self.seeds.clear()
                    for certificate in honest(instance, self.truth, self.networks):
                        self._start(certificate)
        except (ModelError, NoProof, Refused) as problem:
            self.refusal = str(problem)
        if self.seeds:
            pool = self.truth.pool_of(self.seeds[0].certificate.header, self.seeds[0].certificate.arrays)
            self.writer = Writer(instance, self.networks, pool, self.rng)
        self.honest = len(self.seeds)

    def _start(self, certificate: Certificate) -> None:
        found = self._replay(certificate, None, _Check)
        assert not isinstance(found, str), found
        gap = self._look(certificate, found, len(certificate.header["steps"]), 0, True)
        self.seeds.append(Seed(certificate, found, gap))

    def run(self, count: int) -> Tally:
        """Forgeries, until one that is false was accepted."""
        with ctx.workprec(PRECISION), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(count):
                self.tally.forgeries += 1
                if self.seeds:
                    self._try()
                else:
                    self.tally.outcomes["refused"] += 1
                if self.tally.false:
                    break
        return self.tally

    def _try(self) -> None:
        rng = self.rng
        pick, other = (self.seeds[int(i)] for i in rng.integers(0, len(self.seeds), 2))
        forgery = self.writer.forge(pick.certificate, other.certificate)
        greedy = rng.random() < GREEDY
        certificate, first = forgery.certificate, forgery.first
        states: list[_Check] | str
        before = None if first is None else pick.states[: first + 1]
        done: list[_Check] = []
        try:
            states = self._replay(certificate, before, Greedy if greedy else _Check, done)
        except Refused:
            states = "refused"
        except MALFORMED:
            states = "malformed"
        except Exception as problem:
            states = "malformed"
            self.tally.crashes.append(f"{self.instance.name}: {type(problem).__name__}: {problem}")
        begin = first or 0
        followed = max(len(done) - 1, begin) if done else begin
        gap = self._look(certificate, done, followed, begin, not isinstance(states, str))
        if isinstance(states, str):
            self.tally.outcomes[states] += 1
            return
        if self.tally.false:
            return
        self.tally.outcomes["accepted and true"] += 1
        if first is not None and (gap < pick.gap or rng.random() < 0.1):
            self._adopt(Seed(certificate, done, gap))

    def _replay(
        self,
        certificate: Certificate,
        before: list[_Check] | None,
        kind: type[_Check],
        states: list[_Check] | None = None,
    ) -> list[_Check] | str:
        """The checker's states before each step and at the end, appended to ``states`` as far as it comes."""
        states = [] if states is None else states
        steps = certificate.header["steps"]
        statement = read_statement(certificate.header, self.instance.paths, self.networks.digests, None)
        if before is None:
            check: Any = kind(certificate, self.networks, statement)
            states.append(fork(check))
        else:
            states += before
            check = fork(before[-1])
            check.__class__ = kind
            check.certificate, check.header, check.statement = certificate, certificate.header, statement
        for number in range(len(states) - 1, len(steps)):
            check._step(number, steps[number])
            states.append(fork(check))
        conclusion(statement.property, self.networks, check.known, check.scores)
        return states

    def _look(
        self, certificate: Certificate, states: Sequence[_Check], followed: int, begin: int, accepted: bool
    ) -> float:
        """Compare what was proved, and an accepted conclusion, with the truth; returns the gap of the last claim."""
        gap = np.inf
        if not states:
            return gap
        header, arrays = certificate.header, certificate.arrays
        pool = self.truth.pool_of(header, arrays)
        self.tally.outcomes["steps"] += followed - begin
        for number in range(begin, followed):
            step = header["steps"][number]
            self.tally.changed.update(kinds(step))
            claims = self._learned(states[number + 1], step) or self.truth.claims(pool, step, arrays)
            if claims is not None and claims.tensor in pool.floats:
                gap = pool.gap(claims)
                self._note(pool.breaks(claims), f"step {number}", certificate)
            if "tree" in step:
                for where, cell in zip(pool.cells(step["tree"], arrays), step["tree"]["cells"]):
                    for own in cell:
                        claims = self.truth.claims(pool, own, arrays)
                        if claims is not None:
                            self._note(pool.breaks(claims, where), f"a cell of step {number}", certificate)
        if accepted:
            for step in header["steps"]:
                self.tally.accepted.update(kinds(step))
            self.tally.accepted[str(header["property"].get("score", header["property"]["kind"]))] += 1
            self._note(self.truth.false_property(pool, header["property"]), "property", certificate)
        return gap

    def _learned(self, state: _Check, step: Mapping[str, Any]) -> Claims | None:
        """What is known of the differences of logits after a step that says nothing but that they are known."""
        if step["claim"] != "logits":
            return None
        node = self.networks.nodes[self.networks.tensors[step["tensor"]].node]
        assert isinstance(node, Softmax)
        pairs = [(int(i), int(j)) for row in node.rows.at for i in row for j in row if i != j]
        lower = np.array([state.known.difference(node.x, i, j) for i, j in pairs])
        rows = np.zeros((len(pairs), self.networks.nodes[node.x.node].size))
        for row, (i, j) in zip(rows, pairs):
            row[node.x.index.flat[i]] += 1
            row[node.x.index.flat[j]] -= 1
        known = lower > -np.inf
        return Claims(self.networks.names[node.x.node], rows[known], lower[known]) if known.any() else None

    def _note(self, false: str | None, where: str, certificate: Certificate) -> None:
        if false is not None:
            self.tally.outcomes["accepted and false"] += 1
            self.tally.false.append(f"{self.instance.name}, {where}: {false}")
            self.found = certificate

    def _adopt(self, seed: Seed) -> None:
        if len(seed.certificate.header["steps"]) > 40:
            return
        if len(self.seeds) < MOST_SEEDS:
            self.seeds.append(seed)
        else:
            self.seeds[int(self.rng.integers(self.honest, MOST_SEEDS))] = seed


def shares(among: Sequence[Instance], count: int) -> list[int]:
    """How many forgeries every instance gets."""
    total = sum(instance.share for instance in among)
    found = [count * instance.share // total for instance in among]
    found[0] += count - sum(found)
    return found


def one_round(seed: int, count: int) -> Tally:
    """Forgeries of all families, on networks written for the occasion."""
    with TemporaryDirectory() as folder:
        return search([*instances(Path(folder)), *refused(Path(folder))], count, seed)


def search(among: Sequence[Instance], count: int, seed: int) -> Tally:
    """Forgeries of all instances."""
    tally = Tally()
    for instance, part in zip(among, shares(among, count)):
        know(instance)
        tally.merge(Hunt(instance, seed).run(part))
    return tally
