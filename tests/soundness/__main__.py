"""The long mode: ``python -m tests.soundness``; every round has a seed of its own, which repeats it."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from ..checker.forgery.search import Tally as Forgeries
from ..checker.forgery.search import one_round
from ..formats.differential.compare import compare, summary
from .graphs import check_graph
from .methods import method_round
from .planes import KINDS, Tally, check_planes
from .searches import one_search

FORMATS = (torch.float64, torch.float32)
BATCH = 32  # regions of one random graph
ROUND = 20_000  # forgeries


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


def run_methods(seed: int, seconds: float, networks: int) -> Tally:
    """Margins and scores of so many random attention networks by all methods, or until the time is up."""
    tally, end = Tally(), time.monotonic() + seconds
    for done in range(networks):
        if time.monotonic() > end:
            break
        found = method_round(seed + done)
        tally.merge(found)
        if found.violations:
            print(f"seed {seed + done}: {found.violations} violations, {(found.wrong or [''])[0]}", flush=True)
        if (done + 1) % 100 == 0:
            print(f"next seed {seed + done + 1}: {_about(tally, done + 1)}", flush=True)
    return tally


def _about(tally: Tally, networks: int) -> str:
    return f"{networks} attention networks, {tally.checks} margins and scores, {tally.violations} violations"


def forge(seed: int, count: int) -> Forgeries:
    """Forged certificates on all cores, in rounds from ``seed`` on."""
    counts = [min(ROUND, count - done) for done in range(0, count, ROUND)]
    found = Forgeries()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, tally in enumerate(pool.map(one_round, range(seed, seed + len(counts)), counts)):
            found.merge(tally)
            for wrong in tally.false + tally.crashes:
                print(f"seed {seed + number}: {wrong}", flush=True)
            print(f"next seed {seed + number + 1}: {found}", flush=True)
    return found


def trees(seed: int, count: int) -> int:
    """So many searches on random small networks whose least value is known; returns how many are wrong."""
    wrong, not_known, kinds = 0, 0, dict[str, list[int]]()  # of every kind: searches, open at their end, stopped
    done = 0
    while done < count:
        found, seed = one_search(seed), seed + 1
        if found is None:
            not_known += 1
            continue
        done += 1
        tally = kinds.setdefault(found.kind, [0, 0, 0])
        kinds[found.kind] = [had + more for had, more in zip(tally, (1, bool(found.left), found.stopped))]
        wrong += bool(found.wrong)
        if found.wrong or found.left:
            print(f"seed {seed - 1}, {found.kind}: {found.wrong or found.left}", flush=True)
        if done % 100 == 0 or done == count:
            print(f"next seed {seed}: {done} searches, {wrong} wrong; {not_known} least values not found", flush=True)
            for kind, (searches, left, stopped) in sorted(kinds.items()):
                print(f"  {kind}: {searches} searches, {left} with cells left, {stopped} of them stopped", flush=True)
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
    parser.add_argument("--models", type=int, default=20_000, help="random ONNX files, read three times each")
    parser.add_argument("--networks", type=int, default=5000, help="attention networks for all methods")
    parser.add_argument("--forgeries", type=int, default=1_000_000, help="certificates of a dishonest writer")
    parser.add_argument("--rounding", choices=["outward", "nearest"], default="outward")
    parser.add_argument("--trees", type=int, default=2000, help="searches by branch and bound on small networks")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seed = int(time.time()) if asked.seed is None else asked.seed
    print(f"first seed {seed}, rounding {asked.rounding}", flush=True)
    planes, graphs, done = run(seed, 60 * asked.minutes, asked.checks, asked.instances, asked.rounding)
    print(_line(planes, graphs, done), flush=True)
    readings = compare(range(seed, seed + asked.models))
    print("\n".join((*readings.wrong, summary(readings))), flush=True)
    methods = run_methods(seed, 60 * asked.minutes, asked.networks)
    print(f"{methods.checks} margins and scores of attention networks, {methods.violations} violations", flush=True)
    forgeries = forge(seed, asked.forgeries)
    failed = (planes.violations, graphs.violations, readings.wrong, methods.violations, trees(seed, asked.trees))
    return 1 if any(failed) or forgeries.false or forgeries.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
