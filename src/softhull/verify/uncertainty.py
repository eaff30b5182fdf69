"""How bad can the score of an ensemble become? A certified bound, with an attack beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..attack.score import ScoreAttack
from ..errors import InvalidInput, ModelError
from ..formats.network import Network
from ..graph.graph import Graph
from ..propagate.perturbation import Perturbation
from ..solve.dual import Dual
from ..solve.layers import Stack, stack_networks
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax import SoftmaxBounds, parse_bounds
from ..solve.solution import Solution, trivial_bound
from .scores import Score, find_score

# Instances relaxed together: bounds the memory whatever the number of instances.
BATCH = 128


@dataclass(frozen=True)
class UncertaintyResult:
    """For every instance the bracket around its worst score within the perturbation, in the units of the score.

    ``bound`` is certified; ``attack`` is attained at ``worst_input``; ``clean`` is the score of the input itself. When
    the score is bad if low, ``bound <= attack <= clean``, otherwise ``clean <= attack <= bound``.
    """

    score: Score
    bound: Tensor
    attack: Tensor
    clean: Tensor
    worst_input: Tensor = field(repr=False)
    certificate: list[dict[str, Any]] = field(repr=False)
    cpu_seconds: float
    seconds: float
    notes: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        sense = "at most" if self.score.worst_when == "high" else "at least"
        line = (
            f"{self.score.name} of {len(self.bound)} instances: certified {sense} {self.bound.mean():.4f} on average, "
            f"attack {self.attack.mean():.4f}, clean {self.clean.mean():.4f}"
        )
        if self.notes:
            line += f"; {len(self.notes)} not solved to the end (raise the time limit or try another method)"
        return line


def verify_uncertainty(
    networks: Network | Graph | Sequence[Network | Graph],
    x: Tensor,
    y: Tensor,
    perturbation: Perturbation,
    score: str | Score = "nll",
    method: str | Any = "dual",
    bound: str = "all",
    separate: bool = False,
    attack: ScoreAttack | None = None,
    timeout: float | None = None,
) -> UncertaintyResult:
    """Certified bound on the score of the mean probabilities of ``networks`` over all inputs within the perturbation.

    ``x [B, *shape]``, labels ``y [B]``. ``method``: ``"dual"``, ``"lp"``, ``"conic"`` or one of their settings objects;
    ``bound``: the softmax bounds, ``"all"`` or a pair such as ``"er/lse"``; ``separate`` lets every network choose its
    own input. After ``timeout`` seconds the best so far is returned.
    """
    began, cpu = time.monotonic(), time.process_time()
    deadline = None if timeout is None else began + timeout
    score, solver, chosen = find_score(score), find_method(method), parse_bounds(bound)
    stacks = _stacks(networks)
    x, y = _inputs(x, y, stacks, networks)
    pieces = [
        _batch(
            stacks, x[i : i + BATCH], y[i : i + BATCH], perturbation, score, solver, chosen, separate, attack, deadline
        )
        for i in range(0, len(x), BATCH)
    ]
    return UncertaintyResult(
        score,
        torch.cat([piece.bound for piece in pieces]),
        torch.cat([piece.attack for piece in pieces]),
        torch.cat([piece.clean for piece in pieces]),
        torch.cat([piece.worst_input for piece in pieces]),
        [piece.certificate for piece in pieces],
        time.process_time() - cpu,
        time.monotonic() - began,
        {i * BATCH + k: note for i, piece in enumerate(pieces) for k, note in piece.notes.items()},
    )


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
    return stack_networks([n.graph if isinstance(n, Network) else n for n in listed], labels)


def _inputs(
    x: Tensor, y: Tensor, stacks: list[Stack], networks: Network | Graph | Sequence[Network | Graph]
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
    if bad := [int(label) for label in y if not 0 <= int(label) < classes]:
        raise InvalidInput(f"label {bad[0]} is out of range; the networks have {classes} classes, from 0")
    return x.reshape(len(x), *shape), y.long()


@dataclass(frozen=True)
class _Piece:
    bound: Tensor
    attack: Tensor
    clean: Tensor
    worst_input: Tensor
    certificate: dict[str, Any]
    notes: dict[int, str]


def ensemble_probabilities(stacks: list[Stack], x: Tensor) -> Tensor:
    """Mean class probabilities ``[B, K]`` of the ensemble."""
    logits = torch.cat([stack.values(x.flatten(1))[-1] for stack in stacks], 1)
    return logits.softmax(-1).mean(1)


def _batch(
    stacks: list[Stack],
    x: Tensor,
    y: Tensor,
    perturbation: Perturbation,
    score: Score,
    method: Any,
    chosen: SoftmaxBounds,
    separate: bool,
    attack: ScoreAttack | None,
    deadline: float | None,
) -> _Piece:
    region = perturbation.around(x)
    clean = score.value(ensemble_probabilities(stacks, x), y)
    relaxation = relax(stacks, region, chosen)
    least, most = relaxation.probabilities()

    def badness(inputs: Tensor) -> Tensor:
        return score.badness(ensemble_probabilities(stacks, inputs), y)

    _, worst = (attack or ScoreAttack()).run(badness, region, [x], deadline)
    attacked = score.value(ensemble_probabilities(stacks, worst), y)
    pieces = score.pieces(y, least, most)
    floor = _badness_floor(score, ensemble_probabilities(stacks, worst), pieces)
    highest = torch.full_like(clean, -torch.inf)
    notes: dict[int, str] = {}
    certificates = []
    for piece in pieces:
        at = ensemble_probabilities(stacks, worst)
        best: Tensor | None = None
        for _ in range(piece.rounds):
            plane = piece.tangent(at)
            trivial = trivial_bound(relaxation, plane.coefficients) + plane.offset
            best = trivial if best is None else torch.minimum(best, trivial)
            open_ = torch.nonzero(trivial >= floor)[:, 0]
            if not len(open_):
                break
            solution = _solve(relaxation, plane.coefficients, open_, method, separate, deadline)
            best[open_] = torch.minimum(best[open_], solution.bound + plane.offset[open_])
            at = at.clone()
            at[open_] = solution.probabilities
            notes |= {int(open_[k]): note for k, note in solution.notes.items()}
            certificates.append(
                {"coefficients": plane.coefficients, "offset": plane.offset, "instances": open_} | solution.certificate
            )
        assert best is not None
        highest = torch.maximum(highest, best)
    return _Piece(score.from_badness(highest), attacked, clean, worst, {"pieces": certificates}, notes)


def _badness_floor(score: Score, p: Tensor, pieces: list[Any]) -> Tensor:
    """What the pieces reach at the attacked inputs: a piece that cannot get there need not be bounded further."""
    reached = [(piece.tangent(p).coefficients * p).sum(1) + piece.tangent(p).offset for piece in pieces]
    return torch.stack(reached).amax(0)


def _solve(
    relaxation: Relaxation,
    coefficients: Tensor,
    instances: Tensor,
    method: Any,
    separate: bool,
    deadline: float | None,
) -> Solution:
    part = relaxation.take(instances)
    if not separate:
        return method.solve(part, coefficients[instances], deadline)
    bounds, probabilities, certificates = [], [], []
    notes: dict[int, str] = {}
    x = None
    for single in part.networks_alone():
        solution = method.solve(single, coefficients[instances], deadline)
        bounds.append(solution.bound)
        probabilities.append(solution.probabilities)
        certificates.append(solution.certificate)
        notes |= solution.notes
        x = solution.x
    assert x is not None
    return Solution(
        torch.stack(bounds).mean(0), torch.stack(probabilities).mean(0), x, {"networks": certificates}, notes
    )
