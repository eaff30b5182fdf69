"""Thirty things that go wrong, each with the one line that is said about it: the table of docs/errors.md.

``SOFTHULL_WRITE=1 python -m pytest tests/test_errors_table.py`` writes the table anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import softhull
from softhull import Perturbation, from_torch, load_dataset, load_onnx, verify_robustness
from softhull.cli.app import app
from softhull.errors import InputWarning

from .documents import ROOT

PAGE = ROOT / "docs/errors.md"
START, END = "<!-- table: written by tests/test_errors_table.py -->\n", "\n<!-- end of table -->"


class Linear(torch.nn.Module):
    """A linear classifier of 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@dataclass(frozen=True)
class Case:
    """Something wrong: a command line, or code as it is shown and as it runs."""

    shown: str
    run: Callable[[], Any] | None = None


def digits() -> tuple[Any, np.ndarray, np.ndarray]:
    """A network of the package with eight inputs and labels."""
    data = load_dataset(softhull.bundled("digits.npz"))
    return load_onnx(softhull.bundled("digits-mlp-0.onnx")), data.x[:8], data.y[:8]


def module(example: Any) -> Any:
    torch.manual_seed(0)
    return from_torch(Linear(), example)


def asked(change: Callable[[Any, np.ndarray, np.ndarray], tuple[Any, ...]]) -> Callable[[], Any]:
    def ask() -> Any:
        network, x, y, perturbation = change(*digits())
        return verify_robustness(network, x, y, perturbation, method="linear")

    return ask


_VERIFY = "verify net.onnx --data digits.npz"
CASES = (
    # the command line
    Case("softhull verfy net.onnx"),
    Case(f"softhull {_VERIFY}"),
    Case(f"softhull {_VERIFY} --epz 0.1"),
    Case(f"softhull {_VERIFY} --eps -1"),
    Case(f"softhull {_VERIFY} --eps 0.1 --method liner"),
    Case(f"softhull {_VERIFY} --eps 0.1 --bound hul"),
    Case(f"softhull {_VERIFY} --eps 0.1 --indices 90:200"),
    Case(f"softhull {_VERIFY} --eps 0.1 --target 3"),
    Case(f"softhull {_VERIFY} --eps 0.1 --radius --store runs.db"),
    Case(f"softhull {_VERIFY} --eps 0.1 --budget -3"),
    Case(f"softhull {_VERIFY} --eps 0.1 --json net.onnx/out.json"),
    Case("softhull verify digits.npz --data digits.npz --eps 0.1"),
    Case("softhull verify net.onnx --data net.onnx --eps 0.1"),
    Case("softhull verify net.onnx --data wide.npz --eps 0.1"),
    Case("softhull verify net.onnx --data unlabelled.npz --eps 0.1"),
    Case("softhull uncertainty net.onnx --data digits.npz --eps 0.1 --score briar"),
    Case("softhull results runs.db --where verdict=certifed"),
    Case("softhull results runs.db --where method=lineer"),
    Case("softhull results runs.db --where colour=red"),
    Case("softhull compare runs.db --by bound"),
    Case("softhull results digits.npz"),
    Case("softhull run campaign.toml"),
    Case("softhull plot sigmoid -o figure.docx"),
    # Python
    Case("Perturbation('0.1')", lambda: Perturbation("0.1")),  # type: ignore[arg-type]
    Case("from_torch(module, torch.zeros(1, 63))", lambda: module(torch.zeros(1, 63))),
    Case(
        "verify_robustness(from_torch(module, torch.zeros(8, 64)), x, y, 0.1)",
        asked(lambda network, x, y: (module(torch.zeros(8, 64)), x, y, 0.1)),
    ),
    Case(
        "verify_robustness(network, np.zeros((100, 128)), y, 0.1)",
        asked(lambda network, x, y: (network, np.zeros((100, 128)), np.zeros(100, dtype=int), 0.1)),
    ),
    Case("verify_robustness(network, x[:3], y, 0.1)", asked(lambda network, x, y: (network, x[:3], y, 0.1))),
    Case("verify_robustness(network, x, y + 1, 0.1)", asked(lambda network, x, y: (network, x, y + 1, 0.1))),
    Case("verify_robustness(network, x, y, '0.1')", asked(lambda network, x, y: (network, x, y, "0.1"))),
    Case("softmax_planes([0, 2], [1, 1])", lambda: softhull.softmax_planes([0, 2], [1, 1])),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files to go wrong with."""
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(softhull.bundled("digits-mlp-0.onnx").read_bytes())
    Path("digits.npz").write_bytes(softhull.bundled("digits.npz").read_bytes())
    np.savez("wide.npz", x=np.zeros((2, 128)), y=np.zeros(2, dtype=int))
    np.savez("unlabelled.npz", x=np.zeros((2, 64)))
    Path("campaign.toml").write_text('[[network]]\nmodel = "net.onnx"\n')
    done = CliRunner().invoke(
        app,
        [
            "verify",
            "net.onnx",
            "--data",
            "digits.npz",
            "--eps",
            "0.01",
            "--indices",
            "0:2",
            "--method",
            "linear",
            "--store",
            "runs.db",
        ],
    )
    assert done.exit_code == 0, done.output
    return tmp_path


def said(case: Case) -> str:
    """The one line about a case."""
    if case.run is not None:
        with pytest.raises((softhull.SofthullError, InputWarning)) as raised:  # warnings are errors in the tests
            case.run()
        return str(raised.value)
    done = CliRunner().invoke(app, case.shown.split()[1:])
    lines = [line for line in done.stderr.splitlines() if not line.startswith("softhull: note: ")]
    assert done.exit_code == 2, (case.shown, done.output)
    assert len(lines) == 1, lines
    assert done.stdout == ""
    return lines[0]


def table() -> str:
    """The table, one row per case."""
    rows = ["| what is wrong | what is said |", "|---|---|"]
    for case in CASES:
        line = said(case).replace(str(ROOT), "...").replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| `{'' if case.run else '$ '}{case.shown}` | {line} |")
    return "\n".join(rows)


@pytest.mark.usefixtures("folder")
def test_the_table_of_errors_is_as_documented() -> None:
    assert len(CASES) >= 30
    found = table()
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    written, after = rest.split(END)
    if os.environ.get("SOFTHULL_WRITE"):
        PAGE.write_text(before + START + found + END + after, encoding="utf-8")
    else:
        assert written == found
