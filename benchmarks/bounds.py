"""Planes for all outputs against ``torch.softmax`` of the same array: time, growth in K, peak memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from softhull import BOUNDS, softmax_planes
from softhull.boxes import make_box

SHAPES = ((4096, 16), (64, 1000), (4, 50_000))


def cpu_seconds(work: Callable[[], object], least: float = 0.2) -> float:
    """Smallest CPU time of one call, over as many calls as fit into a fraction of a second (two at least)."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < least:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def peak_arrays(side: str) -> float:
    """Peak memory of hull planes for 4 x 50,000 logits, in arrays of the input's size; in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.bounds import print_peak; print_peak({side!r})"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout)


def print_peak(side: str) -> None:
    def high_water() -> int:
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

    one_side("hull", side, *box(2, 8))()  # modules and thread pools are loaded before the measurement
    work, size = one_side("hull", side, *box(4, 50_000)), 4 * 50_000 * 8
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = high_water()
    work()
    print(1024 * (high_water() - before) / size)


def box(batch: int, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    middle = 2 * torch.randn(batch, K, generator=generator, dtype=torch.float64)
    half = torch.rand(batch, K, generator=generator, dtype=torch.float64)
    return middle - half, middle + half


def one_side(name: str, side: str, lower: torch.Tensor, upper: torch.Tensor) -> Callable[[], object]:
    """Planes of one side at the midpoint, validation of the box included."""
    tangent = getattr(BOUNDS[name], side).tangent

    def planes() -> object:
        region = make_box(lower, upper)
        return tangent(region, region.midpoint, None)

    return planes


def unvectorised_seconds(lower: torch.Tensor, upper: torch.Tensor, outputs: int) -> float:
    """CPU seconds per output when planes are asked for one output of one box at a time."""
    low, high = lower[0].numpy(), upper[0].numpy()
    start = time.process_time()
    for k in range(outputs):
        softmax_planes(low, high, outputs=k)
    return (time.process_time() - start) / outputs


def run() -> None:
    torch.set_num_threads(1)
    print("CPU time of planes for all outputs, as a multiple of torch.softmax on the same array (one thread, float64)")
    print("the bounds that are K x K by nature are timed on their own for K = 16 only")
    header = f"{'bound':>6} {'side':>6}" + "".join(f"{f'{b} x {K}':>14}" for b, K in SHAPES)
    print(header)
    soft = {}
    for shape in SHAPES:
        lower, upper = box(*shape)
        soft[shape] = cpu_seconds(lambda x=lower: torch.softmax(x, -1))  # type: ignore[misc]
    for name, bound in BOUNDS.items():
        for side in ("lower", "upper"):
            if getattr(bound, side) is None or name in ("lse2", "best"):
                continue
            cells = []
            for shape in SHAPES:
                if shape[1] > 16 and (name == "lin" or (name == "er" and side == "lower")):
                    cells.append(f"{'-':>14}")
                    continue
                lower, upper = box(*shape)
                seconds = cpu_seconds(one_side(name, side, lower, upper))
                cells.append(f"{seconds / soft[shape]:>13.0f}x")
            print(f"{name:>6} {side:>6}" + "".join(cells))
    print("softmax" + " " * 6 + "".join(f"{1e3 * soft[shape]:>11.3f} ms" for shape in SHAPES))

    growth = []
    for K in (12_500, 50_000):
        lower, upper = box(4, K)
        growth.append([cpu_seconds(one_side("hull", side, lower, upper)) for side in ("lower", "upper")])
    ratios = np.array(growth[1]) / np.array(growth[0])
    print(f"hull, four times the logits (12,500 -> 50,000): lower {ratios[0]:.1f}x, upper {ratios[1]:.1f}x the time")

    for side in ("lower", "upper"):
        print(f"hull {side}, 4 x 50,000: peak memory {peak_arrays(side):.0f} arrays of the input's size")

    lower, upper = box(4096, 16)
    batched = cpu_seconds(lambda: softmax_planes(lower, upper)) / lower.numel()
    print(f"a loop over single outputs: {unvectorised_seconds(lower, upper, 16) / batched:.0f}x the batched call")


if __name__ == "__main__":
    run()
