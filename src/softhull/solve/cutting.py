"""The relaxation as a linear program on HiGHS, with tangent planes added where the softmax bounds are violated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..deadlines import passed, seconds_left
from ..errors import InvalidInput, MissingExtra
from .dual import Dual
from .optimum import Optimum, on_the_processor, trivial_bound
from .relaxation import ActivationLines, Relaxation, StackRelaxation
from .safe import Rows, safe_maximum
from .softmax_boxes import PlaneStack, SoftmaxBoxes

# Outputs that can never be larger get no planes: their coefficients would be lost inside the solver's tolerances.
NEGLIGIBLE = 1e-8


@dataclass(frozen=True)
class CuttingPlanes:
    """Settings of the cutting-plane method for scores.

    Args:
        tolerance: Cuts are added until no softmax bound is violated by more than this.
        rounds: At most so many rounds of cuts.
        warm_steps: Steps of the gradient method that find the first tangent points.
    """

    tolerance: float = 2e-7
    rounds: int = 50
    warm_steps: int = 30

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise InvalidInput(f"tolerance must be positive, got {self.tolerance}")
        if self.rounds < 1:
            raise InvalidInput(f"rounds must be at least 1, got {self.rounds}")

    @on_the_processor
    def solve(self, relaxation: Relaxation, coefficients: Tensor, deadline: float | None = None) -> Optimum:
        """Bounds ``[B]`` on the maximum of ``coefficients . p``, each a safe dual value; best so far at the end."""
        bound = trivial_bound(relaxation, coefficients)
        probabilities = torch.stack(relaxation.probabilities()).mean(0)
        x = relaxation.region.lower.flatten(1).clone()
        warm = None
        if self.warm_steps:
            warm = Dual(steps=self.warm_steps, stages=1, decay=0.1).solve(relaxation, coefficients, deadline)
            bound, probabilities, x = torch.minimum(bound, warm.bound), warm.probabilities, warm.x
        certificate: dict[str, Any] = {"duals": {}}
        notes: dict[int, str] = {}
        for i in range(relaxation.size):
            if passed(deadline):
                notes[i] = "time limit before this program was started"
                continue
            points = None if warm is None else warm.certificate["tangent_points"][i].numpy()
            program = _Program(relaxation.take(torch.tensor([i])), coefficients[i].numpy(), points)
            value, status = program.run(self, deadline)
            if status:
                notes[i] = status
            bound[i] = min(float(bound[i]), value)
            if program.solution is not None:
                x[i] = torch.from_numpy(program.solution[: x.shape[1]])
                probabilities[i] = torch.from_numpy(program.mean_probabilities())
                certificate["duals"][i] = program.best_dual
        return Optimum(bound, probabilities, x, certificate, notes)


class _Program:
    """The linear program of one instance."""

    def __init__(self, relaxation: Relaxation, coefficients: np.ndarray, points: np.ndarray | None) -> None:
        self.build = _Builder(relaxation, coefficients)
        self.rows = self.build.rows()
        self.cost = self.build.cost
        self.points = points
        self.solution: np.ndarray | None = None
        self.best = np.inf
        self.best_dual: np.ndarray | None = None

    def run(self, method: CuttingPlanes, deadline: float | None) -> tuple[float, str]:
        """The least safe value over all rounds, and what stopped the rounds unless it was convergence."""
        cuts, _ = self.build.cuts(self.points, None, 0.0)
        self.rows = self.rows + cuts
        solver = _Solver(self.cost, self.rows, *self.build.columns())
        for _ in range(method.rounds):
            if deadline is not None:
                solver.limit(seconds_left(deadline))
            status = solver.run()
            dual = solver.dual()
            if dual is not None:
                value = safe_maximum(self.cost, self.rows, *self.build.box(), dual)
                if value < self.best:
                    self.best, self.best_dual = value, dual
            if status:
                return self.best, status
            self.solution = solver.point()
            logits, p = self.build.read(self.solution)
            cuts, violation = self.build.cuts(logits, p, method.tolerance)
            if violation <= method.tolerance:
                return self.best, ""
            if passed(deadline):
                return self.best, f"time limit with a softmax bound violated by {violation:.1e}"
            self.rows = self.rows + cuts
            solver.add(cuts)
        return self.best, f"{method.rounds} rounds ended with a softmax bound violated by {violation:.1e}"

    def mean_probabilities(self) -> np.ndarray:
        assert self.solution is not None
        return np.asarray(self.build.read(self.solution)[1].mean(0))


class _Builder:
    """Columns: the input, then for every network its activations, logits and probabilities."""

    def __init__(self, relaxation: Relaxation, coefficients: np.ndarray) -> None:
        self.relaxation = relaxation
        lower, upper = relaxation.region.lower.flatten().numpy(), relaxation.region.upper.flatten().numpy()
        self.lower, self.upper = [lower], [upper]  # as the program sees them
        self.box_lower, self.box_upper = [lower], [upper]  # as they are known, for the safe value
        self.count = len(lower)
        self.input = np.arange(self.count)
        self.blocks: list[_Block] = []
        self.boxes: list[tuple[SoftmaxBoxes, int]] = []
        self.logits: list[np.ndarray] = []
        self.p: list[np.ndarray] = []
        self.unit: list[np.ndarray] = []  # the columns are p in these units, powers of two near its largest value
        below, above = relaxation.softmax.sides(torch.from_numpy(coefficients)[None])
        self.below, self.above = below[0].numpy(), above[0].numpy()
        low, high = relaxation.softmax.constant_sides(torch.from_numpy(coefficients)[None])
        self.low, self.high = low[0].numpy(), high[0].numpy()
        for part in relaxation.stacks:
            for m in range(len(part.stack.members)):
                self._network(part, m)
        self.cost = np.zeros(self.count)
        for p, unit in zip(self.p, self.unit):
            self.cost[p] = coefficients * unit / len(self.p)

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate(self.lower), np.concatenate(self.upper)

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate(self.box_lower), np.concatenate(self.box_upper)

    def rows(self) -> Rows:
        return _join(self.blocks)

    def _new(self, lower: np.ndarray, upper: np.ndarray, bounded: bool = False) -> np.ndarray:
        """Columns known to lie in a box; the program itself is told so only where the relaxation says it."""
        free = np.full(len(lower), np.inf)
        self.lower.append(lower if bounded else -free)
        self.upper.append(upper if bounded else free)
        self.box_lower.append(lower)
        self.box_upper.append(upper)
        self.count += len(lower)
        return np.arange(self.count - len(lower), self.count)

    def _network(self, part: StackRelaxation, m: int) -> None:
        """Columns and rows of one network, from the shared input to its logits."""
        # A source is a column for each of its neurons, or -1 where the neuron is 0.
        sources = [self.input]
        for i, layer in enumerate(part.stack.layers):
            lower, upper = (side[0, m].numpy() for side in part.bounds.intervals[i])
            terms = []
            for s, W in layer.weights.items():
                kept = sources[s] >= 0
                terms.append((W[m].numpy()[:, kept], sources[s][kept]))
            affine = _Affine(terms, layer.bias[m].numpy(), part.bounds.charges[i][0, m].numpy())
            if layer.activation is None:
                z = self._new(lower, upper)
                self._equal(affine, z, np.arange(len(z)))
                self.logits.append(z)
                self._probabilities(part, m)
                continue
            sources.append(self._activation(part.lines[i], m, lower, upper, affine, layer.activation))

    def _activation(
        self,
        lines: ActivationLines,
        m: int,
        lower: np.ndarray,
        upper: np.ndarray,
        affine: _Affine,
        activation: Any,
    ) -> np.ndarray:
        """Columns for the outputs of an activation layer, with rows for its lower and upper lines."""
        low_s, low_o, up_s, up_o = (
            side[:, 0, m].numpy()
            for side in (lines.lower_slope, lines.lower_offset, lines.upper_slope, lines.upper_offset)
        )
        after = activation.interval((torch.from_numpy(lower), torch.from_numpy(upper)))
        after_lower, after_upper = (side.numpy() for side in after)
        through_origin = ((low_s == up_s) & (low_s == low_s[0]) & (low_o == 0) & (up_o == 0)).all(0)
        columns = np.full(len(lower), -1)
        # Where the activation is the identity or 0, the program needs no column or no second one for it.
        same = np.flatnonzero(through_origin & (low_s[0] == 1))
        if len(same):
            columns[same] = self._new(after_lower[same], after_upper[same])
            self._equal(affine, columns[same], same)
        open_ = np.flatnonzero(~(through_origin & ((low_s[0] == 1) | (low_s[0] == 0))))
        if len(open_):
            z = self._new(lower[open_], upper[open_])
            h = self._new(after_lower[open_], after_upper[open_])
            self._equal(affine, z, open_)
            columns[open_] = h
            for q in range(len(low_s)):
                self._line(h, z, low_s[:, open_], low_o[:, open_], q, below=True)
                self._line(h, z, up_s[:, open_], up_o[:, open_], q, below=False)
        return columns

    def _line(self, h: np.ndarray, z: np.ndarray, slopes: np.ndarray, offsets: np.ndarray, q: int, below: bool) -> None:
        """``h - slope z >= offset`` (or ``<=``), unless an earlier line is the same."""
        same = np.zeros(len(h), dtype=bool)
        for earlier in range(q):
            same |= (slopes[earlier] == slopes[q]) & (offsets[earlier] == offsets[q])
        new = np.flatnonzero(~same)
        if not len(new):
            return
        columns = np.stack((h[new], z[new]), 1)
        values = np.stack((np.ones(len(new)), -slopes[q, new]), 1)
        none = np.full(len(new), np.inf)
        bound = offsets[q, new]
        self.blocks.append(_Block(columns, values, bound if below else -none, none if below else bound))

    def _equal(self, affine: _Affine, target: np.ndarray, rows: np.ndarray) -> None:
        """``target = sum matrix @ columns + bias`` for some rows of the affine map"""
        wide = [np.broadcast_to(where, (len(target), len(where))) for _, where in affine.terms]
        columns = np.concatenate([target[:, None], *wide], 1)
        values = np.concatenate([np.ones((len(target), 1)), *(-matrix[rows] for matrix, _ in affine.terms)], 1)
        bias = affine.bias[rows]
        self.blocks.append(_Block(columns, values, bias, bias, affine.slack[rows]))

    def _probabilities(self, part: StackRelaxation, m: int) -> None:
        least, most = part.softmax.least[0, m].numpy(), part.softmax.most[0, m].numpy()
        lower, upper = np.where(self.low, least, 0.0), np.where(self.high, most, 1.0)
        unit = 2.0 ** np.floor(np.log2(np.maximum(upper, NEGLIGIBLE)))
        p = self._new(lower / unit, upper / unit, bounded=True)
        self.blocks.append(_Block(p[None], unit[None], np.ones(1), np.ones(1)))
        self.p.append(p)
        self.unit.append(unit)
        self.boxes.append((part.softmax, m))

    def read(self, solution: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits and probabilities ``[M, K]`` of every network."""
        p = np.stack([solution[p] * unit for p, unit in zip(self.p, self.unit)])
        return np.stack([solution[z] for z in self.logits]), p

    def cuts(self, logits: np.ndarray | None, p: np.ndarray | None, tolerance: float) -> tuple[Rows, float]:
        """Tangent planes at the logits ``[M, K]`` (default: midpoints) that ``p`` violates (default: all)."""
        blocks, worst, position = [], 0.0, 0
        for part in self.relaxation.stacks:
            M = len(part.stack.members)
            at = part.softmax.midpoint if logits is None else torch.from_numpy(logits[position : position + M])[None]
            lower, upper = part.softmax.planes(at)
            for m in range(M):
                network = position + m
                for planes, imposed, sign in ((lower, self.below, 1.0), (upper, self.above, -1.0)):
                    imposed = imposed & (part.softmax.most[0, m].numpy() > NEGLIGIBLE)
                    block, violation = self._violated(
                        planes, m, network, imposed, sign, None if p is None else (logits, p), tolerance
                    )
                    worst = max(worst, violation)
                    if block is not None:
                        blocks.append(block)
            position += M
        return _join(blocks), worst

    def _violated(
        self,
        planes: PlaneStack,
        m: int,
        network: int,
        imposed: np.ndarray,
        sign: float,
        point: Any,
        tolerance: float,
    ) -> tuple[_Block | None, float]:
        """The softmax planes that the current point violates, as a block of rows, and by how much at most."""
        slopes, offsets = planes.slopes[0, m].numpy(), planes.offsets[0, m].numpy()  # [P, K, K], [P, K]
        wanted = np.broadcast_to(imposed, offsets.shape)
        worst = 0.0
        if point is not None:
            logits, p = point
            violation = np.where(wanted, sign * (slopes @ logits[network] + offsets - p[network]), 0.0)
            worst = float(violation.max(initial=0.0))
            wanted = violation > tolerance
        which, output = np.nonzero(wanted)
        if not len(which):
            return None, worst
        columns = np.concatenate(
            (self.p[network][output][:, None], np.broadcast_to(self.logits[network], (len(which), offsets.shape[1]))),
            1,
        )
        unit = self.unit[network][output]
        values = np.concatenate((np.ones((len(which), 1)), -slopes[which, output] / unit[:, None]), 1)
        bound, none = offsets[which, output] / unit, np.full(len(which), np.inf)
        return _Block(columns, values, bound if sign > 0 else -none, none if sign > 0 else bound), worst


@dataclass(frozen=True)
class _Block:
    """Rows with equally many entries."""

    columns: np.ndarray
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    slack: np.ndarray | float = 0.0


@dataclass(frozen=True)
class _Affine:
    """``sum matrix @ columns + bias`` up to ``slack``, the rounding of the map itself."""

    terms: list[tuple[np.ndarray, np.ndarray]]
    bias: np.ndarray
    slack: np.ndarray


def _join(blocks: list[_Block]) -> Rows:
    """Blocks of rows as one sparse matrix with its limits."""
    lengths = np.concatenate([np.zeros(1, int), *(np.full(len(b.lower), b.columns.shape[1]) for b in blocks)])
    empty = [np.zeros(0)]
    return Rows(
        np.cumsum(lengths),
        np.concatenate([np.zeros(0, int), *(b.columns.ravel() for b in blocks)]),
        np.concatenate(empty + [b.values.ravel() for b in blocks]),
        np.concatenate(empty + [b.lower for b in blocks]),
        np.concatenate(empty + [b.upper for b in blocks]),
        np.concatenate(empty + [np.broadcast_to(b.slack, b.upper.shape) for b in blocks]),
    )


class _Solver:
    """HiGHS, warm-started from round to round."""

    def __init__(self, cost: np.ndarray, rows: Rows, lower: np.ndarray, upper: np.ndarray) -> None:
        try:
            import highspy
        except ImportError:
            raise MissingExtra("method lp needs HiGHS: pip install 'softhull[lp]'") from None
        self.highspy = highspy
        self.highs = highspy.Highs()
        # The columns are in natural units already: HiGHS's own scaling doubles the time, and presolve has called
        # programs with coefficients near 1e-17 infeasible that are not. Both are kept for a second try.
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("primal_feasibility_tolerance", 1e-9),
            ("presolve", "off"),
            ("simplex_scale_strategy", 0),
        ):
            self.highs.setOptionValue(option, value)
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(cost), rows.count
        # Stated as a minimisation, so that the signs of the duals are those of the textbook.
        program.col_cost_ = -cost
        program.col_lower_, program.col_upper_ = lower, upper
        program.row_lower_, program.row_upper_ = rows.lower, rows.upper
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = rows.starts
        program.a_matrix_.index_ = rows.columns
        program.a_matrix_.value_ = rows.values
        self.highs.passModel(program)

    def limit(self, seconds: float) -> None:
        self.highs.setOptionValue("time_limit", max(0.0, seconds) + self.highs.getRunTime())

    def run(self) -> str:
        """Empty when solved to optimality, otherwise the solver's word for what happened."""
        optimal = self.highspy.HighsModelStatus.kOptimal
        self.highs.run()
        status = self.highs.getModelStatus()
        if status not in (optimal, self.highspy.HighsModelStatus.kTimeLimit):
            self.highs.clearSolver()
            self.highs.setOptionValue("presolve", "choose")
            self.highs.setOptionValue("simplex_scale_strategy", 1)
            self.highs.run()
            status = self.highs.getModelStatus()
        return "" if status == optimal else f"HiGHS: {self.highs.modelStatusToString(status)}"

    def dual(self) -> np.ndarray | None:
        """Multipliers of the rows for the maximisation, if the solver has any."""
        solution = self.highs.getSolution()
        return -np.asarray(solution.row_dual) if solution.dual_valid else None

    def point(self) -> np.ndarray:
        return np.asarray(self.highs.getSolution().col_value)

    def add(self, rows: Rows) -> None:
        self.highs.addRows(
            rows.count,
            rows.lower,
            rows.upper,
            len(rows.values),
            rows.starts[:-1].astype(np.int32),
            rows.columns.astype(np.int32),
            rows.values,
        )
