"""The tree of one instance that was cut into cells, and its bound against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..branch.tree import Grown
from .figures import COLOURS, STYLE, matplotlib

PROVED, OPEN, CUT = COLOURS["lse"], COLOURS["hull"], "#9a9a9a"
# Trees with more cells than this are drawn without words.
FEW = 12


def tree_figure(grown: Grown, attack: float | None, title: str) -> Any:
    """Above the cells of all problems, by depth; below the bound against CPU seconds, with the attack."""
    plot = matplotlib()
    with plot.rc_context(STYLE):
        figure = plot.figure.Figure(figsize=(7.0, 5.6), layout="constrained")
        tree, bound = figure.subplots(2, height_ratios=(3, 2))
        _draw_trees(tree, grown.trees)
        tree.set_title(title)
        seconds, bounds = ([getattr(m, name) for m in grown.history] for name in ("seconds", "bound"))
        bound.step(seconds, bounds, where="post", color=COLOURS["lse*"], linewidth=1.6, label="certified margin")
        if attack is not None and math.isfinite(attack):
            bound.axhline(attack, color="#333333", linestyle="--", linewidth=1.2, label="attack")
        bound.axhline(0.0, color="#666666", linewidth=0.8)
        bound.set_xlabel("CPU seconds of the search")
        bound.set_ylabel("margin")
        bound.legend(loc="lower right")
    return figure


def _draw_trees(axes: Any, trees: Sequence[Sequence[tuple[float, str | None]]]) -> None:
    """Problems side by side; leaves one after the other, every other cell above the middle of its two parts."""
    lines: list[tuple[list[float], list[float]]] = []
    dots: list[tuple[float, float, str]] = []
    leaves = 0
    few = sum(cut is None for tree in trees for _, cut in tree) <= FEW
    for tree in trees:
        cells = iter(tree)
        # What waits for its parts: depth, the words of the cut, the places of the parts that are drawn.
        waiting: list[tuple[int, str, list[float]]] = []
        while True:
            bound, cut = next(cells)
            if cut is not None:
                waiting.append((len(waiting), cut, []))
                continue
            at, depth = float(leaves), len(waiting)
            leaves += 1
            dots.append((at, -depth, PROVED if bound > 0 else OPEN))
            if few:
                axes.annotate(f"{bound:.2g}", (at, -depth), (0, -12), textcoords="offset points", ha="center")
            while waiting:
                depth, words, parts = waiting[-1]
                parts.append(at)
                if len(parts) < 2:
                    break
                waiting.pop()
                at = sum(parts) / 2
                lines += [([at, part], [-depth, -depth - 1]) for part in parts]
                dots.append((at, -depth, CUT))
                if few:
                    axes.annotate(words, (at, -depth), (0, 5), textcoords="offset points", ha="center", fontsize=7)
            if not waiting:
                break
        leaves += 1
    for x, y in lines:
        axes.plot(x, y, color="#c8c8c8", linewidth=0.8, zorder=1)
    for colour, words in ((CUT, "cut"), (PROVED, "proved"), (OPEN, "open")):
        own = [(x, y) for x, y, c in dots if c == colour]
        if own:
            label = f"{len(own)} {words}"
            axes.scatter(*zip(*own), s=14 if len(dots) < 200 else 4, color=colour, label=label, zorder=2)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.set_ylabel("cuts, from the whole region down")
    axes.margins(0.06, 0.12)
    axes.legend(loc="upper right")
