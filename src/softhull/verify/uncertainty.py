"""How bad can the score of an ensemble become? A certified bound, with an attack beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attack.score import ScoreAttack
from ..bounds.rounding import check_rounding
from ..deadlines import deadline_after
from ..devices import device_of
from ..errors import InvalidInput, MissingExtra, ModelError, SofthullError
from ..formats.network import Network
from ..graph.graph import Graph
from ..propagate.methods import Auto, Branch, Linear, SecondOrder
from ..propagate.perturbation import Perturbation, Region
from ..solve.dual import Dual
from ..solve.layers import is_feedforward, stack_networks
from ..solve.softmax import parse_bounds
from .branching import ByBranching
from .ensemble import join
from .question import ScoreQuestion
from .replay import contradictions
from .scores import Score, find_score
from .stages import ByPrograms, ByWalks

METHODS = ("auto", "dual", "lp", "conic", "second-order", "linear", "branch")
# Instances worked on together: bounds the memory whatever the number of instances.
BATCH = 128

Solver = ByPrograms | ByWalks | ByBranching
Networks = Network | Graph | Sequence[Network | Graph]


@dataclass(frozen=True)
class ScoreRecord:
    """One instance: the bracket around its worst score within the perturbation, in the units of the score.

    ``bound`` is certified, ``attack`` is attained at ``worst_input``, ``clean`` is the score of the input itself:
    ``clean <= attack <= bound`` when the score is bad if high, the other way round when it is bad if low.
    """

    index: int
    label: int
    bound: float
    attack: float
    clean: float
    worst_input: np.ndarray = field(repr=False)
    message: str = ""
    failed: bool = False  # nothing is certified, for the reason in ``message``
    from_store: bool = False  # read from a run store, not computed here

    @property
    def verdict(self) -> str:
        """``bounded``, ``unknown`` where the bound says nothing, or ``error``."""
        return "error" if self.failed else "bounded" if math.isfinite(self.bound) else "unknown"

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"index": self.index, "label": self.label, "verdict": self.verdict}
        plain |= {name: _finite(getattr(self, name)) for name in ("bound", "attack", "clean")}
        plain |= {"message": self.message} if self.message else {}
        return plain | ({"from_store": True} if self.from_store else {})


@dataclass(frozen=True)
class UncertaintyResult:
    """Records of all instances asked about, the numbers behind the bounds, and the cost."""

    score: Score
    records: tuple[ScoreRecord, ...]
    certificates: tuple[dict[str, Any], ...] = field(repr=False)  # one per batch, pieces inside
    cpu_seconds: float
    seconds: float
    rounding: str = "outward"  # bounds hold for the real-valued networks; "nearest": up to rounding

    def __getitem__(self, position: int) -> ScoreRecord:
        return self.records[position]

    def __len__(self) -> int:
        return len(self.records)

    def column(self, name: str) -> np.ndarray:
        """``bound``, ``attack`` or ``clean`` of all instances."""
        return np.array([getattr(record, name) for record in self.records])

    def means(self) -> dict[str, float]:
        """Of ``bound``, ``attack`` and ``clean`` over the instances that did not fail; NaN where all failed."""
        kept = [record for record in self.records if not record.failed]
        names = ("bound", "attack", "clean")
        return {n: float(np.mean([getattr(r, n) for r in kept])) if kept else math.nan for n in names}

    def summary(self) -> dict[str, float | None]:
        """Means over the instances, how many failed, and the cost."""
        means = {name: _finite(mean) for name, mean in self.means().items()}
        counts = {"error": sum(record.failed for record in self.records), "total": len(self)}
        return means | counts | {"cpu_seconds": self.cpu_seconds, "seconds": self.seconds}

    def to_dict(self) -> dict[str, Any]:
        instances = [record.to_dict() for record in self.records]
        about = {"score": self.score.name, "rounding": self.rounding}
        return about | {"summary": self.summary(), "instances": instances}

    def __str__(self) -> str:
        sense = "at most" if self.score.worst_when == "high" else "at least"
        line = "{} of {} instances: certified {} {bound:.4f} on average, attack {attack:.4f}, clean {clean:.4f}".format(
            self.score.name, len(self), sense, **self.means()
        )
        if self.rounding != "outward":
            line += "; rounded to nearest, so not proved for the real-valued networks"
        if stored := sum(record.from_store for record in self.records):
            line += f"; {stored} read from the store (--recheck computes them again)"
        failed = [record for record in self.records if record.failed]
        if failed:
            line += f"; {len(failed)} failed and have no bound ({failed[0].message})"
        stopped = sum(bool(record.message) for record in self.records) - len(failed)
        if stopped:
            line += f"; {stopped} not solved to the end (raise the time limit or try another method)"
        return line


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def verify_uncertainty(
    networks: Networks,
    x: Any,
    y: Any,
    perturbation: Perturbation,
    score: str | Score = "nll",
    method: str | Any = "auto",
    bound: str = "all",
    separate: bool = False,
    attack: ScoreAttack | None = None,
    timeout: float | None = None,
    seed: int = 0,
    rounding: str = "outward",
    device: torch.device | str | None = None,
) -> UncertaintyResult:
    """Certified bound on the score of the mean probabilities of ``networks`` over all inputs within the perturbation.

    ``x [B, *shape]``, labels ``y [B]``. ``method``: ``"auto"``; ``"dual"``, ``"lp"``, ``"conic"``, ``"branch"`` for
    feedforward networks; ``"second-order"``, ``"linear"`` for all; or one of their settings objects. ``bound``: the
    softmax bounds, ``"all"`` or a pair such as ``"er/lse"``; ``separate`` lets every network choose its own input.
    After ``timeout`` seconds the best so far is returned. ``rounding``: ``"outward"`` charges every rounding error to
    the bound, so that it is true for the networks as real-valued functions; ``"nearest"`` does not. ``device``: where
    to compute; by default where ``x`` is.
    """
    check_rounding(rounding)
    began, cpu = time.monotonic(), time.process_time()
    deadline = deadline_after(timeout)
    score, place = find_score(score), device_of(x, device)
    solver = find_solver(networks, find_method(method), bound, separate, rounding)
    x, y = check_inputs(x, y, solver.classes, networks)
    solver, x, y = solver.to(place), x.to(place), y.to(place)
    attack = attack or ScoreAttack(seed=seed)
    asked = _Asked(as_list(networks), solver, score, attack, rounding == "outward", deadline, seed)
    records: dict[int, ScoreRecord] = {}
    certificates = []
    waiting = list(torch.arange(len(x)).split(BATCH))
    while waiting:
        batch = waiting.pop(0)
        here, label = x[batch.to(place)], y[batch.to(place)]
        try:
            answered, proof = asked.answer(perturbation.around(here), here, label)
            certificates.append(proof)
        except (InvalidInput, MissingExtra):
            raise
        except (SofthullError, RuntimeError, MemoryError, ValueError) as problem:
            if len(batch) > 1:  # one instance must not take the others with it
                waiting = list(batch.split(max(1, len(batch) // 4))) + waiting
                continue
            line = " ".join(str(problem).split()) or type(problem).__name__
            answered = [asked.failure(here[0], int(label[0]), line)]
        records |= {i: replace(record, index=i) for i, record in zip(batch.tolist(), answered)}
    cost = time.process_time() - cpu, time.monotonic() - began
    return UncertaintyResult(
        score, tuple(records[i] for i in range(len(x))), tuple(certificates), *cost, rounding=rounding
    )


@dataclass(frozen=True)
class _Asked:
    """Everything about a question but its instances."""

    networks: Sequence[Network | Graph]
    solver: Solver
    score: Score
    attack: ScoreAttack
    outward: bool
    deadline: float
    seed: int

    def answer(self, region: Region, x: Tensor, label: Tensor) -> tuple[list[ScoreRecord], dict[str, Any]]:
        """Records of one batch, numbered from 0, and the numbers behind them."""
        solver, score = self.solver, self.score
        _, worst = self.attack.run(partial(_badness, solver, score, label), region, [x], self.deadline)
        at = solver.probabilities(worst)
        found = solver.highest(ScoreQuestion(score, region, label, worst, at, self.outward, self.deadline))
        certified, attacked = score.from_badness(found.badness), score.value(at, label)
        clean = score.value(solver.probabilities(x), label)
        wrong = contradictions(self.networks, region, x, worst, self.seed)
        records = [
            ScoreRecord(
                i,
                int(label[i]),
                self._nothing if i in wrong else float(certified[i]),
                float(attacked[i]),
                float(clean[i]),
                worst[i].cpu().numpy(),
                wrong.get(i, found.notes.get(i, "")),
                failed=i in wrong,
            )
            for i in range(len(label))
        ]
        return records, {"pieces": list(found.certificates)}

    def failure(self, x: Tensor, label: int, line: str) -> ScoreRecord:
        return ScoreRecord(0, label, self._nothing, math.nan, math.nan, x.cpu().numpy(), line, failed=True)

    @property
    def _nothing(self) -> float:
        """The bound that says nothing."""
        return math.inf if self.score.worst_when == "high" else -math.inf


def as_list(networks: Networks) -> list[Network | Graph]:
    """The networks of an ensemble, or the only one there is."""
    return [networks] if isinstance(networks, Network | Graph) else list(networks)


def _badness(solver: Solver, score: Score, label: Tensor, x: Tensor) -> Tensor:
    return score.badness(solver.probabilities(x), label)


def find_method(method: str | Any) -> Any:
    """A method by name (``METHODS``) with its default settings, or the settings themselves."""
    if not isinstance(method, str):
        return method
    if method == "lp":
        from ..solve.cutting import CuttingPlanes

        return CuttingPlanes()
    if method == "conic":
        from ..solve.conic import Conic

        return Conic()
    known: dict[str, Any] = {"auto": Auto, "dual": Dual, "second-order": SecondOrder, "linear": Linear}
    known["branch"] = Branch
    if method not in known:
        raise InvalidInput(f"unknown method {method!r}; choose {', '.join(METHODS[:-1])} or {METHODS[-1]}")
    return known[method]()


def find_solver(networks: Networks, method: Any, bound: str, separate: bool, rounding: str) -> Solver:
    """Convex programs or walks, as the method says; ``Auto`` leaves only networks that are not feedforward to walks."""
    listed = as_list(networks)
    if not listed:
        raise ModelError("an ensemble needs at least one network")
    labels = [n.path if isinstance(n, Network) else f"network {i}" for i, n in enumerate(listed)]
    graphs = [(n.graph if isinstance(n, Network) else n).to(torch.float64) for n in listed]
    softmax = parse_bounds(bound)
    if isinstance(method, Branch):
        if separate:
            raise InvalidInput("method 'branch' bounds all networks over one input; leave separate out")
        return ByBranching(stack_networks(graphs, labels), method, softmax)
    if isinstance(method, Auto) and all(is_feedforward(graph) for graph in graphs):
        method = Dual()
    if not isinstance(method, Linear | SecondOrder | Auto):
        return ByPrograms(stack_networks(graphs, labels), method, softmax, separate)
    if bound != "all":
        if softmax.lower != softmax.upper:
            raise InvalidInput(f"bound {bound!r}: networks with attention take one bound for both sides, such as hull")
        method = replace(method, bound=softmax.lower[0])
    whole = join(graphs, labels)
    return ByWalks(whole.alone if separate else (whole,), replace(method, rounding=rounding))


def check_inputs(x: Any, y: Any, classes: int, networks: Networks) -> tuple[Tensor, Tensor]:
    """Inputs ``[B, *shape]`` and labels ``[B]`` as tensors; InvalidInput where the networks cannot take them."""
    x = torch.as_tensor(x, dtype=torch.float64)
    y = torch.as_tensor(y)
    first = networks if isinstance(networks, Network | Graph) else networks[0]
    shape = first.input_shape
    size = torch.Size(shape).numel()
    if x.ndim < 1 or len(x) == 0 or x[0].numel() != size:
        raise InvalidInput(f"x has shape {tuple(x.shape)}; [instances, *{shape}] is what the networks take")
    if not x.isfinite().all():
        raise InvalidInput("x has an entry that is not a finite number")
    if y.shape != (len(x),) or y.is_floating_point() or y.dtype == torch.bool:
        raise InvalidInput(f"y must hold one whole-number label per instance, got {y.dtype} of shape {tuple(y.shape)}")
    if len(bad := torch.nonzero((y < 0) | (y >= classes))):
        where = int(bad[0, 0])
        known = f"the networks have classes 0 to {classes - 1}"
        raise InvalidInput(f"label {int(y[where])} of instance {where} is out of range; {known}")
    return x.reshape(len(x), *shape), y.long()
