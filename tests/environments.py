"""Every command in an environment that has some extras only: it works, or one line says what to install.

``python -m tests.environments [EXTRAS ...]`` installs the packages in ``dist/`` (``make package``) into environments of
their own, one for each argument, for example ``cli,onnx``; without arguments one for every extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from softhull.errors import EXTRAS

ROOT = Path(__file__).parents[1]
ALONE = ("cli", "torch", "onnx", "lp", "conic", "check", "dask")
SMALLEST = "cli,onnx"  # the smallest install that runs `softhull verify`
WITH_IT = ("verify", "uncertainty", "inspect", "run", "results", "report")  # what must work there
_ASK = ("--data", "digits/digits.npz", "--eps", "0.01", "--clip", "0", "1", "--indices", "0:1")
_MLP = "digits/digits-mlp-0.onnx"

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("bounds", "--lower=-1,0", "--upper=0,1"),
    ("demo", "--only-files", "--images", "1", "--out", "digits"),
    ("plot", "sigmoid", "--out", "figure.png"),
    ("tightness", "--k", "2", "--half-width", "1", "--mu", "0.8", "--regions", "1", "--equal", "--workers", "1"),
    ("inspect", _MLP),
    ("operators",),
    ("verify", _MLP, *_ASK, "--json", "verdicts.json"),
    ("verify", _MLP, *_ASK, "--certificates", "proofs"),
    ("uncertainty", _MLP, *_ASK),
    ("uncertainty", _MLP, *_ASK, "--method", "lp"),
    ("uncertainty", _MLP, *_ASK, "--method", "conic"),
    ("dataset", _MLP, *_ASK),
    ("conformal", _MLP, *_ASK[:-1], "0:4", "--alpha", "0.5", "--splits", "1"),
    ("check", "proofs/certificate-00000.npz", "--model", _MLP),
    ("run", "campaign.toml", "--store", "runs.db", "--executor", "local:1", "--quiet"),
    ("run", "campaign.toml", "--store", "dask.db", "--executor", "dask", "--quiet"),
    ("results", "runs.db"),
    ("results", "runs.db", "--format", "parquet", "--out", "rows.parquet"),
    ("compare", "runs.db", "--by", "bound"),
    ("report", "runs.db", "-o", "report.html"),
    ("vnncomp", _MLP, "property.vnnlib", "result.txt", "--timeout", "5"),
    ("paper", "attention", "--networks", _MLP, "--data", "digits/digits.npz", "--images", "1", "--eps", "0.01"),
)
CAMPAIGN = """
[[networks]]
model = "softhull:digits-mlp-0.onnx"
[[data]]
file = "softhull:digits.npz"
indices = "0:1"
[[perturbations]]
eps = 0.01
[[methods]]
name = "linear"
bound = ["hull", "lse"]
[[questions]]
ask = "robustness"
"""

Run = Callable[[Sequence[str]], tuple[int, str, str]]  # arguments -> exit code, standard output, standard error


def try_commands(run: Run, folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Every command with what became of it, and whether that is as it should be."""
    (folder / "campaign.toml").write_text(CAMPAIGN, encoding="utf-8")
    box = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} 0))(assert (<= X_{i} 0.1))\n" for i in range(64))
    outputs = "".join(f"(declare-const Y_{i} Real)\n" for i in range(10))
    (folder / "property.vnnlib").write_text(f"{box}{outputs}(assert (>= Y_0 1000))\n", encoding="utf-8")
    for command in COMMANDS:
        code, _, said = run(command)
        lines = [line for line in said.splitlines() if not line.startswith("softhull: note:")]
        name = " ".join(command[:2] if command[0] in ("plot", "paper") else command[:1])
        options = [part for part in command if part in ("--certificates", "lp", "conic", "dask", "parquet")]
        name += "".join(f" {option}" for option in options)
        if code == 0:
            yield name, "works", True
        else:
            yield name, " | ".join(lines)[-300:], code == 2 and len(lines) == 1 and lines[0].startswith("softhull: ")


class Blocker:
    """As if packages were not installed: an import of one of them fails."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def missing_without(extras: str) -> set[str]:
    """The packages that are not there with these extras alone."""
    wanted = set(extras.split(","))
    brought = {"onnx": {"onnx", "onnxruntime", "torch"}, "check": {"flint", "onnx"}, "torch": {"torch"}}
    there = {package for package, extra in EXTRAS.items() if extra in wanted}
    for extra in wanted & brought.keys():
        there |= brought[extra]
    return (EXTRAS.keys() - there) - ({"torch"} if "torch" in there else set())


def pretend(extras: str, folder: Path) -> None:
    """In this process: every command without the packages of other extras; prints name and outcome, tab-separated."""
    sys.meta_path.insert(0, Blocker(missing_without(extras)))  # type: ignore[arg-type]
    from click.testing import CliRunner

    from softhull.cli.app import app

    def run(arguments: Sequence[str]) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, list(arguments))
        broken = done.exception is not None and not isinstance(done.exception, SystemExit)
        return (99, "", repr(done.exception)) if broken else (done.exit_code, done.stdout, done.stderr)

    for name, outcome, right in try_commands(run, folder):
        print(name, outcome, right, sep="\t")


def main(wanted: Sequence[str]) -> int:
    """Install and try; the exit code is 1 where a command ends in anything but one line."""
    wheel, sdist = (next((ROOT / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    wrong = 0
    for extras in wanted or ["", *(f"cli,{extra}" if extra != "cli" else extra for extra in ALONE)]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
            python = folder / "venv/bin/python"
            install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
            subprocess.run([*install, f"{wheel}[{extras}]" if extras else str(wheel)], check=True)
            wrong += _try_here(folder, extras, "wheel")
            if extras == SMALLEST:
                again = ["--no-deps", "--force-reinstall", "--no-build-isolation", str(sdist)]
                subprocess.run([*install, "hatchling"], check=True)
                subprocess.run([*install, *again], check=True)
                wrong += _try_here(folder, extras, "sdist")
    return int(wrong > 0)


def _try_here(folder: Path, extras: str, package: str) -> int:
    def run(arguments: Sequence[str]) -> tuple[int, str, str]:
        script, bare = folder / "venv/bin/softhull", {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run([script, *arguments], cwd=folder, env=bare, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    print(f"\n{package}, extras: {extras or 'none'}")
    wrong = 0
    for name, outcome, right in try_commands(run, folder):
        needed = extras == SMALLEST and name in WITH_IT and outcome != "works"
        wrong += not right or needed
        print(f"  {'ok   ' if right and not needed else 'WRONG'} {name}: {outcome}", flush=True)
    return wrong


def extras_of_package() -> set[str]:
    """The extras that the installed package declares."""
    return {line.rpartition("extra == ")[2].strip("'\" ") for line in requires("softhull") or [] if "extra ==" in line}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pretend"]:
        pretend(sys.argv[2], Path.cwd())
    else:
        sys.exit(main(sys.argv[1:]))
