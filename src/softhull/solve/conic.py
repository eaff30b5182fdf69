"""The relaxation in CVXPY, solved by a conic solver, certified by our own Lagrangian at its dual point."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..deadlines import passed
from ..errors import InvalidInput, MissingExtra
from .dual import Dual
from .encodings import Encoder
from .lagrangian import Lagrangian, Multipliers
from .optimum import Optimum, on_the_processor, trivial_bound
from .relaxation import Relaxation, StackRelaxation

# Interior-point steps sometimes end at the wall of a cone, one program in a few hundred; a program that is not solved
# to optimality is tried again with shorter steps, then without the solver's own scaling, then by another solver.
SECOND_TRIES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "CLARABEL": [
        ("CLARABEL", {"max_step_fraction": 0.95}),
        ("CLARABEL", {"equilibrate_enable": False}),
        ("SCS", {"eps": 1e-6, "max_iters": 20_000}),
    ],
    "SCS": [("CLARABEL", {})],
}


@dataclass(frozen=True)
class Conic:
    """Settings of the conic programs for scores.

    Args:
        solver: ``"CLARABEL"``, ``"SCS"`` or any other conic solver that CVXPY knows.
        options: Passed on to the solver.
        warm_steps: Steps of the gradient method that find the first tangent points.
    """

    solver: str = "CLARABEL"
    options: dict[str, Any] = field(default_factory=dict)
    warm_steps: int = 30  # of the gradient method, for the first tangent points of the lower hull

    @on_the_processor
    def solve(self, relaxation: Relaxation, coefficients: Tensor, deadline: float | None = None) -> Optimum:
        """Bounds ``[B]`` on the maximum of ``coefficients . p``; the solver's own value is never used."""
        bound = trivial_bound(relaxation, coefficients)
        probabilities = torch.stack(relaxation.probabilities()).mean(0)
        x = relaxation.region.lower.flatten(1).clone()
        points = None
        if "hull" in relaxation.softmax.lower:
            warm = Dual(steps=self.warm_steps, stages=1, decay=0.1).solve(relaxation, coefficients, deadline)
            points = warm.certificate["tangent_points"]
            bound, probabilities = torch.minimum(bound, warm.bound), warm.probabilities
        certificate: dict[str, Any] = {"multipliers": {}}
        notes: dict[int, str] = {}
        for i in range(relaxation.size):
            if passed(deadline):
                notes[i] = "time limit before this program was started"
                continue
            one = relaxation.take(torch.tensor([i]))
            program = _Program(one, coefficients[i : i + 1], None if points is None else points[i].numpy())
            for solver, options in self.tries():
                status = program.run(solver, options)
                if program.solved:
                    value, flat = program.certify()
                    if value < bound[i]:
                        bound[i] = value
                        certificate["multipliers"][i] = flat
                        x[i] = torch.from_numpy(program.x.value)
                        probabilities[i] = torch.from_numpy(np.mean([net.p.value for net in program.networks], 0))
                if not status or passed(deadline):
                    break
            if status:
                notes[i] = status
        return Optimum(bound, probabilities, x, certificate, notes)

    def tries(self) -> list[tuple[str, dict[str, Any]]]:
        """Solvers and their options, in the order in which they are tried."""
        others = [
            (solver, self.options | options if solver == self.solver else options)
            for solver, options in SECOND_TRIES.get(self.solver, [])
        ]
        return [(self.solver, self.options), *others]


@dataclass
class _Network:
    """One network's variables and the constraints whose multipliers matter."""

    logits: Any
    p: Any
    simplex: Any
    lines: list[tuple[np.ndarray, list[Any], list[Any]]]  # per activation: open neurons, lower and upper lines
    below: dict[tuple[int, int], list[Any]]  # (bound, output) -> constraints
    above: dict[tuple[int, int], list[Any]]
    least: dict[int, Any]
    most: dict[int, Any]
    encoder: Encoder

    def weight(self, constraints: list[Any], k: int) -> float:
        """The multiplier of a bound on output k, in the units of its constant bound."""
        total = 0.0
        for constraint in constraints:
            if self.p.id not in {variable.id for variable in constraint.variables()}:
                continue  # defines an auxiliary variable
            relative = constraint.id in self.encoder.logarithmic
            total += _size(constraint) * (self.encoder.unit[k] / float(self.p.value[k]) if relative else 1.0)
        return total


class _Program:
    def __init__(self, relaxation: Relaxation, coefficients: Tensor, points: np.ndarray | None) -> None:
        try:
            import cvxpy
        except ImportError:
            raise MissingExtra("method conic needs CVXPY: pip install 'softhull[conic]'") from None
        self.cp = cvxpy
        self.relaxation, self.coefficients, self.points = relaxation, coefficients, points
        below, above = relaxation.softmax.sides(coefficients)
        self.below, self.above = ([int(k) for k in np.flatnonzero(side[0].numpy())] for side in (below, above))
        region = relaxation.region
        lower, upper = region.lower.flatten().numpy(), region.upper.flatten().numpy()
        self.x = cvxpy.Variable(len(lower))
        self.constraints: list[Any] = [self.x >= lower, self.x <= upper]
        if region.centre is not None:
            order = int(region.norm)
            unit, centre = region.unit.flatten().numpy(), region.centre.flatten().numpy()
            moving = np.flatnonzero(unit)  # the box holds the others
            step = cvxpy.multiply(1 / unit[moving], (self.x - centre)[moving])
            self.constraints.append(cvxpy.norm(step, order) <= region.eps)
        self.networks: list[_Network] = []
        for part in relaxation.stacks:
            for m in range(len(part.stack.members)):
                self.networks.append(self._network(part, m))
        mean = sum(net.p for net in self.networks) / len(self.networks)
        self.problem = cvxpy.Problem(cvxpy.Maximize(coefficients[0].numpy() @ mean), self.constraints)
        self.solved = False

    def _network(self, part: StackRelaxation, m: int) -> _Network:
        """Variables and constraints of one network, from the shared input to its probabilities."""
        sources: list[Any] = [self.x]
        lines = []
        z: Any = None
        for i, layer in enumerate(part.stack.layers):
            z = layer.bias[m].numpy()
            for s, W in layer.weights.items():
                z = z + W[m].numpy() @ sources[s]
            if layer.activation is None:
                break
            h, found = self._activation(part, i, m, z)
            sources.append(h)
            lines.append(found)
        logits = self.cp.Variable(part.stack.classes)
        self.constraints.append(logits == z)
        return self._softmax(part, m, logits, lines)

    def _activation(self, part: StackRelaxation, i: int, m: int, z: Any) -> tuple[Any, Any]:
        """A variable for the outputs of an activation layer, between its lower and upper lines."""
        kept = part.lines[i]
        low_s, low_o, up_s, up_o = (
            side[:, 0, m].numpy() for side in (kept.lower_slope, kept.lower_offset, kept.upper_slope, kept.upper_offset)
        )
        exact = ((low_s == up_s) & (low_o == up_o) & (low_s == low_s[0]) & (low_o == low_o[0])).all(0)
        open_ = np.flatnonzero(~exact)
        h = self.cp.Variable(len(exact))
        shut = np.flatnonzero(exact)
        if len(shut):
            self.constraints.append(h[shut] == self.cp.multiply(low_s[0, shut], z[shut]) + low_o[0, shut])
        below, above = [], []
        if len(open_):
            for q in range(len(low_s)):
                below.append(h[open_] >= self.cp.multiply(low_s[q, open_], z[open_]) + low_o[q, open_])
                same = q > 0 and np.array_equal(up_s[q], up_s[0]) and np.array_equal(up_o[q], up_o[0])
                if not same:
                    above.append(h[open_] <= self.cp.multiply(up_s[q, open_], z[open_]) + up_o[q, open_])
            self.constraints += below + above
        return h, (open_, below, above)

    def _softmax(self, part: StackRelaxation, m: int, logits: Any, lines: list[Any]) -> _Network:
        """A variable for the probabilities of one network, with the chosen softmax bounds as constraints."""
        lower, upper = (side[0, m].numpy() for side in part.bounds.logits)
        low, high = (side[0, m].numpy() for side in part.bounds.differences)
        middle = (lower + upper) / 2
        points = [middle] if self.points is None else [middle, self.points[len(self.networks)]]
        p = self.cp.Variable(part.stack.classes)
        encoder = Encoder(logits, p, lower, upper, (low, high), points)
        chosen = self.relaxation.softmax
        net = _Network(logits, p, encoder.simplex(), lines, {}, {}, {}, {}, encoder)
        for k in self.below:
            net.least[k] = encoder.least(k)
            for n, name in enumerate(chosen.lower):
                net.below[n, k] = encoder.lower(name, k)
        for k in self.above:
            net.most[k] = encoder.most(k)
            for n, name in enumerate(chosen.upper):
                net.above[n, k] = encoder.upper(name, k)
        everything = [net.simplex, p >= 0, *net.least.values(), *net.most.values()]
        if chosen.constants_everywhere:
            everything += [p >= encoder.smallest, p <= encoder.largest]
        listed: dict[int, Any] = {}
        for constraint in (c for found in (net.below, net.above) for cs in found.values() for c in cs):
            listed[constraint.id] = constraint
        self.constraints += everything + list(listed.values())
        return net

    def run(self, solver: str, options: dict[str, Any]) -> str:
        """Empty when the solver reports an optimum, otherwise what it reports."""
        self.solved = False
        if solver not in self.cp.installed_solvers():
            known = ", ".join(self.cp.installed_solvers())
            raise InvalidInput(f"CVXPY has no solver {solver!r}; installed: {known}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.problem.solve(solver=solver, **options)
        except self.cp.error.SolverError as problem:
            return f"{solver}: {problem}"
        status = str(self.problem.status)
        found = [self.x.value, *(value.value for net in self.networks for value in (net.logits, net.p))]
        self.solved = all(value is not None and np.isfinite(value).all() for value in found)
        return "" if status == "optimal" else f"{solver}: {status}"

    def certify(self) -> tuple[float, Tensor]:
        """The value of our Lagrangian at the solver's multipliers, and the multipliers."""
        whole = Lagrangian(self.relaxation, self.coefficients)
        position, points = 0, []
        for part in self.relaxation.stacks:
            count = len(part.stack.members)
            mine = self.networks[position : position + count]
            points.append(torch.from_numpy(np.stack([net.logits.value for net in mine]))[None])
            position += count
        whole.touch(points)
        # The sign of an equality's multiplier is a convention of the modelling language.
        signs = [whole.project(self._multipliers(whole, sign)) for sign in (1.0, -1.0)]
        flat = min(signs, key=lambda candidate: float(whole.value(candidate)[0]))
        return float(whole.safe_value(flat)[0]), flat

    def _multipliers(self, whole: Lagrangian, sign: float) -> Tensor:
        """The solver's dual variables as multipliers of the Lagrangian, in its order and scaling."""
        parts = whole.views(whole.start())
        total = len(self.networks)
        position = 0
        found = []
        for part, start in zip(self.relaxation.stacks, parts):
            mine = self.networks[position : position + len(part.stack.members)]
            position += len(mine)
            simplex, below, above = start.simplex.clone(), start.below.clone(), start.above.clone()
            lines = [one.clone() for one in start.lines]
            for m, net in enumerate(mine):
                simplex[0, m] = sign * total * float(_size(net.simplex, signed=True))
                for side, constraints, constant in ((below, net.below, net.least), (above, net.above, net.most)):
                    for k, flat_bound in constant.items():
                        weights = np.array([net.weight(constraints[n, k], k) for n in range(side.shape[2])])
                        everything = weights.sum() + _size(flat_bound)
                        side[0, m, :, k] = torch.from_numpy(weights / everything) if everything > 0 else 0.0
                for i, (open_, lower, upper) in enumerate(net.lines):
                    for which, constraints_ in ((0, lower), (1, upper)):
                        if len(open_) and len(constraints_) > 1:
                            lines[i][which, 0, m, open_] = torch.from_numpy(_position(constraints_))
            found.append(Multipliers(simplex, below, above, lines))
        return whole.flat(found, self.coefficients[:, :0])


def _size(constraint: Any, signed: bool = False) -> float:
    value = constraint.dual_value
    if value is None or not np.isfinite(value).all():
        return 0.0
    number = float(np.ravel(value)[0])
    return number if signed else abs(number)


def _position(constraints: list[Any]) -> np.ndarray:
    """Where among the lines the weight lies, in [0, 1]."""
    weights = np.stack([np.abs(np.ravel(c.dual_value)) for c in constraints])
    total = weights.sum(0)
    mean = (weights * np.arange(len(weights))[:, None]).sum(0) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, mean / (len(weights) - 1), 0.5)
