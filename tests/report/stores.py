"""Run stores to report on, filled with made-up answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from softhull.propagate.methods import Linear, Paper
from softhull.regions import Perturbation
from softhull.runs.store import Store
from softhull.runs.tasks import Answer, Model, Task
from softhull.solve.dual import Dual

RADII = (0.01, 0.02, 0.03)
MODEL = Model("networks/net.onnx", "ab" * 32)


def made_up_store(
    folder: Path, instances: int = 40, radii: tuple[float, ...] = RADII, side: int = 8, name: str = "net"
) -> Path:
    """Two methods that certify less and less as the radius grows, and two scores; images of ``side`` pixels."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (instances, side, side), dtype=np.uint8)
    labels = generator.integers(0, 10, instances)
    data = folder / "images.npz"
    np.savez(data, x=pixels, y=labels)
    x = pixels / 255
    margins = generator.normal(0.06, 0.03, instances)
    path = folder / "runs.db"
    with Store.write(path, {"command": "softhull run campaign.toml"}) as store:
        for eps in radii:
            ball = Perturbation(eps, clip=(0, 1))
            worst = np.clip(x + eps * generator.choice([-1.0, 1.0], x.shape), 0, 1)
            for method, bound, slope, made in (("linear", "hull", 2, Linear()), ("paper", "lse*", 3, Paper())):
                task = Task(
                    *("robustness", name, (MODEL,), "images", str(data), ball, method, made, bound),
                    {"property": "all"},
                )
                keys = task.keys(x, labels)
                store.register(task, range(instances), labels.tolist(), keys)
                answers = {
                    key: robust(
                        margin - slope * eps, margin - eps, worst[i], generator.lognormal(-4, 1), int(labels[i])
                    )
                    for i, (key, margin) in enumerate(zip(keys, margins))
                }
                store.record(answers)
            for score in ("nll", "brier"):
                task = Task(
                    *("uncertainty", "ensemble", (MODEL, MODEL), "images", str(data), ball, "dual", Dual(), "all"),
                    {"score": score},
                )
                keys = task.keys(x, labels)
                store.register(task, range(instances), labels.tolist(), keys)
                clean = np.exp(-20 * margins)
                store.record(
                    {
                        key: Answer("bounded", c + 3 * eps, c + 2 * eps, c, worst_input=worst[i], cpu_seconds=0.02)
                        for i, (key, c) in enumerate(zip(keys, clean))
                    }
                )
    return path


def robust(bound: float, attack: float, worst: np.ndarray, cpu: float, label: int) -> Answer:
    if attack < 0:
        new = (label + 1) % 10
        return Answer("falsified", bound, attack, None, "", worst, cpu, predicted=label, new_class=new)
    if bound > 0:
        return Answer("certified", bound, None, None, "", None, cpu, predicted=label)
    return Answer("unknown", bound, attack, None, "neither proved nor broken", None, cpu, predicted=label)
