"""The long mode: ``python -m tests.soundness``; every round has a seed of its own, which repeats it."""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from softhull.branch.loop import Search
from softhull.propagate.methods import Branch
from tests.branch.cells import check_tree, random_margin, random_score

from .graphs import check_graph
from .planes import KINDS, Tally, check_planes

FORMATS = (torch.float64, torch.float32)
BATCH = 32  # regions of one random graph


def planes_round(seed: int, rounding: str) -> Tally:
    """Boxes of one kind and size, all bounds."""
    rng = np.random.default_rng([seed, 0])
    K = int(rng.choice([2, 2, 3, 4, 5, 8, 16]))
    return check_planes(rng, K, KINDS[seed % len(KINDS)], str(rng.choice(["float64", "float32"])), rounding, 64, 8)


def graph_round(seed: int, rounding: str) -> Tally:
    """One random graph over several regions."""
    return check_graph(np.random.default_rng([seed, 1]), FORMATS[seed % 2], rounding, BATCH)


def run(seed: int, seconds: float, checks: int, instances: int, rounding: str = "outward") -> tuple[Tally, Tally, int]:
    """Rounds from ``seed`` on until both goals are met or the time is up: planes, graphs, instances done."""
    planes, graphs = Tally(), Tally()
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end and (planes.checks < checks or done < instances):
        if done >= instances or planes.checks / checks <= done / instances:
            tally, found = planes, planes_round(seed, rounding)
        else:
            tally, found = graphs, graph_round(seed, rounding)
            done += BATCH if found.checks else 0  # a network that leaves its domain is no instance
        tally.merge(found)
        if found.violations:
            print(f"seed {seed}: {found.violations} violations, {(found.wrong or [''])[0]}", flush=True)
        seed += 1
        if seed % 100 == 0:
            print(f"next seed {seed}: {_line(planes, graphs, done)}", flush=True)
    return planes, graphs, done


def trees(seed: int, count: int) -> int:
    """Searches on random small networks; returns how many left points out, were too high, or did not end."""
    wrong = 0
    for number in range(seed, seed + count):
        problem = (random_score if number % 2 else random_margin)(number)
        x = problem.points(number)
        least = float(problem.objective(x).min())
        search = Search(problem.bounds, Branch(seconds=60, nodes=20_000), [least - 1e-3])
        with torch.no_grad():
            search.run()
        try:
            check_tree(problem, search.roots[0], x)
            assert not search.left(0), f"{search.left(0)} cells left"
        except AssertionError as problem_found:
            wrong += 1
            print(f"seed {number}: {problem_found}", flush=True)
    print(f"{count} searches, {wrong} wrong or not ended")
    return wrong


def _line(planes: Tally, graphs: Tally, done: int) -> str:
    return (
        f"{planes.checks} (box, point, bound) checks, {planes.exact} of them in ball arithmetic, "
        f"{planes.violations} violations; {done} graph instances, {graphs.checks} claims, "
        f"{graphs.violations} violations"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soundness", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; default: from the clock")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--checks", type=int, default=10_000_000)
    parser.add_argument("--instances", type=int, default=20_000)
    parser.add_argument("--rounding", choices=["outward", "nearest"], default="outward")
    parser.add_argument("--trees", type=int, help="instead: branch and bound on so many random small networks")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seed = int(time.time()) if asked.seed is None else asked.seed
    if asked.trees is not None:
        return 1 if trees(seed, asked.trees) else 0
    print(f"first seed {seed}, rounding {asked.rounding}", flush=True)
    planes, graphs, done = run(seed, 60 * asked.minutes, asked.checks, asked.instances, asked.rounding)
    print(_line(planes, graphs, done))
    return 1 if planes.violations or graphs.violations else 0


if __name__ == "__main__":
    sys.exit(main())
