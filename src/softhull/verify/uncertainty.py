"""How bad can the score of an ensemble become? A certified bound, with an attack beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attack.score import ScoreAttack
from ..bounds.rounding import check_rounding
from ..branch.tree import Cells
from ..deadlines import TimeLimits
from ..devices import device_of
from ..errors import InvalidInput, ModelError
from ..formats.inputs import fit_inputs, refuse_fixed_batch, warn_of_region
from ..formats.network import Network
from ..formats.torch_module import open_network
from ..graph.graph import Graph
from ..propagate.methods import Settings
from ..regions import AnyPerturbation, Region, as_perturbation
from ..show import data_frame, html_table, new_axes
from . import branching as branching  # registers its method, and walks with it
from .about import describe
from .engine import solve
from .ensemble import Joined, Layered
from .instances import Progress, answer_all
from .methods import SCORES, find_method
from .names import renamed
from .problem import Effort, Problem, Proof
from .programs import Members, taken
from .replay import contradictions
from .result import SCHEMA, finite, short_row
from .score_claims import ScoreClaims
from .scores import Score, find_score

# Instances worked on together: bounds the memory whatever the number of instances.
BATCH = 128

Networks = Network | Graph | torch.nn.Module | Sequence[Network | Graph | torch.nn.Module]


@dataclass(frozen=True, repr=False)
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
    worst_input: np.ndarray
    message: str = ""
    failed: bool = False  # nothing is certified, for the reason in ``message``
    predicted: int | None = None  # the class of the input itself
    new_class: int | None = None  # the class of ``worst_input``
    from_store: bool = False  # read from a run store, not computed here
    proof: Proof | None = field(default=None, compare=False)  # where it was asked for
    cells: Cells | None = field(default=None, compare=False)  # as in ``Record``
    cpu_seconds: float = field(default=0.0, compare=False)
    seconds: float = field(default=0.0, compare=False)

    @property
    def verdict(self) -> str:
        """``bounded``, ``unknown`` where the bound says nothing, or ``error``."""
        return "error" if self.failed else "bounded" if math.isfinite(self.bound) else "unknown"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; numbers that are not finite are None."""
        plain: dict[str, Any] = {"index": self.index, "label": self.label, "verdict": self.verdict}
        plain |= {"predicted": self.predicted, "new_class": self.new_class}
        plain |= {name: finite(getattr(self, name)) for name in ("bound", "attack", "clean")}
        plain |= {"cpu_seconds": self.cpu_seconds, "seconds": self.seconds}
        plain |= {"message": self.message} if self.message else {}
        plain |= {} if self.cells is None else {"cells": self.cells._asdict()}
        return plain | ({"from_store": True} if self.from_store else {})

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name} {getattr(self, name):.4g}" for name in ("bound", "attack", "clean"))
        return f"<ScoreRecord {self.index}: {self.verdict}, label {self.label}, {numbers}>"

    def _repr_html_(self) -> str:
        return html_table(f"Instance {self.index}", [short_row(self)])


@dataclass(frozen=True, repr=False)
class UncertaintyResult:
    """Records of all instances asked about, and the cost."""

    score: Score
    records: tuple[ScoreRecord, ...]
    cpu_seconds: float
    seconds: float
    rounding: str = "outward"  # bounds hold for the real-valued networks; "nearest": up to rounding
    interrupted: bool = False  # Ctrl-C cut the work short; the records hold what was found by then
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what was asked, as in ``Result``

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
        means = {name: finite(mean) for name, mean in self.means().items()}
        counts = {"error": sum(record.failed for record in self.records), "total": len(self)}
        return means | counts | {"cpu_seconds": self.cpu_seconds, "seconds": self.seconds}

    def to_dict(self) -> dict[str, Any]:
        """The whole answer as plain values for JSON."""
        instances = [record.to_dict() for record in self.records]
        own = {"score": self.score.name, "rounding": self.rounding, "interrupted": self.interrupted}
        return {"schema": SCHEMA, **self.about, **own, "summary": self.summary(), "instances": instances}

    def to_pandas(self) -> Any:
        """A data frame with one line per instance, inputs left out; needs the extra ``pandas``."""
        return data_frame([record.to_dict() for record in self.records])

    def plot(self, axes: Any = None) -> Any:
        """The bracket of every instance, from the clean score over the attack to the bound; returns the axes."""
        axes = new_axes(axes)
        order = sorted((r for r in self.records if not r.failed), key=lambda record: record.bound)
        places = range(len(order))
        for name, colour in (("bound", "#2f5fc4"), ("attack", "#c2410c"), ("clean", "#646b78")):
            axes.plot(places, [getattr(r, name) for r in order], ".", color=colour, label=_SIDES[name])
        axes.set_xlabel("instances, by bound")
        axes.set_ylabel(self.score.name)
        axes.legend()
        return axes

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {mean:.4g}" for name, mean in self.means().items())
        return f"<UncertaintyResult of {len(self)} instances, {self.score.name}: mean {means}>"

    def _repr_html_(self) -> str:
        return html_table(str(self), [record.to_dict() for record in self.records])

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


_SIDES = {"bound": "certified bound", "attack": "worst found by the attack", "clean": "unperturbed"}


@renamed(y="label")
def verify_uncertainty(
    networks: Networks,
    x: Any,
    label: Any,
    perturbation: AnyPerturbation,
    score: str | Score = "nll",
    method: str | Any = "auto",
    bound: str = "all",
    separate: bool = False,
    attack: ScoreAttack | None = None,
    timeout: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    rounding: str = "outward",
    device: torch.device | str | None = None,
    workers: int | str | None = None,
    progress: Progress | None = None,
    proofs: bool = False,
) -> UncertaintyResult:
    """Certified bound on the score of the mean probabilities of an ensemble over all inputs within the perturbation.

    An attack runs beside it: the true worst score lies between ``attack`` and ``bound`` of every record.

    Args:
        networks: One network or several; all see the same perturbed input, and their probabilities are averaged.
        x (array [B, ...]): Inputs, as for ``verify_robustness``.
        label (integers [B]): The class of every input.
        perturbation: The region around every input; a number is an l_inf radius.
        score: ``"nll"``, ``"brier"``, ``"confidence"``, ``"error"``, ``"margin"``, ``"entropy"`` or a ``Score``.
        method: ``"auto"``; ``"dual"``, ``"lp"``, ``"conic"``, ``"branch"`` for feedforward networks;
            ``"second-order"``, ``"linear"`` for all; or a method object.
        bound: The softmax bounds: ``"all"`` or a pair such as ``"er/lse"``.
        separate: Lets every network have its own worst input: looser, but cheaper for large ensembles.
        attack: Settings of the attack.
        timeout: Seconds per instance; the instances of a batch share their time.
        budget: Seconds for the whole call.
        seed: Of the attack.
        rounding: ``"outward"`` charges every rounding error to the bound, so that it holds for the networks as
            real-valued functions; ``"nearest"`` does not.
        device: Where to compute; by default where ``x`` is.
        workers: How many processes share the instances; ``"auto"`` is one per CPU if the work is long.
        progress: Called as ``progress(done, total)`` while instances are answered.
        proofs: Keep what was chosen to prove the bounds, for certificates.
    """
    check_rounding(rounding)
    limits = TimeLimits.of(timeout, budget)
    score, place, perturbation = find_score(score), device_of(x, device), as_perturbation(perturbation)
    networks = open_networks(networks, x)
    kind = find_method(method, SCORES)
    kind = kind.within(timeout) if isinstance(kind, Settings) else kind
    bounded, how = prepare(networks, kind, bound, separate, rounding, place)
    x, label = check_inputs(x, label, bounded.classes, networks)
    warn_of_region(x, perturbation)
    x, label = x.to(place), label.to(place)
    attack = attack or ScoreAttack(seed=seed)
    region = perturbation.around(x)
    outward = rounding == "outward"
    asked = _Asked(networks, bounded, how, score, attack, region, x, label, outward, limits, seed, proofs)
    found = answer_all(asked, torch.arange(len(x)), BATCH, workers, progress)
    records = tuple(found.records[i] for i in range(len(x)))
    more = {"score": score.name, "separate": separate, "timeout": timeout, "budget": budget, "seed": seed}
    about = describe("uncertainty", networks, x, label, perturbation, kind, bound=bound, **more, device=str(place))
    return UncertaintyResult(score, records, found.cpu_seconds, found.seconds, rounding, found.interrupted, about)


@dataclass(frozen=True)
class _Asked:
    """How bad can a score become? A question about inputs ``x`` with their regions and labels."""

    networks: Sequence[Network | Graph]
    bounded: Joined | Layered
    method: Any
    score: Score
    attack: ScoreAttack
    region: Region
    x: Tensor
    label: Tensor
    outward: bool
    limits: TimeLimits
    seed: int
    proofs: bool

    def apart(self, batch: Tensor) -> list[Tensor]:
        return [batch[part.cpu()] for part in self.bounded.alike(self.region.take(batch.to(self.x.device)))]

    def answer(self, batch: Tensor) -> list[ScoreRecord]:
        """The attack, then the best bound; a deadline leaves the best found so far."""
        bounded, score = self.bounded, self.score
        here, deadline = batch.to(self.x.device), self.limits.for_batch(len(batch))
        region, x, label = self.region.take(here), self.x[here], self.label[here]
        _, worst = self.attack.run(partial(_badness, bounded, score, label), region, [x], deadline)
        at = bounded.probabilities(worst)
        claims, effort = ScoreClaims(score, label, at, self.outward), Effort(deadline, attack="never")
        found = solve(Problem(bounded, region, worst, claims), self.method, effort)
        certified, attacked = score.from_badness(-found.bounds[0]), score.value(at, label)
        own = bounded.probabilities(x)
        clean = score.value(own, label)
        wrong = contradictions(self.networks, region, x, worst, self.seed)
        return [
            ScoreRecord(
                index,
                int(label[i]),
                self._nothing if i in wrong else float(certified[i]),
                float(attacked[i]),
                float(clean[i]),
                worst[i].cpu().numpy(),
                wrong.get(i, found.notes.get(i, found.stopped)),
                failed=i in wrong,
                predicted=int(own[i].argmax()),
                new_class=int(at[i].argmax()),
                proof=found.proof(i) if self.proofs else None,
                cells=found.cells.get(i),
                **found.spent.of(i),
            )
            for i, index in enumerate(batch.tolist())
        ]

    def nothing(self, index: int, why: str, failed: bool = False) -> ScoreRecord:
        x, label = self.x[index].cpu().numpy(), int(self.label[index])
        return ScoreRecord(index, label, self._nothing, math.nan, math.nan, x, why, failed)

    @property
    def _nothing(self) -> float:
        """The bound that says nothing."""
        return math.inf if self.score.worst_when == "high" else -math.inf


def open_networks(networks: Networks, x: Any) -> list[Network | Graph]:
    """The networks of an ensemble, or the only one there is; torch modules are exported with ``x[:1]`` as example."""
    if not isinstance(networks, Sequence | torch.nn.ModuleList):
        networks = [networks]
    return [open_network(network, x) for network in networks]


def _badness(bounded: Joined | Layered, score: Score, label: Tensor, x: Tensor) -> Tensor:
    return score.badness(bounded.probabilities(x), label)


def prepare(
    networks: Sequence[Network | Graph],
    method: Any,
    bound: str,
    separate: bool,
    rounding: str,
    device: torch.device,
    **more: Any,
) -> tuple[Joined | Layered, Any]:
    """The networks as convex programs or walks take them, and the method with all its settings."""
    if not networks:
        raise ModelError("an ensemble needs at least one network")
    labels = [n.path if isinstance(n, Network) else f"network {i}" for i, n in enumerate(networks)]
    graphs = [(n.graph if isinstance(n, Network) else n).to(torch.float64) for n in networks]
    return taken(method, Members(graphs, labels, bound, separate, rounding, device, **more))


def check_inputs(x: Any, y: Any, classes: int, networks: Sequence[Network | Graph]) -> tuple[Tensor, Tensor]:
    """Inputs ``[B, *shape]`` and labels ``[B]`` as tensors; InvalidInput where the networks cannot take them."""
    for network in networks:
        refuse_fixed_batch(network)
    fronts = [network.front if isinstance(network, Network) else None for network in networks]
    if len({front and front.model for front in fronts}) > 1:
        raise InvalidInput("the networks of an ensemble are perturbed at one tensor; theirs are computed differently")
    y = torch.as_tensor(y)
    x = fit_inputs(networks[0], x, len(y) if y.ndim else None)
    if y.shape != (len(x),) or y.is_floating_point() or y.dtype == torch.bool:
        raise InvalidInput(f"y must hold one whole-number label per instance, got {y.dtype} of shape {tuple(y.shape)}")
    if len(bad := torch.nonzero((y < 0) | (y >= classes))):
        where = int(bad[0, 0])
        known = f"the networks have classes 0 to {classes - 1}"
        raise InvalidInput(f"label {int(y[where])} of instance {where} is out of range; {known}")
    return x, y.long()
