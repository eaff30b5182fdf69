"""One meaning per option: what is ignored is refused, what is unknown gets the nearest, and CI gets an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import softhull
from softhull.cli.app import app

from .test_cli import all_commands

MLP, DIGITS = str(softhull.bundled("digits-mlp-0.onnx")), str(softhull.bundled("digits.npz"))
VERIFY = ("verify", MLP, "--data", DIGITS, "--indices", "0:2", "--method", "linear", "--eps")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    """Every option of every command."""
    for path in all_commands():
        command: click.Command = app
        for name in path:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name) or command
        for parameter in command.params:
            yield " ".join(path), parameter


def test_options_of_one_name_are_alike() -> None:
    found: dict[str, set[str]] = {"--json": set(), "--out": set(), "--timeout": set(), "--budget": set()}
    for path, parameter in parameters():
        if getattr(parameter, "hidden", False):
            continue
        for name in found.keys() & set(parameter.opts):
            found[name].add(type(parameter.type).__name__)
            if name == "--out":
                assert "-o" in parameter.opts, path
    assert found == {
        "--json": {"OutFile"},
        "--out": {"OutFile", "OutFolder"},
        "--timeout": {"FloatParamType"},
        "--budget": {"FloatParamType"},
    }


@pytest.mark.parametrize(
    ("eps", "more", "codes"),
    [
        (0.001, (), (0, 0)),
        (0.2, (), (1, 1)),  # counterexamples
        (0.2, ("--no-attack",), (0, 1)),  # undecided
        (0.001, ("--budget", 0), (0, 1)),
    ],
)
def test_continuous_integration_gets_an_exit_code(eps: float, more: tuple[Any, ...], codes: tuple[int, int]) -> None:
    assert call(*VERIFY, eps, *more).exit_code == 0
    for fail_on, code in zip(("falsified", "unknown"), codes):
        done = call(*VERIFY, eps, *more, "--fail-on", fail_on)
        assert done.exit_code == code, (fail_on, done.output)


@pytest.mark.parametrize(
    ("arguments", "ignored"),
    [
        ((*VERIFY, 0.1, "--radius", "--table"), "--table"),
        ((*VERIFY, 0.1, "--radius", "--certificates", "proofs"), "--certificates"),
        ((*VERIFY, 0.1, "--recheck"), "--recheck"),
        ((*VERIFY, 0.1, "--target", 3), "--target"),
        ((*VERIFY, 0.1, "--store", "runs.db", "--workers", 2), "--workers"),
        (("verify", MLP, "--vnnlib", MLP, "--eps", 0.1), "--eps"),
        (("verify", MLP, "--vnnlib", MLP, "--data", DIGITS, "--budget", 3), "--data"),
        (("verify", MLP, "--vnnlib", MLP, "--budget", 3), "--budget"),
        (("uncertainty", MLP, "--data", DIGITS, "--eps", 0.1, "--recheck"), "--recheck"),
        (("uncertainty", MLP, "--data", DIGITS, "--eps", 0.1, "--store", "a.db", "--workers", 2), "--workers"),
        (("dataset", MLP, "--data", DIGITS, "--eps", 0.1, "--executor", "local:1"), "--executor"),
        (("operators", "--json", "-", "--markdown"), "--markdown"),
        (("report", DIGITS, "--no-images", "--data", DIGITS), "--data"),
        (("results", DIGITS, "--format", "csv", "--summary"), "--summary"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    arguments: tuple[Any, ...], ignored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert done.exit_code == 2
    assert f"{ignored} would be ignored: " in done.stderr
    assert done.stderr.count("would be ignored") == 1


@pytest.mark.parametrize(
    ("before", "incomplete", "wanted"),
    [
        (["verify", "net.onnx", "--bound"], "hu", {"hull"}),
        (["verify", "net.onnx", "--bound"], "lse*/h", {"lse*/hull"}),
        (["plot", "sigmoid", "--bounds"], "lin,er,h", {"lin,er,hull"}),
        (["uncertainty", "net.onnx", "--score"], "b", {"brier"}),
        (["verify", "net.onnx", "--method"], "b", {"branch"}),
        (["verify", "net.onnx", "--fail-on"], "", {"falsified", "unknown"}),
        ([], "ver", {"verify"}),
    ],
)
def test_the_shell_completes_names(before: list[str], incomplete: str, wanted: set[str]) -> None:
    found = ShellComplete(app, {}, "softhull", "_SOFTHULL_COMPLETE").get_completions(before, incomplete)
    assert {item.value for item in found} == wanted


def test_trying_an_output_changes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("what was there")
    assert call(*VERIFY, -1, "--json", kept).exit_code == 2
    assert call(*VERIFY, -1, "--json", tmp_path / "new.json").exit_code == 2
    assert kept.read_text() == "what was there"
    assert not (tmp_path / "new.json").exists()


def test_json_goes_to_a_file_and_the_table_to_the_screen(tmp_path: Path) -> None:
    out = tmp_path / "bounds.json"
    box = ("bounds", "--lower=-1,0", "--upper=0,1")
    done = call(*box, "--json", out)
    assert "curvature" in done.stdout
    assert out.read_text() == call(*box, "--json", "-").stdout.replace('"-"', f'"{out}"')
    assert '"bounds"' in call(*box, "--json").stdout  # nothing named: standard output


def test_a_run_ends_with_the_code_that_was_asked_for(tmp_path: Path) -> None:
    with np.load(DIGITS) as data:
        np.savez(tmp_path / "digits.npz", x=data["x"][:2], y=data["y"][:2])
    campaign = tmp_path / "campaign.toml"
    campaign.write_text(
        '[[networks]]\nmodel = "softhull:digits-mlp-0.onnx"\n[[data]]\nfile = "digits.npz"\n'
        '[[perturbations]]\neps = 0.2\n[[methods]]\nname = "linear"\n[[questions]]\nask = "robustness"\n'
    )
    asked = ("run", campaign, "--store", tmp_path / "runs.db", "--executor", "local:1", "--quiet")
    assert call(*asked).exit_code == 0
    assert call(*asked, "--fail-on", "falsified").exit_code == 1
    events = tmp_path / "events.jsonl"
    old = call(*asked, "--json", events)
    assert "called --events now" in old.stderr
    assert '"event": "ended"' in events.read_text()
