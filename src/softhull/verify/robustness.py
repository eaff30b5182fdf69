"""Does every input of a region keep its class, or stay out of a set of outputs?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..boxes import as_index
from ..deadlines import OUT_OF_TIME, TimeLimits, deadline_after, interrupted, interruptible, passed, seconds_left
from ..devices import device_of, moved
from ..errors import InvalidInput
from ..formats.inputs import fit_inputs, warn_of_labels, warn_of_region
from ..formats.network import Network
from ..formats.torch_module import open_network
from ..formats.vnnlib import Disjunct, Specification
from ..graph.graph import Graph
from ..propagate.methods import Method
from ..regions import AnyPerturbation, Region, as_perturbation, rounded_down
from . import branching as branching  # registers the stages of its method
from .about import describe
from .engine import solve
from .ensemble import Ensemble, Joined
from .enumerate import Enumerate
from .instances import Progress, answer_all
from .margins import Margins, class_change
from .methods import find_method
from .names import renamed
from .problem import Effort, Problem, Solution
from .radii import AttackAlone, CertifiedRadii, RadiusSearch
from .replay import contradictions
from .result import Record, Result, Verdict

# Instances worked on together; more gain nothing and cost memory.
_BATCH = 256


@renamed(y="label")
def verify_robustness(
    network: Network | Graph | torch.nn.Module,
    x: Any,
    label: Any,
    perturbation: AnyPerturbation,
    property: str = "all",
    method: Method | str = "auto",
    *,
    targets: Sequence[int] | None = None,
    attack: bool | None = None,
    timeout: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    memory: int = 1 << 24,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    workers: int | str | None = None,
    progress: Progress | None = None,
    proofs: bool = False,
) -> Result:
    """Whether every perturbed input keeps its class: one verdict per instance, in the order given.

    A final softmax or sigmoid is dropped: it does not change which class wins. A network with one logit is binary; the
    sign decides. After ``timeout`` or ``budget``, or on an interrupt, the result holds the best found so far.

    Args:
        network: From ``load_onnx`` or ``from_torch``, or a torch module, which is exported with ``x[:1]`` as example.
        x (array [B, ...]): Inputs in the layout of the network, or flat; bytes are divided by 255.
        label (integers [B]): The class of every input.
        perturbation: The region around every input; a number is an l_inf radius.
        property: ``"all"``: no other class overtakes the label. ``"targets"``: none of ``targets`` does.
            ``"runner-up"``: the clean runner-up never becomes the largest.
        method: ``"auto"``, ``"linear"``, ``"second-order"``, ``"paper"``, ``"branch"`` or a method object.
        targets: The classes of the property ``"targets"``.
        attack: None attacks only what the bounds leave undecided, True everything, False nothing.
        timeout: Seconds per instance; the instances of a batch share their time.
        budget: Seconds for the whole call.
        seed: Of the attack.
        memory: Bytes of one tensor; the whole computation needs some tens of times that, and for the largest
            networks some hundreds of times.
        dtype: ``torch.float64`` or ``torch.float32``; rounding is charged in either.
        device: Where to compute; by default where ``x`` is.
        workers: How many processes share the instances; ``"auto"`` is one per CPU if the work is long.
        progress: Called as ``progress(done, total)`` while instances are answered.
        proofs: Keep what was chosen to prove the margins, for certificates.
    """
    case = _Case.of(network, x, label, dtype, device)
    margins = case.margins(property, targets)
    region = case.region(perturbation, dtype)
    limits = TimeLimits.of(timeout, budget)
    effort = replace(_effort(attack, seed, memory), proofs=proofs)
    asked = _Asked(case, region, margins, find_method(method).within(timeout), effort, limits)
    found = _result(asked, workers, progress)
    data = case.exact, case.labels, perturbation
    more: dict[str, Any] = {
        "property": property,
        "targets": targets,
        "attack": attack,
        "timeout": timeout,
        "budget": budget,
    }
    about = describe("robustness", [case.network], *data, asked.method, **more, seed=seed, device=str(case.x.device))
    return replace(found, about=about)


@renamed(y="label")
def certified_radius(
    network: Network | Graph | torch.nn.Module,
    x: Any,
    label: Any,
    perturbation: AnyPerturbation,
    property: str = "all",
    method: Method | str = "auto",
    *,
    targets: Sequence[int] | None = None,
    steps: int = 10,
    timeout: float | None = None,
    budget: float | None = None,
    memory: int = 1 << 24,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    workers: int | str | None = None,
    attack: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> CertifiedRadii:
    """The largest radius found certified for every instance, up to ``perturbation.eps``.

    What the attack breaks, and what the method tries first, at little cost, show where to begin: the radius is halved
    until that proves something. From there the whole method goes up, doubling the radius, and then by bisection.

    The result is an array of radii: 0 where nothing was certified, NaN where the clean input is misclassified. Every
    radius in it was certified. Its attribute ``attacked`` has the smallest radius at which a counterexample was found
    and replayed, ``capped`` whether the search stopped at ``perturbation.eps``.

    Args:
        network: As for ``verify_robustness``.
        x (array [B, ...]): Inputs.
        label (integers [B]): The class of every input.
        perturbation: The largest region to try; smaller ones differ in ``eps`` alone.
        property: As for ``verify_robustness``.
        method: As for ``verify_robustness``.
        targets: The classes of the property ``"targets"``.
        steps: Halvings of the largest radius up to which the radii are found; small ones up to an eighth of themselves.
        timeout: Seconds for the whole search.
        budget: Seconds for the whole search.
        memory: Bytes of one tensor.
        dtype: ``torch.float64`` or ``torch.float32``.
        device: Where to compute; by default where ``x`` is.
        workers: How many processes share the instances.
        attack: Whether to look for counterexamples.
        seed: Of the attack.
        progress: Called as ``progress(done, total)`` with rounds of the search.
    """
    case = _Case.of(network, x, label, dtype, device)
    margins = case.margins(property, targets)
    perturbation = as_perturbation(perturbation)
    cap = perturbation.radius
    limits = TimeLimits(TimeLimits.of(timeout, budget).for_batch(len(case.x)))
    search = RadiusSearch(~case.correct.cpu().numpy(), cap, steps)
    chosen = find_method(method)
    # Attacks cost next to nothing, and proofs that cost little show where to look for those that cost much.
    rounds: list[tuple[Callable[[], np.ndarray | None], Method | AttackAlone]] = []
    rounds += [(search.to_attack, AttackAlone())] * (3 * steps + 2 if attack else 0)
    rounds += [(search.to_look_at, chosen.first)] * (2 * steps + 1) + [(search.to_certify, chosen)] * (3 * steps + 4)
    dear = 0
    for done, (next_radii, how) in enumerate(rounds):
        here = next_radii()
        if here is None:
            continue
        if passed(limits.deadline):
            break
        final = next_radii == search.to_certify
        dear += final
        wanted = torch.from_numpy(here).to(case.x.device).isfinite().nonzero()[:, 0]
        part = case.take(wanted)
        region = perturbation.around(part.exact, torch.from_numpy(here).to(case.x)[wanted], dtype)
        looking = next_radii == search.to_look_at
        effort = _effort(None if attack and not looking else False, seed, memory)
        # The first radius must not take all of the time.
        share = 1 / max(1, steps + 2 - dear)
        result = _result(_Asked(part, region, margins.take(wanted), how, effort, limits), workers, share=share)
        search.learn(here, dict(zip(wanted.tolist(), result.records)), final)
        if progress is not None:
            progress(done + 1, len(rounds))
        if result.interrupted:
            return search.found(interrupted=True)
    return search.found()


@dataclass(frozen=True)
class SpecificationResult:
    """``unsat`` (no counterexample exists), ``sat`` with a witness, ``unknown``, ``timeout`` or ``error``.

    ``error``: the model file contradicts the graph that was bounded; ``message`` says where.
    """

    verdict: str
    witness: np.ndarray | None
    outputs: np.ndarray | None
    bound: float | None
    cpu_seconds: float
    seconds: float
    message: str = ""


@interruptible()
def verify_specification(
    network: Network | Graph,
    specification: Specification,
    method: Method | str = "auto",
    *,
    timeout: float | None = None,
    seed: int = 0,
    memory: int = 1 << 24,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> SpecificationResult:
    """Whether any input of a VNN-LIB property has outputs in its unsafe set.

    The ``bound`` of the result is the certified distance of the worst disjunct from its unsafe set, in units of its
    constraints.

    Args:
        network: From ``load_onnx`` or ``from_torch``.
        specification: From ``load_vnnlib``.
        method: As for ``verify_robustness``.
        timeout: Seconds; then the best found so far is returned.
        seed: Of the attack.
        memory: Bytes of one tensor.
        dtype: ``torch.float64`` or ``torch.float32``.
        device: Where to compute.
    """
    clock = _Clock()
    place = device_of(None, device)
    graph = _graph(network, classes=False).to(dtype, place)
    if math.prod(graph.input_shape) != specification.inputs or math.prod(graph.output_shape) != specification.outputs:
        raise InvalidInput(
            f"the specification has {specification.inputs} inputs and {specification.outputs} outputs, "
            f"the network {math.prod(graph.input_shape)} and {math.prod(graph.output_shape)}"
        )
    effort = replace(_effort(None, seed, memory), deadline=deadline_after(timeout))
    chosen = find_method(method).within(timeout)
    chosen = chosen.branching(0.0 if timeout is None else math.inf) or chosen
    networks = Joined((Ensemble(graph),))
    bounds: list[float] = []
    left: set[str] = set()  # what is to be said unless a counterexample is found
    message = ""
    for boxes in _with_equal_inputs(specification.disjuncts):
        lower, upper, least, most = (
            _tensor(end, torch.float64, place).reshape(1, *graph.input_shape)
            for end in (boxes[0].lower, boxes[0].upper, *boxes[0].ends)
        )
        region = Region(rounded_down(lower, dtype), -rounded_down(-upper, dtype), inner=(least, most))
        margins = moved(_margins_of(boxes, dtype), place)
        if not margins.groups:
            continue
        solution = solve(Problem(networks, region, _middle(region), margins), chosen, effort)
        best, _ = margins.best_rows(solution.bounds)
        worst = float(best.min())
        bounds.append(worst)
        if worst > 0:
            for line in contradictions([network], region, _middle(region), solution.worst, seed).values():
                left.add("error")
                message = line
            continue
        found = _replayed(network, graph, solution.worst[0], region, margins, 0, None, touching=True)
        if found is not None and any(disjunct.holds(*found) for disjunct in boxes):  # as the file says it
            return SpecificationResult("sat", found[0], found[1], worst, *clock.spent())
        left.add("timeout" if solution.stopped == OUT_OF_TIME else "unknown")
        if interrupted():
            break
    verdict = next((verdict for verdict in ("error", "timeout", "unknown") if verdict in left), "unsat")
    bound = None if message else min(bounds, default=None)
    return SpecificationResult(verdict, None, None, bound, *clock.spent(), message)


@dataclass(frozen=True)
class _Case:
    """Validated instances of one question about classes."""

    network: Network | Graph
    graph: Graph
    x: Tensor
    exact: Tensor  # the same inputs as they were given: the centre of the ball
    labels: Tensor
    outputs: Tensor  # clean logits [B, K]
    predicted: Tensor

    @staticmethod
    def of(
        network: Network | Graph | torch.nn.Module,
        x: Any,
        label: Any,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> _Case:
        """Network, inputs and labels as the question needs them, or an error that says what does not fit."""
        place = device_of(x, device)
        opened = open_network(network, x, single=np.ndim(label) == 0)
        graph = _graph(opened, classes=True).to(dtype, place)
        try:
            labels = label if isinstance(label, Tensor) else torch.as_tensor(np.asarray(label))
        except TypeError:
            raise InvalidInput("labels must be whole numbers") from None
        labels = labels.to(place).reshape(-1)
        exact = fit_inputs(opened, x, len(labels)).to(place)
        x = exact.to(dtype)
        real = labels.is_floating_point()
        if labels.dtype == torch.bool or labels.is_complex() or (real and not (labels == labels.round()).all()):
            raise InvalidInput("labels must be whole numbers")
        labels = labels.long()
        with torch.no_grad():
            outputs = torch.cat([graph(part).flatten(1) for part in x.split(_BATCH)])
        classes = 2 if outputs.shape[1] == 1 else outputs.shape[1]
        if ((labels < 0) | (labels >= classes)).any():
            shifted = "; classes are counted from 0" if labels.min() >= 1 and labels.max() == classes else ""
            found = f"got {labels.min()} to {labels.max()}"
            raise InvalidInput(f"labels must be from 0 to {classes - 1}, {found}{shifted}")
        predicted = (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
        warn_of_labels(predicted, labels)
        return _Case(opened, graph, x, exact, labels, outputs, predicted)

    @property
    def correct(self) -> Tensor:
        """Which of the unperturbed inputs get their label."""
        return self.predicted == self.labels

    def take(self, instances: Tensor) -> _Case:
        """Some of the instances, in the order given."""
        parts = (self.x, self.exact, self.labels, self.outputs, self.predicted)
        return _Case(self.network, self.graph, *(part[instances] for part in parts))

    def record(self, index: int, verdict: Verdict, **named: Any) -> Record:
        """The record of an instance, with its label and the class of the unperturbed input."""
        return Record(index, verdict, int(self.labels[index]), predicted=int(self.predicted[index]), **named)

    def region(self, perturbation: AnyPerturbation, dtype: torch.dtype) -> Region:
        """The perturbed inputs, with a warning where everything is one of them."""
        asked = as_perturbation(perturbation)
        warn_of_region(self.exact, asked)
        return asked.around(self.exact, dtype=dtype)

    def margins(self, property: str, targets: Sequence[int] | None) -> Margins:
        rivals = None
        if targets is not None:
            listed = targets if np.iterable(targets) else [targets]
            rivals = torch.tensor([as_index(t, "targets") for t in listed], dtype=torch.long).to(self.labels.device)
        return class_change(self.labels, self.outputs, property, rivals)


@dataclass(frozen=True)
class _Asked:
    """Does every input of a region keep its class? A question about the instances of a case."""

    case: _Case
    region: Region
    margins: Margins
    method: Method | AttackAlone
    effort: Effort
    limits: TimeLimits

    @cached_property
    def networks(self) -> Joined:
        return Joined((Ensemble(self.case.graph),))

    @property
    def size(self) -> int:
        """How many instances fit into memory at once."""
        width = self.networks.graphs[0].structure.width(len(self.case.graph.nodes) - 1)
        return min(_BATCH, max(1, self.effort.memory // (8 * 4 * width)))

    def ease(self) -> Tensor | None:
        """How far unperturbed inputs are ahead of their rivals; None where a budget may end before they are all done.

        What is nearest takes longest, and must not take all there is.
        """
        if not self.margins.groups or self.limits.deadline < math.inf:
            return None
        ahead = (self.margins.rows * self.case.outputs).sum(-1) - self.margins.offsets
        return self.margins.best_rows(ahead)[0].amin(0)

    def apart(self, batch: Tensor) -> list[Tensor]:
        return [batch[part.to(batch.device)] for part in self.networks.alike(self.region.take(batch))]

    def answer(self, batch: Tensor) -> list[Record]:
        case, region, margins = self.case, self.region.take(batch), self.margins.take(batch)
        effort = replace(self.effort, deadline=self.limits.for_batch(len(batch)))
        method: Any = self.method
        if region.finite and not isinstance(method, AttackAlone):
            method = Enumerate(method)
        solution = solve(Problem(self.networks, region, case.x[batch], margins), method, effort)
        found = [_record(case, i, place, solution, region, margins) for place, i in enumerate(batch.tolist())]
        return _replay(case, found, region, solution.worst, self.effort.seed)

    def nothing(self, index: int, why: str, failed: bool = False) -> Record:
        verdict = Verdict.ERROR if failed else Verdict.UNKNOWN
        return self.case.record(index, verdict, message=why)


def _result(asked: _Asked, workers: int | str | None, progress: Progress | None = None, share: float = 1.0) -> Result:
    """Records of all instances; of those that are misclassified there is nothing to ask.

    ``share``: how much of the time that is left may be spent on cutting.
    """
    case = asked.case
    found = answer_all(asked, case.correct.nonzero()[:, 0], asked.size, workers, progress, asked.ease())
    wrong = {i: case.record(i, Verdict.MISCLASSIFIED) for i in (~case.correct).nonzero()[:, 0].tolist()}
    records = tuple((found.records | wrong)[i] for i in range(len(case.x)))
    result = Result(records, found.cpu_seconds, found.seconds, found.interrupted, asked.method.rounding)
    return _cut_open(asked, result, workers, share)


def _cut_open(asked: _Asked, result: Result, workers: int | str | None, share: float) -> Result:
    """What ``auto`` leaves open is cut into cells, where seconds are set for that or a time limit leaves some."""
    left = [record.index for record in result.records if record.verdict is Verdict.UNKNOWN]
    if not left or result.interrupted or asked.region.finite:
        return result
    limits = asked.limits
    each = max(0.0, limits.each - result.seconds / len(result.records))
    each = min(each, share * seconds_left(limits.deadline) / len(left))
    method = asked.method.branching(each if each < math.inf else 0.0)
    if method is None or each == 0:
        return result
    found = answer_all(
        replace(asked, method=method, limits=replace(limits, each=each)), torch.tensor(left), asked.size, workers
    )
    records = list(result.records)
    for i, record in found.records.items():
        known = records[i].bound
        if record.verdict is Verdict.UNKNOWN and known is not None:  # the better of two bounds
            record = replace(record, bound=known if record.bound is None else max(known, record.bound))
        before = records[i]
        cost = {name: getattr(before, name) + getattr(record, name) for name in ("cpu_seconds", "seconds")}
        records[i] = replace(record, **cost)
    spent = result.cpu_seconds + found.cpu_seconds, result.seconds + found.seconds
    return Result(tuple(records), *spent, found.interrupted, result.rounding)


def _replay(case: _Case, records: list[Record], region: Region, worst: Tensor, seed: int) -> list[Record]:
    """The records of a batch; what the model file contradicts is not certified but an error."""
    certified = [place for place, record in enumerate(records) if record.verdict is Verdict.CERTIFIED]
    places = torch.tensor(certified, dtype=torch.long, device=worst.device)
    start = case.x[[records[place].index for place in certified]]
    found = contradictions([case.network], region.take(places), start, worst[places], seed)
    for k, line in found.items():
        records[certified[k]] = replace(records[certified[k]], verdict=Verdict.ERROR, bound=None, message=line)
    return records


def _record(case: _Case, i: int, place: int, solution: Solution, region: Region, margins: Margins) -> Record:
    """The verdict on one instance from its bounds and its attack, replayed in onnxruntime."""
    best, _ = margins.best_rows(solution.bounds[:, place : place + 1])
    bound = float(best.min()) if len(best) else math.inf
    attack = float(solution.attack[place]) if solution.attack[place].isfinite() else None
    tried = tuple(solution.tried.get(place, ()))
    known: dict[str, Any] = {"bound": bound, "attack": attack, "grown": solution.grown.get(place), "tried": tried}
    known["cells"] = solution.cells.get(place)
    known |= solution.spent.of(place)
    if bound > 0:
        rows = margins.rows[:, place]
        least = rows.argmin(-1).tolist() if rows.shape[-1] > 1 else [1 - int(case.labels[i])] * len(rows)
        how, chosen = (
            {rival: part[s, place] for s, rival in enumerate(least) if (s, place) in part}
            for part in (solution.proved_by, solution.chosen)
        )
        proof = {"cuts": solution.cuts.get(place, ()), "proved_by": how, "chosen": chosen}
        proof["sharpened"] = solution.sharpened.get(place, {})
        return case.record(i, Verdict.CERTIFIED, **known, message=solution.notes.get(place, ""), **proof)
    message = "; ".join(filter(None, (solution.stopped or Verdict.UNKNOWN.advice, solution.notes.get(place))))
    if attack is not None and attack < 0:
        final = case.network.final if isinstance(case.network, Network) else None
        found = _replayed(case.network, case.graph, solution.worst[place], region, margins, place, final)
        if found is not None:
            own = {"counterexample": found[0], "new_class": _class_of(found[1], final)}
            return case.record(i, Verdict.FALSIFIED, **known, **own)
        message = "the attack breaks the property in exact arithmetic only, not when the model file is replayed"
    return case.record(i, Verdict.UNKNOWN, **known, message=message)


def _class_of(outputs: np.ndarray, final: str | None) -> int:
    """The class that outputs of the model file stand for; a single one is binary, and its sign decides."""
    single = outputs.size == 1
    return int(outputs[0] > (0.5 if final == "sigmoid" else 0.0)) if single else int(outputs.argmax())


def _replayed(
    network: Network | Graph,
    graph: Graph,
    x: Tensor,
    region: Region,
    margins: Margins,
    place: int,
    final: str | None,
    touching: bool = False,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The point in the precision of the model file, and its outputs there, if they are unsafe; None otherwise.

    Class rows compare outputs with each other or with zero, which a final softmax or sigmoid (less 1/2) keeps.
    """
    margins, x = moved(margins.take(torch.tensor([place], device=x.device)), "cpu"), x.detach().cpu()
    dtype = x.numpy().dtype if isinstance(network, Graph) else np.dtype(network.input_dtype)
    point = _rounded_inside(x, moved(region.take(torch.tensor([place], device=region.lower.device)), "cpu"), dtype)
    if point is None:
        return None
    if isinstance(network, Graph):
        outputs = graph.to(x.dtype)(torch.from_numpy(point).unsqueeze(0)).flatten().numpy()
    else:
        outputs = network.replay(point[None])[0].reshape(-1)
    compared = torch.as_tensor(outputs, dtype=torch.float64) - (0.5 if final == "sigmoid" else 0.0)
    groups = torch.arange(margins.groups)
    least = margins.at(compared.to(margins.rows).expand(margins.groups, -1), torch.zeros_like(groups), groups)
    broken = (least <= 0) if touching else (least < 0)
    return (point, outputs) if bool(broken.any()) else None


def _rounded_inside(x: Tensor, region: Region, dtype: np.dtype[Any]) -> np.ndarray | None:
    """``x`` rounded to ``dtype`` inside the region, which exact arithmetic decides, or None where no such is near."""
    least, most = (end[0].numpy().astype(np.float64) for end in region.inner or (region.lower, region.upper))

    def inside_box(point: np.ndarray) -> np.ndarray:
        point = np.clip(point, least, most).astype(dtype)
        exact = point.astype(np.float64)
        point = np.where(exact > most, np.nextafter(point, np.asarray(-np.inf, dtype)), point)
        return np.where(exact < least, np.nextafter(point, np.asarray(np.inf, dtype)), point)

    wanted = x.numpy().astype(np.float64)
    shrinks: tuple[float, ...] = (1.0,)
    centre = wanted
    if region.centre is not None:
        centre, shrinks = region.centre[0].numpy().astype(np.float64), (1.0, 1 - 1e-7, 1 - 1e-6, 1 - 1e-5)
    for shrink in shrinks:
        point = inside_box(centre + shrink * (wanted - centre))
        if region.contains(torch.from_numpy(point)):
            return point
    return None


def _with_equal_inputs(disjuncts: Sequence[Disjunct]) -> list[list[Disjunct]]:
    """Disjuncts over the same box share one set of bounds."""
    found: dict[bytes, list[Disjunct]] = {}
    for disjunct in disjuncts:
        key = b"".join(end.tobytes() for end in (disjunct.lower, disjunct.upper, *disjunct.ends))
        found.setdefault(key, []).append(disjunct)
    return list(found.values())


def _margins_of(disjuncts: Sequence[Disjunct], dtype: torch.dtype) -> Margins:
    """``matrix @ y <= offset`` row by row; without rows all outputs are unsafe, as ``0 * y > 0`` never holds."""
    rows, offsets, group = [], [], []
    for number, disjunct in enumerate(disjuncts):
        matrix, offset = disjunct.matrix, disjunct.offset
        if not len(matrix):
            matrix, offset = np.zeros((1, matrix.shape[1])), np.zeros(1)
        rows.append(_tensor(matrix, dtype))
        if not bool((rows[-1].double() == _tensor(matrix, torch.float64)).all()):
            raise InvalidInput(f"the property has coefficients that {dtype} cannot hold; use torch.float64")
        offsets.append(-rounded_down(-_tensor(offset, torch.float64), dtype))
        group += [number] * len(matrix)
    return Margins(torch.cat(rows)[:, None], torch.cat(offsets)[:, None], torch.tensor(group))


def _graph(network: Network | Graph, classes: bool) -> Graph:
    if isinstance(network, Graph):
        return network
    if isinstance(network, Network):
        return network.logits if classes else network.graph
    raise InvalidInput(f"network must come from load_onnx or from_torch, not {type(network).__name__}")


def _tensor(values: Any, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    values = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    return values.to(device, dtype)


def _middle(region: Region) -> Tensor:
    return region.lower + (region.upper - region.lower) / 2


def _effort(attack: bool | None, seed: int, memory: int) -> Effort:
    kind = {None: "open", True: "always", False: "never"}[attack]
    return Effort(attack=kind, seed=seed, memory=memory)


class _Clock:
    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def spent(self) -> tuple[float, float]:
        return time.process_time() - self._cpu, time.monotonic() - self._wall
