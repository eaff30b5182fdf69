"""Small networks, data and campaigns in a folder, and the command line on them, here or in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner, Result

from softhull.cli.app import app
from softhull.runs.campaign import load_campaign
from softhull.runs.engine import Limits, conduct
from softhull.runs.progress import Reporter
from softhull.runs.single import InProcess
from softhull.runs.store import Store
from softhull.runs.worker import load_networks

from ..formats.onnx_models import Builder

CLASSES = 3
INPUTS = 4


def write_network(path: Path, seed: int, hidden: int = 6) -> None:
    """A ReLU network of two layers."""
    rng = np.random.default_rng(seed)
    b = Builder()
    first = b.op("Gemm", "x", b.const(rng.normal(size=(INPUTS, hidden))), b.const(0.1 * rng.normal(size=hidden)))
    last = b.op("Gemm", b.op("Relu", first), b.const(rng.normal(size=(hidden, CLASSES))))
    onnx.save(b.model(last, (1, INPUTS)), path)


def write_campaign(
    folder: Path, instances: int = 24, eps: str = "[0.02, 0.1]", seed: int = 0, extra: str = "", batch: int = 4
) -> Path:
    """Robustness of one network and two scores of an ensemble of two: ``6 * instances`` answers for two radii."""
    for number in range(2):
        write_network(folder / f"net-{number}.onnx", seed + number)
    rng = np.random.default_rng(seed)
    x = rng.random((instances, INPUTS))
    np.savez(folder / "data.npz", x=x, y=rng.integers(0, CLASSES, instances))
    path = folder / "campaign.toml"
    path.write_text(
        f"""
[run]
batch = {batch}
[[networks]]
name = "single"
model = "net-0.onnx"
[[networks]]
name = "pair"
models = ["net-0.onnx", "net-1.onnx"]
[[data]]
file = "data.npz"
[[perturbations]]
eps = {eps}
clip = [0, 1]
[[methods]]
name = "linear"
optimize = 4
[[methods]]
name = "dual"
steps = 20
[[questions]]
ask = "robustness"
[[questions]]
ask = "uncertainty"
networks = "pair"
methods = "dual"
score = ["nll", "brier"]
{extra}
"""
    )
    return path


def call(*arguments: object) -> Result:
    """The command line in this process: what is tested does not need another one to start."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def run_here(campaign: Path, store: Path, **limits: object) -> None:
    """A campaign without the command line and without workers."""
    plan = load_campaign(campaign)
    load = load_networks(plan.models.__getitem__)
    networks = {sha: load(sha) for sha in plan.models}
    allowed = Limits(**({"batch": plan.run["batch"]} | limits))  # type: ignore[arg-type]
    with Store.write(store, {"command": "run"}) as opened:
        conduct(plan.works, opened, InProcess(networks), Reporter(), allowed)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "softhull.cli", *map(str, arguments)]


def start(*arguments: object) -> subprocess.Popen[str]:
    """A process that leads a group, so that it can be killed with its workers.

    It hears Ctrl-C even where the tests run in the background of a shell, which makes its children deaf to it.
    """
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            command(*arguments), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, heard)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=600)


def kill_group(process: subprocess.Popen[str]) -> None:
    """``kill -9`` of a process and all its workers."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def one_line(done: Result | subprocess.CompletedProcess[str]) -> str:
    """The one line of an error that the command line reported."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("softhull: ")]
    assert (done.exit_code if isinstance(done, Result) else done.returncode) == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]
