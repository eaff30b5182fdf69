"""Bounds with rectifiers bent together: forms of what they are applied to, one choice for all of them, one walk.

A form that moves through products layer by layer adds up what each entry of every product leaves over. Here the input
of a rectifier is walked back to the noise, from below and from above, as a margin is: the mean of both linear parts is
its slope, and what the two quadratics leave beside it is bounded as a whole and becomes one fresh noise number.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from ...graph.operator import Bilinear
from ...graph.ops.relu import Relu
from ...graph.rounding import share, ulps
from ..free import Free
from ..optimize import Chosen as Walked
from ..structure import pieces, positions
from .affine_form import AffineForm, Basis, Noise
from .bends import Chosen, Rectifiers, best_bends, best_bends_over_pairs
from .bent import Bent
from .dual import Pursuit
from .sharpen import entries_allowed
from .specification import Quadratic, SecondOrderBounds, bound_quadratic, solve_quadratic

# Noise numbers and groups of them up to which a choice, some forty factorisations, is worth its time.
_LARGEST = 640
_STEPS = 40
# Factorisations for what two quadratics leave beside their mean, and for the bound in the end.
_LEFT, _LAST = 4, 40
# Directions of an l_2 ball that a choice looks at beside those of the rectifiers.
_DIRECTIONS = 64


def rectified(second: SecondOrderBounds) -> SecondOrderBounds | None:
    """Second order of one instance that knows forms of what rectifiers after products are applied to; None: there are
    none that cross zero."""
    bounds, graph = second.bounds, second.bounds.graph
    first = min(i for i, node in enumerate(graph.nodes) if isinstance(node.operator, Bilinear))
    widths = {}
    for index, node in enumerate(graph.nodes):
        if index > first and isinstance(node.operator, Relu):
            lower, upper = (end.flatten() for end in bounds.interval(node.inputs[0]))
            width = upper - lower
            widths[index] = torch.where((lower < 0) & (upper > 0) & width.isfinite(), width, 0.0)
    allowed = entries_allowed(second, patient=True)
    together = torch.cat([*widths.values()]) if widths else second.bounds.region.lower.new_zeros(0)
    count = min(allowed, int((together > 0).sum()))
    if not count:
        return None
    least = together.topk(count).values[-1]
    chosen = {index: (width >= least).nonzero()[:, 0] for index, width in widths.items()}
    chosen = {index: entries for index, entries in chosen.items() if len(entries)}
    known = second.forms
    total = known.noise_count + sum(len(entries) for entries in chosen.values())
    forms, number, start = copy.copy(known), max(known.bases) + 1, known.noise_count
    forms.rectified = {}
    for index, entries in chosen.items():
        forms.rectified[index] = _form(second, graph.nodes[index].inputs[0], entries, start, total), number
        start += len(entries)
    forms.bases = known.bases | {number: Basis(together.new_ones(1, total))}
    forms.noise_count = total
    return replace(second, forms=forms)


def _form(second: SecondOrderBounds, before: int, entries: Tensor, start: int, total: int) -> AffineForm:
    """The form of a node over all the noise, with fresh numbers from ``start`` on for some entries; others are known by
    their intervals."""
    shape, n, m = second.bounds.graph.shape_of(before), second.forms.noise_count, len(entries)
    lower, upper = (end.flatten() for end in second.bounds.interval(before))
    width = torch.where((upper - lower).isfinite(), upper - lower, 0.0)
    centre = torch.where(width > 0, lower + width / 2, 0.0)
    error = width / 2 * (1 + ulps(4, width.dtype)) + ulps(4, width.dtype) * centre.abs()
    slope = width.new_zeros(total, len(width))
    least, most, lines = [], [], []
    # Two rows an entry, each with a slope for every number of the basis and every entry that its walk meets.
    each = 2 * 8 * second.forms.basis.size * second.bounds.structure.width(before)
    for part in pieces(positions(entries), max(1, min(second.together(), second.bounds.memory // each))):
        units = width.new_zeros(2, len(entries[part]), len(width))
        units[0].scatter_(1, entries[part, None], 1.0)
        units[1].scatter_(1, entries[part, None], -1.0)
        instances = torch.zeros(2 * len(entries[part]), dtype=torch.long, device=width.device)
        quadratic = second.quadratic(units.reshape(-1, *shape), instances, None, before)
        below, above = quadratic.linear.split(len(entries[part]))
        line = (below - above) / 2
        beside = replace(quadratic, linear=torch.cat((below - line, above + line)))
        never = width.new_full((len(instances),), math.inf)
        low, high = bound_quadratic(beside, second.forms.noise, _LEFT, never).split(len(entries[part]))
        # Two differences of slopes, rounded once each, over noise of at most 1.
        lost = share(2, width.dtype) * (below.abs() + above.abs() + line.abs()).sum(1)
        lines.append(line)
        least.append(low - lost)
        most.append(-high + lost)
    low, high, line = torch.cat(least), torch.cat(most), torch.cat(lines)
    usable = low.isfinite() & high.isfinite() & line.isfinite().all(1)
    entries, number = entries[usable], start + torch.arange(m, device=width.device)[usable]
    low, high = low[usable], torch.maximum(low, high)[usable]
    centre[entries] = low + (high - low) / 2
    error[entries] = ulps(8, width.dtype) * (low.abs() + high.abs())
    slope[:n, entries] = line[usable].mT
    slope[number, entries] = (high - low) / 2
    return AffineForm(centre.reshape(1, *shape), slope.reshape(1, total, *shape), error.reshape(1, *shape))


def bent_lower(second: SecondOrderBounds, rows: Tensor, target: Tensor, kept: list[Walked] | None = None) -> Tensor:
    """Lower bounds ``[P]`` on ``<rows [P, *shape], output>`` of one instance with forms of its rectifiers' inputs.

    ``kept`` is told what was chosen for every row.
    """
    found = []
    for row, goal in zip(rows, target):
        low, free = _bent(second, row[None], float(goal))
        found.append(low)
        if kept is not None:
            kept.append(Walked(row[None, None]))
            kept[-1].see(free, torch.ones_like(low, dtype=torch.bool)[None], positions(low), 1)
    return torch.cat(found) if found else rows.new_zeros(0)


def _bent(second: SecondOrderBounds, row: Tensor, target: float) -> tuple[Tensor, Free]:
    """The bound ``[1]`` on one row ``[1, *shape]``, without bends, then with the best ones; and what was chosen."""
    noise, free = second.forms.noise, Free()
    instance = torch.zeros(1, dtype=torch.long, device=row.device)
    second.bounds.check_time()
    before = second.quadratic(row, instance, free=free)
    goal = row.new_full((1,), target)
    best = bound_quadratic(before.detached(), noise, 12, goal)
    if bool(best > goal):
        return best, free
    chosen = _choice(before, noise, target)
    if chosen is None:
        return best, free
    choice, d, weights = chosen
    start = 0
    for index, bent in before.bents.items():
        which = _crossing(bent)
        end = start + len(which)
        bent.put(free, index, which, choice.slope[start:end], choice.bend[start:end])
        start = end
    quadratic = second.quadratic(row, instance, free=free).detached()
    if noise.held is not None:
        quadratic = quadratic.held(noise.held, weights[: noise.inputs])
    for find in (lambda: d, lambda: _multipliers(quadratic, noise)):
        low, _ = solve_quadratic(quadratic, noise, Pursuit(_LAST, goal, find(), hopeless=True))
        best = torch.maximum(best, low)
        if bool(best > goal) or noise.norm == 1:
            break
    return best, free


def _multipliers(found: Quadratic, noise: Noise) -> Tensor | None:
    """The best multipliers ``[1, n]`` for a quadratic with nothing else to choose; None where that is too much work."""
    n = found.linear.shape[1]
    if n > _LARGEST:
        return None
    groups, none = torch.arange(n, device=found.linear.device), found.linear[0, :0]
    if noise.norm == 2:
        groups = (groups - noise.inputs + 1).clamp(min=0)
    nothing = Rectifiers(none, none, none.new_zeros(0, n), none, none)
    B, held = found.dense()[0][0], torch.zeros_like(found.linear[0])
    chosen = best_bends(found.constant[0], found.linear[0], B, nothing, groups, held, _STEPS, math.inf)
    return None if chosen is None else chosen.multipliers[groups][None]


def _crossing(bent: Bent) -> Tensor:
    """The rectifiers with a choice."""
    return (bent.crossing & (bent.A != 0)).flatten().nonzero()[:, 0]


def _choice(found: Quadratic, noise: Noise, target: float) -> tuple[Chosen, Tensor, Tensor] | None:
    """The best slopes and bends for a quadratic of one row, by those it was walked with.

    Beside them multipliers ``[1, n]`` of the noise, and those ``[n]`` of noise that is held, 0 for all other.
    """
    n = found.linear.shape[1]
    parts = [(bent, _crossing(bent)) for bent in found.bents.values()]
    if not sum(len(which) for _, which in parts):
        return None
    constant, linear, B = found.constant[0], found.linear[0].detach(), found.dense()[0][0]
    met = []
    for bent, which in parts:
        x = bent.taken(which, n)
        a, b, c = bent.coefficients(which)
        # What the walk took is taken away again.
        constant = constant - (a + b * x.centre + c * x.centre.square()).sum()
        linear = linear - x.slope.mT @ (b + 2 * c * x.centre)
        B = B - x.slope.mT @ (c[:, None] * x.slope)
        met.append(x)
    x = Rectifiers(*(torch.cat([getattr(t, name) for t in met]) for name in Rectifiers.__dataclass_fields__))
    groups, inputs, enough = torch.arange(n, device=linear.device), noise.inputs, target + 0.5 * (1 + abs(target))
    held = torch.zeros_like(linear)
    if noise.held is not None:
        held[:inputs] = noise.held
    if noise.norm == 1:
        beside, own = x.slope[:, inputs:].abs().sum(1), replace(x, slope=x.slope[:, :inputs])
        ball = linear[:inputs], B[:inputs, :inputs]
        chosen = best_bends_over_pairs(constant.detach(), *ball, own, beside, held[:inputs], _STEPS, enough)
        return None if chosen is None else (chosen, torch.full_like(linear, math.nan)[None], torch.zeros_like(held))
    if noise.norm == 2:
        Q = _directions(linear[:inputs], B[:inputs, :inputs], x.slope[:, :inputs])
        r = Q.shape[1]
        linear, B, slope = (_turned(t, Q) for t in (linear, B, x.slope))
        B = _turned(B.mT, Q)
        x = replace(x, slope=slope)
        groups = torch.cat((groups.new_zeros(r), 1 + groups[: n - inputs]))
        held = held if r == inputs else torch.zeros_like(linear)  # other directions are not held
    if len(linear) > _LARGEST:
        return None
    choice = best_bends(constant.detach(), linear, B, x, groups, held, _STEPS, enough)
    if choice is None:
        return None
    which = held.nonzero()[:, 0]
    d, e = choice.multipliers.split((int(groups.max()) + 1, len(which)))
    weights = torch.zeros_like(held).index_copy(0, which, e)
    if noise.norm == 2:
        d = torch.cat((d[:1].expand(inputs), d[1:]))
    return choice, d[None], weights


def _directions(linear: Tensor, B: Tensor, slope: Tensor) -> Tensor:
    """Orthonormal directions ``[n, r]`` of a ball: all, or those of the rectifiers and where the quadratic is large."""
    n = len(linear)
    if len(slope) + 1 + _DIRECTIONS >= n:
        return torch.eye(n, dtype=B.dtype, device=B.device)
    Q = torch.linalg.qr(torch.cat((linear[None], slope)).mT)[0]
    left = B - Q @ (Q.mT @ B)
    most = left.norm(dim=1).topk(_DIRECTIONS).indices
    return torch.linalg.qr(torch.cat((Q, (left @ left[most].mT)), 1))[0]


def _turned(t: Tensor, Q: Tensor) -> Tensor:
    """The last axis, noise, with its first numbers along directions ``Q [n, r]``."""
    return torch.cat(((t[None, ..., : len(Q)] @ Q)[0], t[..., len(Q) :]), -1)
