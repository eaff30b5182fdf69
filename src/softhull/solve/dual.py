"""The Lagrangian bound under a gradient method, all instances at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..deadlines import passed, why_stopped
from ..errors import InvalidInput
from ..propagate.structure import positions
from .lagrangian import Lagrangian
from .optimum import Optimum, trivial_bound
from .relaxation import Relaxation


@dataclass(frozen=True)
class Dual:
    """Settings of the gradient method for scores.

    Args:
        steps: Steps of Adam in a stage.
        stages: At most so many stages; each goes on from the best parameters of the one before.
        learning_rate: The first step size.
        decay: By which factor the step size falls within a stage.
        tolerance: Instances whose bound fell by less during the second half of a stage are finished.
        refresh: After how many steps the softmax planes follow the averaged maximiser; by default 10, or 20 for the
            lower hull, whose planes have to be searched for.
    """

    steps: int = 200
    stages: int = 1
    learning_rate: float = 0.1
    decay: float = 0.01
    tolerance: float = 1e-5
    refresh: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "stages", "refresh"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, got {value}")

    def solve(self, relaxation: Relaxation, coefficients: Tensor, deadline: float | None = None) -> Optimum:
        """Bounds ``[B]`` on the maximum of ``coefficients . p``; at the deadline the best so far."""
        best = trivial_bound(relaxation, coefficients)
        argument = torch.stack(relaxation.probabilities()).mean(0)
        x = relaxation.region.lower.flatten(1).clone()
        parameters, points = None, None
        open_ = positions(coefficients)
        for stage in range(self.stages):
            whole = Lagrangian(relaxation.take(open_), coefficients[open_])
            flat = whole.project(whole.start()) if parameters is None else parameters[open_]
            at = whole.midpoints() if points is None else [point[open_] for point in points]
            run = Descent(self, whole, flat, at)
            run.steps(self.learning_rate if stage == 0 else self.learning_rate / 2, deadline)
            if parameters is None or points is None:
                parameters, points = run.best_flat, run.best_points
            else:
                parameters[open_] = run.best_flat
                for point, found in zip(points, run.best_points):
                    point[open_] = found
            whole.touch(run.best_points)
            safe = whole.safe_value(run.best_flat)
            best[open_] = torch.where(safe < best[open_], safe, best[open_])
            argument[open_] = run.probabilities
            x[open_] = run.x
            open_ = open_[run.gain > self.tolerance * self._scale(coefficients[open_])]
            late = passed(deadline)
            if not len(open_) or late:
                break
        assert parameters is not None
        assert points is not None
        notes = dict.fromkeys(open_.tolist(), why_stopped()) if late else {}
        return Optimum(best, argument, x, {"multipliers": parameters, "tangent_points": torch.cat(points, 1)}, notes)

    @staticmethod
    def _scale(coefficients: Tensor) -> Tensor:
        """The range of the objective: what a tolerance is relative to."""
        return coefficients.amax(1) - coefficients.amin(1)


class Descent:
    """One stage: Adam on the flat parameters of a Lagrangian."""

    def __init__(self, method: Dual, whole: Lagrangian, flat: Tensor, points: list[Tensor]) -> None:
        self.method, self.whole, self.flat, self.points = method, whole, flat, points
        self.unit = whole.ulps()
        self.best = flat.new_full((flat.shape[0],), torch.inf)
        self.best_flat = flat.clone()
        self.best_points = [point.clone() for point in points]
        self.gain = self.best.clone()

    def steps(self, learning_rate: float, deadline: float | None) -> None:
        """One stage of Adam on the multipliers; keeps the best bound of every instance and stops at the deadline."""
        m, v = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        first, second, count = 0.8, 0.9, self.method.steps
        halfway = self.best
        touched = self.points
        refresh = self.method.refresh or (20 if "hull" in self.whole.relaxation.softmax.lower else 10)
        self.x: Tensor  # the last maximiser, and the mean of those before it, the last ones most
        self.centre: Tensor
        for step in range(count):
            if step % refresh == 0:
                touched = self.points
                self.whole.touch(touched)
            value, gradient, logits, self.x = self.whole.value_and_gradient(self.flat)
            if step == 0:
                self.centre = self.x
            better = value < self.best
            self.best = torch.where(better, value, self.best)
            self.best_flat = torch.where(better[:, None], self.flat, self.best_flat)
            self.best_points = [
                torch.where(better[:, None, None], new, old) for new, old in zip(touched, self.best_points)
            ]
            if step == count // 2:
                halfway = self.best
            if step == count - 1 or passed(deadline):
                break
            keep = min(0.9, (step + 1) / (step + 10))
            self.centre = keep * self.centre + (1 - keep) * self.x
            self.points = [keep * old + (1 - keep) * new for old, new in zip(self.points, logits)]
            gradient = self.whole.tangential(self.flat, gradient)
            m = first * m + (1 - first) * gradient
            v = second * v + (1 - second) * gradient * gradient
            size = learning_rate * self.method.decay ** (step / count)
            direction = (m / (1 - first ** (step + 1))) / ((v / (1 - second ** (step + 1))).sqrt() + 1e-12)
            self.flat = self.whole.project(self.flat - size * self.unit * direction)
        self.gain = halfway - self.best
        everyone = torch.cat([point.softmax(-1) for point in self.points], 1)
        self.probabilities = everyone.mean(1)
