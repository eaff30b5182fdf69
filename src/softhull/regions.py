"""The inputs a question speaks about: norm balls, clipped or not, boxes, and finite sets of alternatives."""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInput
from .graph.operator import Interval, Shape
from .graph.rounding import euclidean, share, underflow

# Pixels that somebody else normalised in single precision may leave the clip range by this share of it.
NORMALISED = 2.0**-20
Array = np.ndarray


@dataclass(frozen=True)
class Perturbation:
    """All inputs within ``eps`` of a given one in the l_1, l_2 or l_inf norm, inside ``clip`` where it is given.

    An array has the shape of the input, or one entry for each of its first axis (channels of an image, words of a
    text), or broadcasts.

    Args:
        eps (number or array): The radius; an array only for l_inf. None where ``lower`` and ``upper`` are the region.
        norm: ``1``, ``2`` or ``math.inf``.
        clip: The range of valid inputs.
        normalize (pair of arrays): ``(mean, std)`` of a network that takes ``(pixel - mean) / std``. Inputs are given
            as the network takes them, while ``eps``, ``clip``, ``lower`` and ``upper`` are in pixels.
        only (array of bool): The entries that may move (a word, a patch, some features); the norm is over them.
        lower (number or array): A further lower limit.
        upper (number or array): A further upper limit; with both, the region may be that box alone.
    """

    eps: Any = None
    norm: float = math.inf
    clip: tuple[float, float] | None = None
    normalize: tuple[Any, Any] | None = None
    only: Any = None
    lower: Any = None
    upper: Any = None

    def __post_init__(self) -> None:
        for name in ("eps", "clip"):
            if isinstance(value := getattr(self, name), str):
                raise InvalidInput(f"{name} must be numbers, not the text {value!r}; leave the quotation marks out")
        if self.norm not in (1, 2, math.inf):
            raise InvalidInput(f"norm must be 1, 2 or inf, got {self.norm!r}")
        if self.eps is None:
            if self.lower is None or self.upper is None or self.norm != math.inf:
                raise InvalidInput("a perturbation needs eps, or a box of lower and upper")
        elif isinstance(self.eps, numbers.Real):
            if not 0 <= float(self.eps) < math.inf:
                raise InvalidInput(f"eps must be a finite number of at least 0, got {self.eps!r}")
        else:
            self._keep("eps", lambda a: bool((np.isfinite(a) & (a >= 0)).all()), "finite numbers of at least 0")
            if self.norm != math.inf:
                raise InvalidInput("an array of radii is for the l_inf norm; use one number, and only= for a part")
        if self.clip is not None and not self.clip[0] <= self.clip[1]:
            raise InvalidInput(f"clip must be (low, high) with low <= high, got {self.clip!r}")
        for name in ("lower", "upper"):
            if getattr(self, name) is not None:
                self._keep(name, lambda a: not np.isnan(a).any(), "numbers")
        if self.only is not None:
            self._keep("only", lambda a: bool(((a == 0) | (a == 1)).all()), "true or false for every entry")
        if self.normalize is not None:
            mean, std = (_array(part, "normalize") for part in self.normalize)
            if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
                raise InvalidInput("normalize must be (mean, std) of finite numbers, std above 0")
            object.__setattr__(self, "normalize", (mean, std))

    def _keep(self, name: str, valid: Callable[[Array], bool], wanted: str) -> None:
        found = _array(getattr(self, name), name)
        if not valid(found):
            raise InvalidInput(f"{name} must hold {wanted}")
        object.__setattr__(self, name, found)

    @property
    def plain(self) -> bool:
        """Whether it is a radius, a norm and a clip range, and nothing else."""
        others = (self.normalize, self.only, self.lower, self.upper)
        return isinstance(self.eps, numbers.Real) and all(part is None for part in others)

    @property
    def radius(self) -> float:
        """The radius where it is one number; otherwise InvalidInput."""
        if not isinstance(self.eps, numbers.Real):
            raise InvalidInput("this question needs eps as one number")
        return float(self.eps)

    @property
    def largest(self) -> float:
        """One number for tables: the radius, the largest of several, 0 for a box without one."""
        return 0.0 if self.eps is None else float(np.max(self.eps))

    def settings(self) -> dict[str, Any]:
        """What determines the region, as plain values: part of the key of stored answers."""
        plain: dict[str, Any] = {
            "eps": float(self.eps) if isinstance(self.eps, numbers.Real) else _digest(self.eps),
            "norm": f"{self.norm:g}",
            "clip": self.clip and [float(end) for end in self.clip],
        }
        for name in ("normalize", "only", "lower", "upper"):
            if (value := getattr(self, name)) is not None:
                plain[name] = [_digest(part) for part in value] if name == "normalize" else _digest(value)
        return plain

    def bounds(self, shape: Shape) -> Bounds:
        """The region around any input of this shape, in the units of the network."""
        mean, std = self.normalize or (None, None)
        scale: tuple[Array, Array] | None = None
        if mean is not None and std is not None:
            _spread(mean, shape, "normalize")  # must fit, whether there are limits that it moves or not
            least, most = _around(1 / _exact(std))
            scale = _spread(least, shape, "normalize"), _spread(most, shape, "normalize")
        if isinstance(self.eps, np.ndarray):
            sizes = _exact(_spread(self.eps, shape, "eps")) / (1 if std is None else _exact(_spread(std, shape, "std")))
            scale = _around(sizes)
        if self.only is not None:
            mask = _spread(self.only, shape, "only")
            scale = (mask, mask) if scale is None else (scale[0] * mask, scale[1] * mask)
        clip = self.clip or (None, None)
        low = _tightest(np.maximum, [_limit(e, mean, std, shape) for e in (clip[0], self.lower) if e is not None])
        high = _tightest(
            np.minimum, [_limit(end, mean, std, shape) for end in (clip[1], self.upper) if end is not None]
        )
        eps = None if self.eps is None else 1.0 if isinstance(self.eps, np.ndarray) else float(self.eps)
        return Bounds(eps, self.norm, scale, low, high, mean is not None)

    def around(self, x: Tensor, eps: Tensor | None = None, dtype: torch.dtype | None = None) -> Region:
        """The perturbed inputs around ``x [B, *shape]``, with an ``eps [B]`` of their own where given.

        The region holds the whole ball of real numbers, in the format of ``x`` or in a shorter one.
        """
        return self.bounds(tuple(x.shape[1:])).around(x, eps, dtype or x.dtype)


@dataclass(frozen=True)
class Bounds:
    """A norm ball, clipped, in the units of the network: ``|(y - x) / scale| <= eps`` and ``low <= y <= high``.

    ``eps`` None: no ball. ``scale``, ``low``, ``high``: pairs of float64 arrays of the input's shape around the real
    number, the smaller first; an entry of scale 0 does not move. ``tolerant``: inputs may leave the limits by rounding.
    """

    eps: float | None
    norm: float
    scale: tuple[Array, Array] | None
    low: tuple[Array, Array] | None
    high: tuple[Array, Array] | None
    tolerant: bool

    def around(self, x: Tensor, eps: Tensor | None, dtype: torch.dtype) -> Region:
        """The region around ``x [B, *shape]``."""
        exact = x.double()
        low, high = (self._limit(end, exact) for end in (self.low, self.high))
        self._refuse_outside(exact, low, high)
        low, high = self._held(low, high, exact)
        size = self.eps if eps is None else eps.to(x.device)
        if size is None:
            least, lower, most, upper = (exact - math.inf, exact - math.inf, exact + math.inf, exact + math.inf)
        else:
            wide = torch.as_tensor(size, dtype=torch.float64, device=x.device).reshape(-1, *[1] * (x.ndim - 1))
            inner, outer = self._widths(wide, x.device)
            lower, least = _sum_between(exact, -outer)[0], _sum_between(exact, -inner)[1]
            most, upper = _sum_between(exact, inner)[0], _sum_between(exact, outer)[1]
        if low is not None:
            lower, least = torch.maximum(lower, low[0]), torch.maximum(least, low[1])
        if high is not None:
            most, upper = torch.minimum(most, high[0]), torch.minimum(upper, high[1])
        lower, upper = rounded_down(lower, dtype), -rounded_down(-upper, dtype)
        if self.norm == math.inf or size is None:
            return Region(lower, upper, inner=(least, most))
        reach = self.scale and tuple(torch.tensor(end).to(x.device)[None] for end in self.scale)
        return Region(lower, upper, x, size, self.norm, inner=(least, most), reach=reach)  # type: ignore[arg-type]

    def _limit(self, ends: tuple[Array, Array] | None, x: Tensor) -> Interval | None:
        if ends is None:
            return None
        smaller, larger = (torch.tensor(end).to(x.device)[None].expand(x.shape) for end in ends)
        return smaller, larger

    def _held(self, low: Interval | None, high: Interval | None, x: Tensor) -> tuple[Interval | None, Interval | None]:
        """Limits that hold the inputs themselves, which rounding may have put outside."""
        if not self.tolerant:
            return low, high
        below = low and (torch.minimum(low[0], x), torch.minimum(low[1], x))
        return below, high and (torch.maximum(high[0], x), torch.maximum(high[1], x))

    def _refuse_outside(self, x: Tensor, low: Interval | None, high: Interval | None) -> None:
        """InvalidInput for an input outside of the limits."""
        below = torch.full_like(x, -math.inf) if low is None else low[0]
        above = torch.full_like(x, math.inf) if high is None else high[1]
        if (below > above).any():
            raise InvalidInput("no input lies between the limits: lower is above upper somewhere")
        slack = NORMALISED * (1 + x.abs()) if self.tolerant else 0.0
        outside = (x < below - slack) | (x > above + slack)
        if outside.any():
            index = tuple(outside.nonzero()[0].tolist())
            limits = (float(below[index]), float(above[index]))
            range_ = "limits" if self.eps is None else "clip range"
            raise InvalidInput(f"input {float(x[index])!r} at index {index} lies outside the {range_} {limits}")

    def _widths(self, eps: Tensor, device: torch.device) -> Interval:
        """How far every entry may move on its own, rounded inward and outward."""
        if self.scale is None:
            return eps, eps
        smaller, larger = (torch.tensor(end).to(device)[None] for end in self.scale)
        inner, outer = eps * smaller, eps * larger
        plain = (eps == 0) | (eps == 1)
        up = torch.nextafter(outer, torch.full_like(outer, math.inf))
        down = torch.nextafter(inner, torch.zeros_like(inner))
        outer = torch.where(plain | (larger == 0) | (larger == 1), outer, up)
        return torch.where(plain | (smaller == 1), inner, down), outer


def as_perturbation(given: AnyPerturbation) -> Perturbation | Alternatives:
    """A perturbation; a number is the radius of one in the l_inf norm."""
    if isinstance(given, Perturbation | Alternatives):
        return given
    if isinstance(given, numbers.Real) and not isinstance(given, bool):
        return Perturbation(float(given))
    quotes = "; leave the quotation marks out" if isinstance(given, str) else ""
    kind = type(given).__name__
    raise InvalidInput(f"a perturbation or its radius in the l_inf norm is needed, not a {kind}{quotes}")


def _array(given: Any, name: str) -> Array:
    """Numbers of a setting in float64, not to be written to."""
    try:
        found = np.array(given.detach().cpu().numpy() if isinstance(given, Tensor) else given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must hold numbers") from None
    found.setflags(write=False)
    return found


def _digest(values: Array | None) -> dict[str, Any] | None:
    """An array by its shape and content; a number is itself."""
    if values is None:
        return None
    if values.ndim == 0 and np.isfinite(values):
        return {"number": float(values)}
    return {"shape": list(values.shape), "sha256": hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()}


def _spread(values: Array, shape: Shape, name: str) -> Array:
    """An array over the entries of an input: see ``Perturbation``."""
    axes = [axis for axis, n in enumerate(shape) if n != 1]
    if values.size == 1:
        return np.full(shape, values.ravel()[0])
    if values.size == math.prod(shape) and [n for n in values.shape if n != 1] in (
        [values.size],
        [shape[a] for a in axes],
    ):
        return values.reshape(shape)
    if values.ndim == 1 and axes and len(values) == shape[axes[0]]:
        values = values.reshape([-1] + [1] * (len(shape) - axes[0] - 1))
    try:
        return np.broadcast_to(values, shape).copy()
    except ValueError:
        several = values.ndim == len(shape) and values.shape[1:] == shape[1:]
        advice = "; one region serves all inputs: where it differs between them, ask about one at a time"
        found = f"{name} of shape {values.shape} does not fit inputs of shape {shape}"
        raise InvalidInput(found + (advice if several else "")) from None


def _exact(values: Array) -> Array:
    """The same numbers as fractions."""
    found = np.empty(values.shape, dtype=object)
    found.ravel()[:] = [Fraction(value) for value in values.ravel().tolist()]
    return found


def _around(values: Array) -> tuple[Array, Array]:
    """Floats around fractions: the largest that is not above, the smallest that is not below."""
    exact = np.asarray(values, dtype=object)  # what NumPy computes from arrays without axes are not arrays
    nearest = exact.astype(np.float64)
    off = exact.ravel() - _exact(nearest).ravel()
    signs = np.array([(v > 0) - (v < 0) for v in off.tolist()]).reshape(exact.shape)
    below = np.where(signs < 0, np.nextafter(nearest, -np.inf), nearest)
    return below, np.where(signs > 0, np.nextafter(nearest, np.inf), nearest)


def _limit(limit: Any, mean: Array | None, std: Array | None, shape: Shape) -> tuple[Array, Array]:
    """A limit in pixels in the units of the network, as floats around it; infinite ones stay."""
    values = np.asarray(limit, dtype=np.float64)
    if mean is None or std is None:
        found = _spread(values, shape, "a limit")
        return found, found
    if values.size > 1:
        values, mean, std = (_spread(part, shape, "a limit") for part in (values, mean, std))
    finite = np.where(np.isfinite(values), values, 0.0)
    ends = _around((_exact(finite) - _exact(mean)) / _exact(std))
    below, above = (np.where(np.isfinite(values), end, values) for end in ends)
    return _spread(below, shape, "normalize"), _spread(above, shape, "normalize")


def _tightest(best: np.ufunc, limits: Sequence[tuple[Array, Array]]) -> tuple[Array, Array] | None:
    """Several limits as one."""
    return (best.reduce([end[0] for end in limits]), best.reduce([end[1] for end in limits])) if limits else None


def _sum_between(a: Tensor, b: Tensor) -> Interval:
    """The numbers of the format around the real sum: the largest that is not above it, the smallest not below."""
    total = a + b
    rounded = total - a
    error = (a - (total - rounded)) + (b - rounded)  # exact: the real sum is total + error
    infinite = torch.full_like(total, math.inf)
    below = torch.where(error < 0, torch.nextafter(total, -infinite), total)
    return below, torch.where(error > 0, torch.nextafter(total, infinite), total)


def rounded_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another format, rounded down."""
    y = x.to(dtype)
    return torch.where(y.double() > x, torch.nextafter(y, torch.full_like(y, -math.inf)), y)


@dataclass(frozen=True)
class Region:
    """A box ``[B, *shape]``, met with the balls of radius ``eps`` (a number or ``[B]``) around ``centre`` if given.

    The box is rounded outward so that bounds speak about the whole ball; ``inner`` is its counterpart rounded inward
    (None: the box is meant as it is), which points that are to lie in the ball must not leave. ``reach [1, *shape]``:
    the unit of every entry in the norm, rounded inward and outward; None: 1.
    """

    lower: Tensor
    upper: Tensor
    centre: Tensor | None = None
    eps: float | Tensor = math.inf
    norm: float = math.inf
    inner: Interval | None = None
    reach: Interval | None = None

    finite: ClassVar[bool] = False  # whether it holds finitely many points

    def __post_init__(self) -> None:
        if not (self.lower <= self.upper).all():
            raise InvalidInput("the input box has a lower bound above its upper bound, or a NaN")

    def points(self, most: int) -> Tensor | None:
        """All points ``[N, *shape]`` of the only instance; None where there are more than ``most``."""
        return None

    @property
    def size(self) -> int:
        """The number of entries of an input."""
        return self.lower.shape[0]

    @property
    def unit(self) -> Tensor:
        """How far an entry moves for each unit of the norm, ``[1, *shape]`` or a number, rounded outward."""
        return torch.ones_like(self.lower[:1]) if self.reach is None else self.reach[1].to(self.lower)

    def minimum(self, coefficients: Tensor, outward: bool = True) -> Tensor:
        """A lower bound ``[S, B]`` on ``<coefficients, x>``, exact for boxes; coefficients ``[S, B or 1, *shape]``.

        For a ball met with a box it is the better of the two alone, the ball without what lies beyond an end of the box
        that its centre is at. ``outward`` lowers it by what rounding may cost.
        """
        flat = coefficients.flatten(2)
        middle, radius, padded = self._middle_and_radius
        best = inner(flat, middle) - inner(flat.abs(), padded if outward else radius)
        if self.centre is None:
            return best
        dual = {1: math.inf, 2: 2}[int(self.norm)]
        centre = self.centre.to(middle.dtype).flatten(1)
        cost = share(flat.shape[-1], middle.dtype) if outward else 0.0
        eps = torch.as_tensor(self.eps, dtype=middle.dtype, device=middle.device)
        slope = flat if self.reach is None else flat * self.unit.flatten()
        if self.at_edge is not None:  # what the box keeps from going down costs nothing
            held_below, held_above = self.at_edge
            slope = torch.where(torch.where(flat > 0, held_below, held_above), 0.0, slope)
        ball = inner(flat, centre) - (1 + cost) * eps * slope.norm(p=dual, dim=-1)
        if outward:  # the centre and the radius may have been rounded to a shorter format, too
            lost = eps * math.sqrt(flat.shape[-1] * underflow(middle.dtype))  # squares may vanish
            ball = ball - cost * inner(flat.abs(), centre.abs()) - lost
        return torch.maximum(best, ball)

    def minimum_along(self, entries: Tensor, coefficients: Tensor, outward: bool = True) -> Tensor:
        """The same for ``coefficients [S, B or 1, n]`` of some ``entries [n]`` alone, whatever the others are."""
        return self._along(entries).minimum(coefficients, outward)

    def _along(self, entries: Tensor) -> Region:
        """What the region leaves to some entries of its inputs."""

        def some(t: Tensor) -> Tensor:
            return t.flatten(1)[:, entries]

        lower, upper = some(self.lower), some(self.upper)
        if self.centre is None:
            return Region(lower, upper)
        reach = self.reach and (some(self.reach[0]), some(self.reach[1]))
        return Region(lower, upper, some(self.centre), self.eps, self.norm, reach=reach)

    def attained(self, coefficients: Tensor) -> Tensor:
        """Inputs ``[S B, ...]`` where ``<c, x>`` is least for ``c [S, B, ...]``, S or B being 1.

        The slope of the minimum in c, which rounding may have put outside.
        """
        with torch.enable_grad():
            c = coefficients.detach().requires_grad_()
            (x,) = torch.autograd.grad(self.minimum(c, False).sum(), c)
        return self.project(x.flatten(0, 1))

    @cached_property
    def at_edge(self) -> tuple[Tensor, Tensor] | None:
        """Masks ``[B, entries]`` of where the centre of a ball is at the lower and at the upper end; None: nowhere."""
        if self.centre is None:
            return None
        centre = self.centre.to(self.lower)
        masks = (self.lower >= centre).flatten(1), (self.upper <= centre).flatten(1)
        return masks if bool((masks[0] | masks[1]).any()) else None

    @cached_property
    def _middle_and_radius(self) -> tuple[Tensor, Tensor, Tensor]:
        """The box as a middle and a radius, and the radius with the rounding of both scalar products added to it.

        What rounding costs grows with the absolute values of the coefficients exactly as the radius does.
        """
        lower, upper = self.lower.flatten(1), self.upper.flatten(1)
        radius = (upper - lower) / 2
        middle = lower + radius
        size = torch.maximum(lower.abs(), upper.abs())
        return middle, radius, radius + share(lower.shape[1], lower.dtype) * size + underflow(lower.dtype)

    def take(self, instances: Tensor) -> Region:
        """The regions of some instances, in the order given."""
        centre = None if self.centre is None else self.centre[instances]
        eps = self.eps[instances] if isinstance(self.eps, Tensor) else self.eps
        inner = self.inner and (self.inner[0][instances], self.inner[1][instances])
        lower, upper = self.lower[instances], self.upper[instances]
        return replace(self, lower=lower, upper=upper, centre=centre, eps=eps, inner=inner)

    def contains(self, x: Tensor) -> bool:
        """Whether a point ``[*shape]`` lies in the ball of the only instance, decided in exact arithmetic."""
        least, most = self.inner or (self.lower, self.upper)
        point = x.double()
        if not bool(((point >= least[0]) & (point <= most[0])).all()):
            return False
        if self.centre is None:
            return True
        steps = [
            abs(Fraction(a) - Fraction(b))
            for a, b in zip(point.flatten().tolist(), self.centre[0].double().flatten().tolist())
        ]
        if self.reach is not None:  # entries that do not move are held by the box
            units = self.reach[0].flatten().tolist()
            steps = [step / Fraction(unit) for step, unit in zip(steps, units) if unit > 0]
        eps = Fraction(float(torch.as_tensor(self.eps, dtype=torch.float64).reshape(-1)[0]))
        return sum(steps) <= eps if self.norm == 1 else sum(step * step for step in steps) <= eps * eps

    def project(self, x: Tensor) -> Tensor:
        """A point of the region near ``x``: inside the box always, inside the ball up to rounding."""
        if self.centre is not None:
            step, unit = (x - self.centre).flatten(1), self.unit.flatten(1)
            step = torch.where(unit > 0, step / torch.where(unit > 0, unit, 1.0), 0.0)
            x = self.centre + (unit * _shrink(step, self.eps, self.norm)).reshape(x.shape)
        # The centre is as exact as it was given; points have the precision of the box, whose ends rounding keeps.
        return torch.minimum(torch.maximum(x, self.lower), self.upper).to(self.lower)

    def descend(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """The point of the region after a step against a gradient that spans this share of it."""
        if self.centre is None:
            return self.project(x - share * gradient.sign() * (self.upper - self.lower))
        each = (-1, *[1] * (gradient.ndim - 1))
        slope = gradient * self.unit
        length = slope.flatten(1).norm(dim=1).reshape(each)
        eps = torch.as_tensor(self.eps, dtype=gradient.dtype, device=gradient.device).reshape(each)
        step = 2 * eps * self.unit * slope / torch.where(length > 0, length, torch.ones_like(length))
        return self.project(x - share * torch.where(length > 0, step, 0.0))

    def sample(self, generator: torch.Generator) -> Tensor:
        """One random point of every instance's region: the same place in each, whatever else is in the batch."""
        share = torch.rand(self.lower.shape[1:], generator=generator, dtype=self.lower.dtype).to(self.lower.device)
        return self.project(self.lower + share * (self.upper - self.lower))


@dataclass(frozen=True)
class Choices(Region):
    """Finitely many inputs: every position holds one of ``options [B, P, M, d]``, the first being its own.

    An input ``[*shape]`` has P positions of d numbers, in order. Positions with fewer options repeat the first. At most
    ``at_most`` positions hold another than their own. The box holds all of them.
    """

    options: Tensor = field(default_factory=lambda: torch.empty(0))
    at_most: int | None = None

    finite: ClassVar[bool] = True

    def minimum(self, coefficients: Tensor, outward: bool = True) -> Tensor:
        """A lower bound ``[S, B]``, exact up to rounding: the best option of every position, or of the best few."""
        B, P, _, d = self.options.shape
        C = coefficients.flatten(2).unflatten(2, (P, d))
        options = self.options.to(C.dtype)
        values = torch.einsum("sbpd,bpmd->sbpm", C.expand(-1, B, -1, -1), options)
        gains = (values.amin(-1) - values[..., 0]).clamp(max=0)
        if self.at_most is not None and self.at_most < P:
            gains = gains.topk(self.at_most, dim=-1, largest=False).values
        best = values[..., 0].sum(-1) + gains.sum(-1)
        box = super().minimum(coefficients, outward)  # which may be a part of it
        if not outward:
            return torch.maximum(best, box)
        # Every position adds its own value, that of an option, and its own again.
        size = torch.maximum(self.lower.abs(), self.upper.abs()).flatten(1)
        cost = 3 * share(d + 3 * P, C.dtype) * inner(C.flatten(2).abs(), size)
        return torch.maximum(best - cost - underflow(C.dtype) * (3 * P * d), box)

    def minimum_along(self, entries: Tensor, coefficients: Tensor, outward: bool = True) -> Tensor:
        full = coefficients.new_zeros(*coefficients.shape[:2], self.lower[0].numel())
        full[..., entries] = coefficients
        return self.minimum(full, outward)

    def take(self, instances: Tensor) -> Choices:
        return replace(super().take(instances), options=self.options[instances])  # type: ignore[call-arg,return-value]

    def contains(self, x: Tensor) -> bool:
        """Whether every position of the point holds one of the options of the only instance, not too many another."""
        P, _, d = self.options.shape[1:]
        equal = (x.double().reshape(P, 1, d) == self.options[0].double()).all(-1)
        others = int((~equal[:, 0]).sum())
        return bool(equal.any(-1).all()) and (self.at_most is None or others <= self.at_most)

    def project(self, x: Tensor) -> Tensor:
        """The nearest option at every position, where there are too many others at those that gain most by it."""
        B, P, _, d = self.options.shape
        apart = (x.reshape(B, P, 1, d) - self.options.to(x)).square().sum(-1)
        return self._chosen(apart, x)

    def descend(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """The options that a gradient likes best, at this share of the positions (one at least)."""
        B, P, _, d = self.options.shape
        options, slope = self.options.to(x), gradient.reshape(B, P, 1, d)
        here = x.reshape(B, P, 1, d)
        found = (slope * (options - here)).sum(-1)
        few = max(1, math.ceil(share * P))
        changed = found.amin(-1)
        limit = changed.kthvalue(few, dim=-1, keepdim=True).values
        at = torch.where((changed <= limit)[..., None, None], options.gather(2, _index(found.argmin(-1), d)), here)
        return self.project(at.reshape(x.shape))

    def _chosen(self, cost: Tensor, like: Tensor) -> Tensor:
        """The cheapest options by ``cost [B, P, M]``, the first where too many others would be taken."""
        best = cost.argmin(-1)
        best = torch.where(cost.gather(-1, best[..., None])[..., 0] < cost[..., 0], best, 0)
        if self.at_most is not None and self.at_most < cost.shape[1]:
            gain = cost[..., 0] - cost.gather(-1, best[..., None])[..., 0]
            kept = torch.zeros_like(best, dtype=torch.bool)
            if self.at_most:
                kept.scatter_(1, gain.topk(self.at_most, dim=1).indices, True)
            best = torch.where(kept, best, 0)
        return self.options.to(like).gather(2, _index(best, self.options.shape[-1])).reshape(like.shape)

    def sample(self, generator: torch.Generator) -> Tensor:
        P, M = self.options.shape[1:3]
        cost = torch.rand((P, M), generator=generator, dtype=self.lower.dtype).to(self.lower.device)
        return self._chosen(cost.expand(self.size, P, M), self.lower)

    def count(self) -> int:
        """How many points the only instance has at most, those of equal options counted once."""
        sizes = [len(torch.unique(position, dim=0)) for position in self.options[0]]
        if self.at_most is None:
            return math.prod(sizes)
        ways = [1] + [0] * self.at_most  # by how many positions hold another
        for n in sizes:
            ways = [w + (n - 1) * (ways[k - 1] if k else 0) for k, w in enumerate(ways)]
        return sum(ways)

    def points(self, most: int) -> Tensor | None:
        if self.count() > most:
            return None
        own = self.options[0, :, :1]
        listed = [
            [position[:1], *(o[None] for o in torch.unique(position, dim=0) if not torch.equal(o, position[0]))]
            for position in self.options[0]
        ]
        limit = len(own) if self.at_most is None else self.at_most
        rows = _within(listed, limit)
        return torch.stack([torch.cat(row) for row in islice(rows, most + 1)]).reshape(-1, *self.lower.shape[1:])


def _within(listed: Sequence[Sequence[Tensor]], limit: int) -> Iterator[list[Tensor]]:
    """All choices of one option per position with at most so many that are not the first."""
    if not listed:
        yield []
        return
    for place, option in enumerate(listed[0]):
        if place and not limit:
            break
        for rest in _within(listed[1:], limit - bool(place)):
            yield [option, *rest]


def _index(places: Tensor, d: int) -> Tensor:
    """Indices ``[B, P]`` of options for ``gather`` along them."""
    return places[..., None, None].expand(*places.shape, 1, d)


@dataclass(frozen=True)
class Alternatives:
    """Every word may be replaced by another of its own list: a finite region, for texts given as embeddings.

    Wherever d numbers of an input are a row of the table, they may become one of its alternatives; all else stays.

    Args:
        embeddings (array [V, d]): The embedding table.
        words: For a row of the table, the rows that may take its place.
        at_most: How many positions may change at once; None: all.
    """

    embeddings: Any
    words: Mapping[int, Sequence[int]]
    at_most: int | None = None

    # What other perturbations have; a set has neither.
    clip: ClassVar[None] = None
    norm: ClassVar[float] = math.inf
    plain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        table = _array(self.embeddings, "embeddings")
        if table.ndim != 2 or not table.size or not np.isfinite(table).all():
            raise InvalidInput(f"embeddings must be a table [words, numbers], finite, got shape {table.shape}")
        try:
            words = {int(word): tuple(int(other) for other in others) for word, others in self.words.items()}
        except (TypeError, ValueError, AttributeError):
            raise InvalidInput("words must map a row of the table to the rows that may stand in its place") from None
        named = [*words, *(other for others in words.values() for other in others)]
        if any(not 0 <= word < len(table) for word in named):
            raise InvalidInput(f"words name rows beyond the {len(table)} of the table")
        if self.at_most is not None and not (isinstance(self.at_most, int) and self.at_most >= 0):
            raise InvalidInput(f"at_most must be a whole number of at least 0, got {self.at_most!r}")
        object.__setattr__(self, "embeddings", table)
        object.__setattr__(self, "words", words)

    @property
    def eps(self) -> float:
        """For tables that name a radius: how many words may change, 0 for all."""
        return float(self.at_most or 0)

    largest = eps

    @property
    def radius(self) -> float:
        """Refused: a finite set has no radius."""
        raise InvalidInput("a set of alternatives has no radius")

    def settings(self) -> dict[str, Any]:
        """What determines the region, as plain values: part of the key of stored answers."""
        words = [[word, *others] for word, others in sorted(self.words.items())]
        return {"alternatives": words, "at_most": self.at_most, "embeddings": _digest(self.embeddings)}

    @cached_property
    def _rows(self) -> dict[bytes, list[int]]:
        """The rows of the table by their numbers; equal ones share their alternatives."""
        found: dict[bytes, list[int]] = {}
        for row, numbers_ in enumerate(self.embeddings + 0.0):
            found.setdefault(numbers_.tobytes(), []).append(row)
        return found

    def knows(self, word: Array) -> bool:
        """Whether ``word [d]`` is a row of the table."""
        return (word + 0.0).tobytes() in self._rows

    def options(self, x: Array) -> list[Array]:
        """What may stand at every position of one input ``[*shape]``: arrays ``[n, d]``, what stands there first."""
        d = self.embeddings.shape[1]
        if x.ndim < 1 or x.shape[-1] != d:
            raise InvalidInput(f"inputs of shape {x.shape} hold no words of {d} numbers")
        found = []
        for own in x.reshape(-1, d) + 0.0:  # which makes -0 a 0, as equality does
            rows = self._rows.get(own.tobytes(), [])
            others = dict.fromkeys(other for row in rows for other in self.words.get(row, ()))
            found.append(np.concatenate((own[None], self.embeddings[list(others)])))
        return found

    def around(self, x: Tensor, eps: Tensor | None = None, dtype: torch.dtype | None = None) -> Choices:
        """The perturbed inputs around ``x [B, *shape]``."""
        if eps is not None:
            self.radius  # noqa: B018
        dtype = dtype or x.dtype
        listed = [self.options(one) for one in x.detach().double().cpu().numpy()]
        most = max(len(options) for one in listed for options in one)
        padded = [[options[np.minimum(np.arange(most), len(options) - 1)] for options in one] for one in listed]
        options = torch.from_numpy(np.array(padded)).to(x.device)
        shape = x.shape
        lower, upper = options.amin(2).reshape(shape), options.amax(2).reshape(shape)
        outer = rounded_down(lower, dtype), -rounded_down(-upper, dtype)
        return Choices(*outer, inner=(lower, upper), options=options, at_most=self.at_most)


AnyPerturbation = Perturbation | Alternatives | float


def inner(coefficients: Tensor, x: Tensor) -> Tensor:
    """``[S, B or 1, n]`` with ``[B, n]`` gives ``[S, B]``."""
    if coefficients.shape[1] == 1:
        return coefficients[:, 0] @ x.T
    return torch.einsum("sbn,bn->sb", coefficients, x)


def _shrink(step: Tensor, eps: float | Tensor, norm: float) -> Tensor:
    """The steps ``[B, n]`` projected onto the balls of radius ``eps`` around zero."""
    eps = torch.as_tensor(eps, dtype=step.dtype, device=step.device).reshape(-1, 1)
    if norm == 2:
        length = euclidean(step, 1)[:, None]
        return torch.where(length > eps, step * (eps / torch.where(length > eps, length, 1.0)), step)
    descending = step.abs().sort(dim=1, descending=True).values
    excess = descending.cumsum(1) - eps
    count = torch.arange(1, step.shape[1] + 1, dtype=step.dtype, device=step.device)
    kept = (descending - excess / count > 0).sum(1, keepdim=True).clamp(min=1)
    threshold = (excess.gather(1, kept - 1) / kept).clamp(min=0)
    return step.sign() * (step.abs() - threshold).clamp(min=0)
