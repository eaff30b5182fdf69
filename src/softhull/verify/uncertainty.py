"""How bad can the score of an ensemble become? A certified bound, with an attack beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attack.score import ScoreAttack
from ..bounds.rounding import check_rounding
from ..devices import device_of, moved
from ..errors import InvalidInput, ModelError
from ..formats.network import Network
from ..graph.graph import Graph
from ..propagate.perturbation import Perturbation, Region
from ..solve.dual import Dual
from ..solve.layers import Stack, stack_networks
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax import SoftmaxBounds, parse_bounds
from ..solve.solution import Solution, trivial_bound
from .scores import Piece, Score, find_score

# Instances relaxed together: bounds the memory whatever the number of instances.
BATCH = 128


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

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"index": self.index, "label": self.label}
        plain |= {name: _finite(getattr(self, name)) for name in ("bound", "attack", "clean")}
        return plain | ({"message": self.message} if self.message else {})


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

    def summary(self) -> dict[str, float | None]:
        """Means over the instances, and the cost."""
        means = {name: _finite(float(self.column(name).mean())) for name in ("bound", "attack", "clean")}
        return means | {"total": len(self), "cpu_seconds": self.cpu_seconds, "seconds": self.seconds}

    def to_dict(self) -> dict[str, Any]:
        instances = [record.to_dict() for record in self.records]
        about = {"score": self.score.name, "rounding": self.rounding}
        return about | {"summary": self.summary(), "instances": instances}

    def __str__(self) -> str:
        sense = "at most" if self.score.worst_when == "high" else "at least"
        bound, attack, clean = (self.column(name).mean() for name in ("bound", "attack", "clean"))
        line = (
            f"{self.score.name} of {len(self)} instances: certified {sense} {bound:.4f} on average, "
            f"attack {attack:.4f}, clean {clean:.4f}"
        )
        if self.rounding != "outward":
            line += "; rounded to nearest, so not proved for the real-valued networks"
        stopped = sum(bool(record.message) for record in self.records)
        if stopped:
            line += f"; {stopped} not solved to the end (raise the time limit or try another method)"
        return line


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def verify_uncertainty(
    networks: Network | Graph | Sequence[Network | Graph],
    x: Any,
    y: Any,
    perturbation: Perturbation,
    score: str | Score = "nll",
    method: str | Any = "dual",
    bound: str = "all",
    separate: bool = False,
    attack: ScoreAttack | None = None,
    timeout: float | None = None,
    seed: int = 0,
    rounding: str = "outward",
    device: torch.device | str | None = None,
) -> UncertaintyResult:
    """Certified bound on the score of the mean probabilities of ``networks`` over all inputs within the perturbation.

    ``x [B, *shape]``, labels ``y [B]``. ``method``: ``"dual"``, ``"lp"``, ``"conic"`` or one of their settings objects;
    ``bound``: the softmax bounds, ``"all"`` or a pair such as ``"er/lse"``; ``separate`` lets every network choose its
    own input. After ``timeout`` seconds the best so far is returned. ``rounding``: ``"outward"`` charges every rounding
    error to the bound, so that it is true for the networks as real-valued functions; ``"nearest"`` does not.
    ``device``: where to compute; by default where ``x`` is.
    """
    check_rounding(rounding)
    if timeout is not None and not timeout >= 0:
        raise InvalidInput(f"timeout must be a number of seconds of at least 0, got {timeout}")
    began, cpu = time.monotonic(), time.process_time()
    deadline = None if timeout is None else began + timeout
    score, solver, chosen = find_score(score), find_method(method), parse_bounds(bound)
    stacks = _stacks(networks)
    place = device_of(x, device)
    x, y = _inputs(x, y, stacks, networks)
    stacks, x, y = moved(stacks, place), x.to(place), y.to(place)
    records: list[ScoreRecord] = []
    certificates = []
    for start in range(0, len(x), BATCH):
        part = slice(start, start + BATCH)
        around = perturbation.around(x[part])
        question = _Question(stacks, around, x[part], y[part], score, separate, rounding == "outward")
        answer = question.answer(solver, chosen, attack or ScoreAttack(seed=seed), deadline)
        records += answer.records(start, y[part])
        certificates.append(answer.certificate)
    cost = time.process_time() - cpu, time.monotonic() - began
    return UncertaintyResult(score, tuple(records), tuple(certificates), *cost, rounding)


def find_method(method: str | Any) -> Any:
    """A method by name with its default settings, or the settings themselves."""
    if not isinstance(method, str):
        return method
    if method == "dual":
        return Dual()
    if method == "lp":
        from ..solve.cutting import CuttingPlanes

        return CuttingPlanes()
    if method == "conic":
        from ..solve.conic import Conic

        return Conic()
    raise InvalidInput(f"unknown method {method!r}; choose dual, lp or conic")


def _stacks(networks: Network | Graph | Sequence[Network | Graph]) -> list[Stack]:
    listed = [networks] if isinstance(networks, Network | Graph) else list(networks)
    if not listed:
        raise ModelError("an ensemble needs at least one network")
    labels = [n.path if isinstance(n, Network) else f"network {i}" for i, n in enumerate(listed)]
    return stack_networks([(n.graph if isinstance(n, Network) else n).to(torch.float64) for n in listed], labels)


def _inputs(
    x: Any, y: Any, stacks: list[Stack], networks: Network | Graph | Sequence[Network | Graph]
) -> tuple[Tensor, Tensor]:
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
    classes = stacks[0].classes
    if len(bad := torch.nonzero((y < 0) | (y >= classes))):
        where = int(bad[0, 0])
        known = f"the networks have classes 0 to {classes - 1}"
        raise InvalidInput(f"label {int(y[where])} of instance {where} is out of range; {known}")
    return x.reshape(len(x), *shape), y.long()


@dataclass(frozen=True)
class _Answer:
    bound: Tensor
    attack: Tensor
    clean: Tensor
    worst_input: Tensor
    certificate: dict[str, Any]
    notes: dict[int, str]

    def records(self, start: int, y: Tensor) -> list[ScoreRecord]:
        return [
            ScoreRecord(
                start + i,
                int(y[i]),
                float(self.bound[i]),
                float(self.attack[i]),
                float(self.clean[i]),
                self.worst_input[i].cpu().numpy(),
                self.notes.get(i, ""),
            )
            for i in range(len(y))
        ]


def ensemble_probabilities(stacks: list[Stack], x: Tensor) -> Tensor:
    """Mean class probabilities ``[B, K]`` of the ensemble."""
    logits = torch.cat([stack.values(x.flatten(1))[-1] for stack in stacks], 1)
    return logits.softmax(-1).mean(1)


@dataclass(frozen=True)
class _Question:
    """One batch of instances."""

    stacks: list[Stack]
    region: Region
    x: Tensor
    y: Tensor
    score: Score
    separate: bool
    outward: bool

    def answer(self, method: Any, chosen: SoftmaxBounds, attack: ScoreAttack, deadline: float | None) -> _Answer:
        relaxation = relax(self.stacks, self.region, chosen, self.outward)
        _, worst = attack.run(lambda x: self.score.badness(self._p(x), self.y), self.region, [self.x], deadline)
        at = self._p(worst)
        pieces = self.score.pieces(self.y, *relaxation.probabilities())
        floor = _reached(pieces, at)
        highest = torch.full_like(floor, -torch.inf)
        notes: dict[int, str] = {}
        certificates: list[dict[str, Any]] = []
        for piece in pieces:
            best = torch.full_like(floor, torch.inf)
            point = at
            for _ in range(piece.rounds):
                plane = piece.tangent(point)
                trivial = self._sum(trivial_bound(relaxation, plane.coefficients), plane.offset)
                best = torch.minimum(best, trivial)
                open_ = torch.nonzero(~(trivial < floor))[:, 0]
                if not len(open_):
                    break
                solution = self._solve(relaxation.take(open_), plane.coefficients[open_], method, deadline)
                best[open_] = torch.minimum(best[open_], self._sum(solution.bound, plane.offset[open_]))
                point = point.index_copy(0, open_, solution.probabilities)
                notes |= {int(open_[k]): note for k, note in solution.notes.items()}
                proof = {"coefficients": plane.coefficients[open_], "offset": plane.offset[open_], "instances": open_}
                certificates.append(proof | solution.certificate)
            highest = torch.maximum(highest, best)
        bound = self.score.from_badness(highest)
        attacked, clean = self.score.value(at, self.y), self.score.value(self._p(self.x), self.y)
        return _Answer(bound, attacked, clean, worst, {"pieces": certificates}, notes)

    def _sum(self, bound: Tensor, offset: Tensor) -> Tensor:
        total = bound + offset
        return torch.nextafter(total, torch.full_like(total, torch.inf)) if self.outward else total

    def _p(self, x: Tensor) -> Tensor:
        return ensemble_probabilities(self.stacks, x)

    def _solve(self, relaxation: Relaxation, coefficients: Tensor, method: Any, deadline: float | None) -> Solution:
        if not self.separate:
            return method.solve(relaxation, coefficients, deadline)
        alone = [method.solve(part, coefficients, deadline) for part in relaxation.networks_alone()]
        bounds = torch.stack([solution.bound for solution in alone])
        return Solution(
            bounds.mean(0) + relaxation.share(len(alone)) * bounds.abs().mean(0),
            torch.stack([solution.probabilities for solution in alone]).mean(0),
            alone[0].x,
            {"networks": [solution.certificate for solution in alone]},
            {k: note for solution in alone for k, note in solution.notes.items()},
        )


def _reached(pieces: list[Piece], p: Tensor) -> Tensor:
    """What the pieces reach at the attacked inputs: a piece that cannot get there need not be bounded further."""
    planes = [piece.tangent(p) for piece in pieces]
    return torch.stack([(plane.coefficients * p).sum(1) + plane.offset for plane in planes]).amax(0)
