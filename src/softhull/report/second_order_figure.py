"""A figure of margins against the radius: linear bounds, second order, attack."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..graph.graph import Graph
from ..propagate.crown import LinearBounds
from ..propagate.methods import Linear, SecondOrder
from ..propagate.second_order.specification import SecondOrderBounds
from ..regions import Perturbation
from ..verify.margins import class_change
from .figures import COLOURS, STYLE, matplotlib

CURVES = {
    "attack": ("attack (no bound can be above)", "#333333"),
    "fitted": ("second order, rows fitted", COLOURS["hull"]),
    "second": ("second order", COLOURS["lse*"]),
    "linear": ("linear bounds", COLOURS["lin"]),
}


def margins(graph: Graph, x: Tensor, label: Tensor, radii: Tensor) -> dict[str, Tensor]:
    """Certified and attacked margins to one rival for every radius around ``x [1, *shape]``, clipped to [0, 1]."""
    count = len(radii)
    xs, labels = x.expand(count, *x.shape[1:]), label.expand(count)
    region = Perturbation(float(radii.max()), clip=(0.0, 1.0)).around(xs, radii)
    with torch.no_grad():
        claims = class_change(labels, graph(xs).flatten(1), "all", None)
        rows = claims.rows.reshape(*claims.offsets.shape, *graph.output_shape)
        last = len(graph.nodes) - 1
        linear = LinearBounds(graph, region, Linear(optimize=0)).lower(last, rows, contract=True)
        second = SecondOrderBounds.of(LinearBounds(graph, region, SecondOrder().linear))
        least, row = linear.min(0)  # the rival that is hardest to exclude, by linear bounds
        never, instance = linear.new_full((count,), math.inf), torch.arange(count)
        found = {"linear": least}
        for name, fitted in (("second", False), ("fitted", True)):
            found[name] = second.lower(rows[row, instance], instance, SecondOrder.steps, never, fitted)

    def margin(x: Tensor, which: Tensor) -> Tensor:
        return (claims.rows[row[which], which] * graph(x).flatten(1)).sum(1)

    found["attack"], _ = minimize_margin(margin, region, xs, target=-math.inf)
    return found


def margins_figure(radii: Tensor, found: dict[str, Tensor]) -> Any:
    """One curve per method; a curve above zero is a proof."""
    plot = matplotlib()
    with plot.rc_context(STYLE):
        figure = plot.figure.Figure(figsize=(6.0, 3.4), layout="constrained")
        axes = figure.subplots()
        for name, (text, colour) in CURVES.items():
            dashes = "--" if name == "attack" else "-"
            axes.plot(radii.numpy(), found[name].numpy(), dashes, color=colour, label=text, linewidth=1.6)
        axes.axhline(0.0, color="#666666", linewidth=0.8)
        axes.set_xlabel("radius of the ball (l_inf)")
        axes.set_ylabel("margin of the class")
        axes.legend(loc="lower left")
    return figure
