"""The command line: what it prints, and that every failure is one line with its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import softhull
from softhull.cli.app import BAD_INPUT, COMMANDS, INTERRUPTED, app

BOX = ["--lower=-1,0,2", "--upper=0,1,3"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "softhull.cli", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def assert_one_line_error(result: Result, *said: str) -> None:
    assert result.exit_code == BAD_INPUT
    assert result.stderr.startswith("softhull: ")
    assert result.stderr.count("\n") == 1
    for part in said:
        assert part in result.stderr


def all_commands() -> list[list[str]]:
    def walk(command: click.Command, path: list[str]) -> list[list[str]]:
        found = [path]
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found += walk(inner, [*path, name])
        return found

    return walk(app, [])


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(path: list[str]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert "softhull " + " ".join(path) in result.stdout


@pytest.mark.parametrize("path", [[], ["plot"], ["paper"]], ids=str)
def test_a_group_without_a_command_shows_its_help(path: list[str]) -> None:
    result = run(*path)
    assert "Commands:" in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_bounds_table_has_every_row_of_the_table() -> None:
    result = run("bounds", *BOX)
    assert result.exit_code == 0
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [word for word in first_words if word in softhull.BOUNDS] == list(softhull.BOUNDS)


def test_bounds_json_agrees_with_the_library() -> None:
    result = run("bounds", *BOX, "--at=-1,1,2", "--output", "2", "--json")
    assert result.exit_code == 0
    study = json.loads(result.stdout)
    assert study["output"] == 2
    for row in study["bounds"]:
        if row["name"] == "lse2":
            assert row["lower"] is None
            continue
        low, high = softhull.softmax_bounds([-1.0, 1, 2], [-1.0, 0, 2], [0.0, 1, 3], row["name"], outputs=2)
        assert row["lower"]["value"] == low
        assert (row["upper"] and row["upper"]["value"]) == (None if high is None else high)
        assert row["lower"]["gap"] == study["probability"] - row["lower"]["value"]


def test_masked_logits_and_one_logit_are_fine() -> None:
    masked = json.loads(run("bounds", "--lower=-inf,0,1", "--upper=-inf,1,2", "--json").stdout)
    assert masked["probability"] == 0
    assert masked["x"][0] is None
    single = json.loads(run("bounds", "--lower=3", "--upper=4", "--json").stdout)
    assert single["probability"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bounds", "--lower=1,x", "--upper=2,3"], ["'x'", "--lower"]),
        (["bounds", "--lower=1", "--upper=2,3"], ["lower has 1", "upper has 2"]),
        (["bounds", "--lower=1,2", "--upper=2,1"], ["lower > upper", "(1,)"]),
        (["bounds", "--lower=nan,2", "--upper=2,1"], ["'nan'", "not a number"]),
        (["bounds", *BOX, "--at=9,0,0"], ["outside the box"]),
        (["bounds", *BOX, "--at=0,0"], ["3 entries"]),
        (["bounds", *BOX, "--output", "7"], ["no output 7"]),
        (["bounds", *BOX, "--output", "one"], ["--output"]),
        (["bounds"], ["--lower"]),
        (["bonds"], ["bonds", "softhull --help"]),
        (["plot", "sigmoid", "--interval", "2", "-2"], ["interval"]),
        (["plot", "sigmoid", "--bounds", "lin,nothing"], ["nothing", "hull"]),
        (["plot", "sigmoid", "--out", "figure.docx"], [".docx", ".png"]),
        (["plot", "sigmoid", "--out", "/dev/null/figure.png"], ["/dev/null"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], said: list[str]) -> None:
    assert_one_line_error(run(*arguments), *said)


def test_plot_writes_the_formats_it_names(tmp_path: Path) -> None:
    for ending, magic in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        out = tmp_path / "made" / f"figure.{ending}"
        result = run("plot", "sigmoid", "--interval", "-3", "1", "--bounds", "lse2,hull", "--out", str(out))
        assert result.exit_code == 0
        assert str(out) in result.stdout
        assert out.read_bytes().startswith(magic)


def test_demo_ends_with_a_report(tmp_path: Path) -> None:
    result = run("demo", "--out", str(tmp_path), "--images", "2")
    assert result.exit_code == 0, result.output
    assert "hull" in result.stdout
    assert "24 of 24 instances answered" in result.stdout
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert "digits" in page
    assert '"worst":{"' in page


def test_demo_files_alone(tmp_path: Path) -> None:
    result = run("demo", "--out", str(tmp_path / "digits"), "--only-files")
    assert result.exit_code == 0
    assert {path.suffix for path in (tmp_path / "digits").iterdir()} == {".onnx", ".npz", ".toml"}


def test_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softhull.study.point.bounds_at_point", interrupted)
    result = run("bounds", *BOX)
    assert result.exit_code == INTERRUPTED
    assert result.stderr.strip() == "softhull: interrupted"


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_one_line_error(run("plot", "sigmoid"), "pip install 'softhull[plot]'")


def test_the_process_exits_with_the_code_and_no_traceback() -> None:
    good = run_process("bounds", *BOX, "--json")
    assert good.returncode == 0
    assert json.loads(good.stdout)["output"] == 0
    bad = run_process("bounds", "--lower=1,2", "--upper=0,3")
    assert bad.returncode == BAD_INPUT
    assert bad.stdout == ""
    assert bad.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_cli_extra_one_line_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from softhull.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "bounds", *BOX], capture_output=True, text=True, check=False
    )
    assert result.returncode == BAD_INPUT
    assert "pip install 'softhull[cli]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from softhull.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False)
    loaded = {name.split(".")[0] for name in result.stderr.split()}
    assert "click" in loaded
    assert not loaded & {"torch", "jax", "matplotlib", "highspy", "cvxpy", "onnx", "scipy"}


def test_shell_completion_offers_the_commands() -> None:
    result = run_process(_SOFTHULL_COMPLETE="bash_source")
    assert "_softhull_completion" in result.stdout
    offered = run_process(_SOFTHULL_COMPLETE="bash_complete", COMP_WORDS="softhull ", COMP_CWORD="1")
    assert set(COMMANDS) == {line.split(",")[1] for line in offered.stdout.splitlines()}


SMALL = ["--k", "2,3", "--half-width", "1", "--mu", "0.8", "--regions", "2", "--workers", "1"]


def interrupt_after(count: int) -> Callable[..., Iterator[tuple[int, Any]]]:
    """In place of ``map_in_processes``: Ctrl-C after some answers."""

    def run_some(work: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
        for position, task in enumerate(tasks[:count]):
            yield position, work(task)
        raise KeyboardInterrupt

    return run_some


def test_tightness_tables_name_every_bound_and_the_check() -> None:
    result = run("tightness", *SMALL)
    assert result.exit_code == 0
    for name in softhull.BOUNDS:
        assert f" {name} " in result.stdout
    assert "8 of 8 cells" in result.stdout
    assert "holds (16 regions)" in result.stdout
    assert "65^2 points for K = 2" in result.stdout


def test_tightness_json_has_cells_summary_and_check() -> None:
    result = run("tightness", *SMALL, "--equal", "--json", "--seed", "3")
    assert result.exit_code == 0
    study = json.loads(result.stdout)
    assert study["hull_never_looser"] == {"holds": True, "regions": 8, "broken": []}
    assert list(study["summary"]) == ["equal"]
    assert len(study["cells"]) == study["cells_done"] == 4
    cell = study["cells"][0]
    assert cell["looseness"]["upper"]["hull"] == pytest.approx(sum(cell["regions"]["upper"]["hull"]) / 2)


def test_tightness_exits_1_when_a_statement_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softhull.study.tightness._broken", lambda *anything: ["er lower is tighter than hull"])
    result = run("tightness", *SMALL)
    assert result.exit_code == 1
    assert "BROKEN: er lower is tighter than hull" in result.stdout


def test_tightness_after_an_interrupt_shows_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softhull.study.tightness.map_in_processes", interrupt_after(3))
    result = run("tightness", *SMALL, "--json")
    assert result.exit_code == INTERRUPTED
    study = json.loads(result.stdout)
    assert (study["cells_done"], study["cells_asked"]) == (3, 8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--k", "7"], "2 to 5"),
        (["--k", "2.5"], "whole number"),
        (["--half-width", "100"], "half-width"),
        (["--mu", "0.1"], "1/K"),
        (["--regions", "0"], "--regions"),
    ],
)
def test_tightness_refuses_what_it_cannot_compute(arguments: list[str], said: str) -> None:
    assert_one_line_error(run("tightness", *arguments), said)


def test_missing_highs_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert_one_line_error(run("tightness", *SMALL), "pip install 'softhull[lp]'")


@pytest.fixture
def short_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two panels of the main figure, one of each kind, for few sizes."""
    from softhull.paper.synth import figure_plans

    main = figure_plans((2, 3))[0]
    monkeypatch.setattr("softhull.paper.synth.figure_plans", lambda: [replace(main, panels=main.panels[:2])])


@pytest.mark.usefixtures("short_study")
def test_paper_synth_writes_tables_and_figures(tmp_path: Path) -> None:
    options = ["--regions", "3", "--points", "5", "--workers", "1"]
    result = run("paper", "synth", "--out", str(tmp_path / "new"), *options)
    assert result.exit_code == 0
    assert "10 of 10 settings" in result.stdout
    written = sorted(path.suffix for path in (tmp_path / "new").iterdir())
    assert {suffix: written.count(suffix) for suffix in written} == {".csv": 2, ".png": 3, ".svg": 3}


@pytest.mark.usefixtures("short_study")
def test_paper_synth_after_an_interrupt_writes_what_was_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("softhull.paper.synth.map_in_processes", interrupt_after(2))
    result = run("paper", "synth", "--out", str(tmp_path), "--regions", "2", "--points", "3", "--workers", "1")
    assert result.exit_code == INTERRUPTED
    assert "2 of 10 settings" in result.stdout
    assert list(tmp_path.glob("*.csv"))


def test_paper_synth_refuses_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_one_line_error(run("paper", "synth", "--out", str(tmp_path / "file")), "file")
