"""Results explain themselves: what they hold, how they look, and the published schema of their JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import softhull
from softhull.cli.app import app

from .schema import complaints, schema

SCHEMA = schema("answer")
MLP, DIGITS = softhull.bundled("digits-mlp-0.onnx"), softhull.bundled("digits.npz")
EPS = 0.16


@pytest.fixture(scope="module")
def network() -> Any:
    return softhull.load_onnx(MLP)


@pytest.fixture(scope="module")
def digits() -> Any:
    return softhull.load_dataset(DIGITS)


@pytest.fixture(scope="module")
def result(network: Any, digits: Any) -> softhull.Result:
    near = softhull.Perturbation(EPS, clip=(0, 1))
    return softhull.verify_robustness(network, digits.x[:6], digits.y[:6], near, method="linear")


@pytest.fixture(scope="module")
def scores(network: Any, digits: Any) -> softhull.UncertaintyResult:
    method = softhull.Dual(steps=20)
    return softhull.verify_uncertainty(network, digits.x[:3], digits.y[:3], 0.02, "nll", method)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_result_says_what_was_asked(result: softhull.Result, network: Any, digits: Any) -> None:
    answer = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert list(complaints(answer, SCHEMA)) == []
    assert answer["models"] == [
        {"path": str(MLP), "sha256": hashlib.sha256(Path(MLP).read_bytes()).hexdigest()},
    ]
    x, y = digits.x[:6].astype("<f8"), digits.y[:6].astype("<i8")
    assert answer["data"]["sha256"] == hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()
    assert answer["region"] == {"eps": EPS, "norm": "inf", "clip": [0.0, 1.0]}
    assert answer["method"]["kind"] == "Linear"
    assert answer["settings"]["property"] == "all"
    assert answer["versions"]["softhull"] == softhull.__version__


def test_records_name_the_predicted_and_the_new_class(result: softhull.Result, network: Any, digits: Any) -> None:
    predicted = network.replay(digits.x[:6]).reshape(6, -1).argmax(1)
    assert [record.predicted for record in result] == predicted.tolist()
    broken = [record for record in result if record.verdict is softhull.Verdict.FALSIFIED]
    assert broken
    for record in broken:
        assert record.counterexample is not None
        assert record.new_class == network.replay(record.counterexample[None]).argmax()
        assert record.new_class != record.label
    assert all(record.new_class is None for record in result if record not in broken)
    assert sum(record.cpu_seconds for record in result) <= result.cpu_seconds


def test_scores_follow_the_schema(scores: softhull.UncertaintyResult) -> None:
    assert list(complaints(json.loads(json.dumps(scores.to_dict(), allow_nan=False)), SCHEMA)) == []
    assert all(record.predicted is not None and record.new_class is not None for record in scores.records)


@pytest.mark.parametrize("question", ["verify", "uncertainty"])
def test_the_command_line_follows_the_schema(question: str, tmp_path: Path) -> None:
    out, store = tmp_path / "answer.json", tmp_path / "runs.db"
    asked = (question, MLP, "--data", DIGITS, "--eps", EPS, "--clip", 0, 1, "--indices", "0:3")
    for more in ((), ("--store", store), ("--store", store)):
        done = call(*asked, "--json", out, "--table", *more)
        assert done.exit_code == 0, done.output
        assert "predicted" in done.stdout
        answer = json.loads(out.read_text(encoding="utf-8"))
        assert list(complaints(answer, SCHEMA)) == []
        assert answer["data"]["path"] == str(DIGITS)
        assert answer["data"]["file_sha256"] == hashlib.sha256(Path(DIGITS).read_bytes()).hexdigest()
        assert answer["command"][:2] == ["softhull", question]
    assert answer["instances"][0]["from_store"]
    assert answer["instances"][0]["predicted"] is not None


ONE = ("--data", DIGITS, "--eps", 0.02, "--clip", 0, 1, "--indices", "1:3")
FEW = ("--data", DIGITS, "--eps", 0.02, "--indices", "0:6", "--alpha", 0.5, "--splits", 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dataset", ("dataset", MLP, *ONE)),
        ("conformal", ("conformal", MLP, *FEW)),
        ("radii", ("verify", MLP, *ONE, "--radius", "--method", "linear")),
        ("specification", ("verify", MLP, "--vnnlib", "property.vnnlib")),
    ],
)
def test_every_other_answer_has_a_schema(
    name: str, arguments: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    box = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} 0))(assert (<= X_{i} 0.1))" for i in range(64))
    outputs = "".join(f"(declare-const Y_{i} Real)" for i in range(10))
    Path("property.vnnlib").write_text(f"{box}{outputs}(assert (>= Y_0 1000))", encoding="utf-8")
    done = call(*arguments, "--json", "answer.json")
    assert done.exit_code == 0, done.output
    answer = json.loads(Path("answer.json").read_text(encoding="utf-8"))
    assert list(complaints(answer, schema(name))) == []
    assert answer["schema"] == f"softhull-{name}-1"
    assert answer["command"][:2] == ["softhull", arguments[0]]
    for wrong in (answer | {"schema": "another"}, answer | {"more": 1}, {"schema": answer["schema"]}):
        assert list(complaints(wrong, schema(name)))


def test_samples_of_a_data_set_have_a_table(tmp_path: Path) -> None:
    out = tmp_path / "metrics.json"
    done = call("dataset", MLP, *ONE, "--table", "--fail-on", "unknown", "--json", out)
    assert done.exit_code == 0, done.output
    assert "samples, radius 0.02" in done.stdout
    rows = json.loads(out.read_text())["radii"][0]["instances"]
    assert [row["index"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 <= row["probability_least"] <= row["confidence_most"] <= 1
        assert row["confidence_least"] <= row["confidence_most"]


def test_numbers_that_could_not_be_bounded_fail_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("as on a machine with no memory left")

    monkeypatch.setattr("softhull.verify.ranges.RangeFinder.ranges", broken)
    monkeypatch.setattr("softhull.verify.uncertainty.solve", broken)
    for command in ("dataset", "uncertainty"):
        assert call(command, MLP, *ONE).exit_code == 0
        done = call(command, MLP, *ONE, "--fail-on", "unknown")
        assert done.exit_code == 1, done.output


def test_uncertainty_keeps_what_it_has_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, calls = softhull.ScoreAttack.run, iter((False, True, False))

    def interrupted(*given: Any) -> Any:
        if next(calls):
            raise KeyboardInterrupt
        return attack(*given)

    monkeypatch.setattr(softhull.ScoreAttack, "run", interrupted)
    monkeypatch.setattr("softhull.verify.uncertainty.BATCH", 1)
    out = tmp_path / "scores.json"
    done = call("uncertainty", MLP, *ONE, "--workers", 1, "--table", "--json", out)
    assert done.exit_code == 130, done.output
    answer = json.loads(out.read_text())
    assert answer["interrupted"]
    first, second = answer["instances"]
    assert first["attack"] <= first["bound"]
    assert second["bound"] is None
    assert "interrupted" in second["message"]


def test_the_schema_refuses_what_is_wrong(result: softhull.Result) -> None:
    answer = result.to_dict()
    wrong: Sequence[dict[str, Any]] = (
        answer | {"schema": "another"},
        answer | {"more": 1},
        answer | {"models": []},
        {name: value for name, value in answer.items() if name != "region"},
        answer | {"instances": [answer["instances"][0] | {"verdict": "sure"}]},
        answer | {"instances": [answer["instances"][0] | {"index": True}]},
    )
    assert all(list(complaints(each, SCHEMA)) for each in wrong)


def test_everything_has_a_short_text_and_html(
    result: softhull.Result, scores: softhull.UncertaintyResult, network: Any, digits: Any
) -> None:
    for shown in (result, result[0], scores, scores[0], network, digits):
        assert len(repr(shown)) < 250
        assert "\n" not in repr(shown)
        assert "<p>" in shown._repr_html_()
    assert "6 instances" in repr(result)
    assert "64 -> 10" in repr(network) or "8 x 8 -> " in repr(network)
    assert str(len(digits)) in repr(digits)


def test_html_shows_names_as_text() -> None:
    from softhull.show import html_table

    shown = html_table("<b>", [{"<i>": "<script>", "x": 0.123456789}])
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "0.12346" in shown


def test_plots_are_drawn_where_asked(result: softhull.Result, scores: Any, network: Any, digits: Any) -> None:
    from softhull.show import new_axes

    for shown in (result, scores, network, digits):
        axes = new_axes()
        assert shown.plot(axes) is axes
        assert axes.has_data() or axes.images
    assert result.plot().get_ylabel() == "certified margin to the nearest class"


def test_data_frames_have_a_line_per_instance(
    result: softhull.Result, scores: Any, network: Any, digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = ModuleType("pandas")
    pretended.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pretended)
    assert [row["verdict"] for row in result.to_pandas()] == [record.verdict.value for record in result]
    assert "counterexample" not in result.to_pandas()[0]
    assert len(scores.to_pandas()) == len(scores)
    assert len(digits.to_pandas()) == len(digits)
    assert len(network.to_pandas()) == len(network.graph.nodes)


def test_data_frames_of_pandas_itself(result: softhull.Result, scores: Any, network: Any, digits: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'softhull[pandas]'")
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["verdict"].value_counts().sum() == len(result)
    assert frame["cpu_seconds"].dtype == float
    assert scores.to_pandas()["bound"].notna().all()
    assert len(digits.to_pandas()) == len(digits)
    assert len(network.to_pandas()) == len(network.graph.nodes)
    radii = softhull.certified_radius(network, digits.x[:2], digits.y[:2], 0.01, method="linear", steps=1)
    assert list(radii.to_pandas()["capped"]) == [True, True]


def test_without_pandas_one_line_says_what_to_install(result: softhull.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(softhull.MissingExtra, match=r"pip install 'softhull\[pandas\]'"):
        result.to_pandas()


def test_radii_are_an_array_with_the_attacked_ones_beside(network: Any, digits: Any) -> None:
    x, wrong = digits.x[:4], (digits.y[:4] + np.array([0, 0, 0, 1])) % 10
    told: list[tuple[int, int]] = []
    near = softhull.Perturbation(0.2, clip=(0, 1))
    radii = softhull.certified_radius(
        network, x, wrong, near, method="linear", steps=4, progress=lambda done, total: told.append((done, total))
    )
    assert isinstance(radii, np.ndarray)
    certified = np.asarray(radii)
    assert np.isnan(certified).tolist() == [False, False, False, True]
    known = certified[:3]
    assert (known > 0).all()
    assert (radii.attacked[:3] > known).all()  # what is certified is not broken
    assert np.isnan(radii.attacked[3])
    for i in range(3):  # every attacked radius has a counterexample
        near = softhull.Perturbation(float(radii.attacked[i]), clip=(0, 1))
        again = softhull.verify_robustness(network, x[i : i + 1], wrong[i : i + 1], near, method="linear")
        assert again[0].verdict is softhull.Verdict.FALSIFIED
    assert told == sorted(told)
    small = softhull.certified_radius(network, x, wrong, softhull.Perturbation(1e-4), method="linear", steps=4)
    assert small.capped.tolist() == [True, True, True, False]
    assert small.tolist()[:3] == [1e-4] * 3
    assert "3 at the cap" in repr(small)
    assert small.to_dict()[0] == {"certified": 1e-4, "attacked": None, "capped": True}
    # What is computed from radii is a plain array.
    for computed in (radii[:2], radii + 1, radii > 0):
        assert type(computed) is np.ndarray
    assert isinstance(float(radii.max()), float)


def test_radii_on_the_command_line_say_when_they_are_capped(tmp_path: Path) -> None:
    out = tmp_path / "radii.json"
    asked = ("verify", MLP, "--data", DIGITS, "--indices", "0:2", "--method", "linear", "--radius", "--json", out)
    assert "(cap)" in call(*asked, "--eps", 1e-4).stdout
    (first, _) = json.loads(out.read_text())["instances"]
    assert first == {
        "index": 0,
        "label": 5,
        "certified": 1e-4,
        "radius": 1e-4,
        "attacked": None,
        "capped": True,
    }


def test_a_store_in_python_keeps_its_answers(network: Any, digits: Any, tmp_path: Path) -> None:
    store = softhull.RunStore(tmp_path / "runs.db")
    assert len(store.rows()) == 0
    told: list[tuple[int, int]] = []
    asked: dict[str, Any] = {"method": "linear", "progress": lambda done, total: told.append((done, total))}
    first = store.verify_robustness(network, digits.x[:3], digits.y[:3], EPS, **asked)
    plain = softhull.verify_robustness(network, digits.x[:3], digits.y[:3], EPS, method="linear")
    assert [record.verdict for record in first] == [record.verdict for record in plain]
    assert [record.new_class for record in first] == [record.new_class for record in plain]
    assert not first[0].from_store
    assert told[-1] == (3, 3)
    again = store.verify_robustness(network, digits.x[:3], digits.y[:3], EPS, **asked)
    assert all(record.from_store for record in again)
    assert [record.new_class for record in again] == [record.new_class for record in first]
    assert "3 answers" in repr(store)
    assert [row["predicted"] for row in store.rows()] == [record.predicted for record in plain]
    late = store.verify_uncertainty([network], digits.x[:2], digits.y[:2], EPS, budget=0)
    assert all("time limit" in record.message for record in late.records)
    with pytest.raises(softhull.InvalidInput, match="load_onnx or from_torch"):
        store.verify_robustness(network.graph, digits.x[:1], digits.y[:1], EPS)


def test_a_timeout_is_for_each_instance_and_a_budget_for_all(network: Any, digits: Any) -> None:
    for limit in ("timeout", "budget"):
        none: dict[str, Any] = {limit: 0}
        late = softhull.verify_robustness(network, digits.x[:3], digits.y[:3], EPS, **none)
        assert {record.verdict for record in late} <= {softhull.Verdict.UNKNOWN, softhull.Verdict.MISCLASSIFIED}
        with pytest.raises(softhull.InvalidInput, match=f"{limit} must be a number of seconds"):
            softhull.verify_robustness(network, digits.x[:3], digits.y[:3], EPS, **none | {limit: -1})


def test_instances_that_are_worked_on_together_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from softhull.deadlines import TimeLimits

    monkeypatch.setattr("softhull.deadlines.time.monotonic", lambda: 1000.0)
    limits = TimeLimits.of(2.0, 15.0)
    assert limits.for_batch(3) == 1006.0
    assert limits.for_batch(100) == 1015.0
    assert TimeLimits.of(None, None).for_batch(7) == float("inf")
