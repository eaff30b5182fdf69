"""The report as a file: complete, small, true to the store, and nothing of the store in it is live."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from softhull.cli.app import app
from softhull.propagate.methods import Linear, Paper
from softhull.regions import Perturbation
from softhull.report.content import report_content
from softhull.report.html import report_html
from softhull.report.labels import method_labels, network_names
from softhull.report.pictures import picture_layout
from softhull.runs.store import Store
from softhull.runs.tasks import Answer, Model, Task

from .stores import MODEL, RADII, made_up_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_store(tmp_path_factory.mktemp("store"))


def content_of(page: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(found)


def test_the_command_writes_a_page_that_needs_nothing_else(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    done = CliRunner().invoke(app, ["report", str(store), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert str(out) in done.output
    page = out.read_text()
    assert "{{" not in page.split('<script type="application/json"')[0]
    assert not re.findall(
        r"<(?:link|img|iframe)\b|\bsrc=|@import|url\(", re.sub(r"<script.*?</script>", "", page, flags=re.S)
    )
    assert "default-src 'none'" in page


def test_columns_hold_every_answer(store: Path) -> None:
    with Store.read(store) as opened:
        content = report_content(opened)
        rows = list(opened.rows())
    columns = content["columns"]
    assert {len(column) for column in columns.values()} == {len(rows)} == {40 * len(RADII) * 4}
    for place, row in enumerate(rows):
        task = content["tasks"][columns["task"][place]]
        assert (columns["index"][place], columns["label"][place]) == (row.index, row.label)
        assert content["verdicts"][columns["verdict"][place]] == row.verdict
        assert (task["network"], task["eps"], task["question"]) == (row.network, row.eps, row.question)
        assert columns["bound"][place] == pytest.approx(row.bound, rel=1e-5)
        assert content["messages"][columns["message"][place]] == row.message
    assert content["unanswered"] == 0
    assert content["tasks"][0]["models"][0]["sha256"] == MODEL.sha256


def test_nothing_of_the_store_leaves_its_place(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script><!-- {{script}} & <b>"
    with Store.write(tmp_path / "runs.db", {"command": nasty}) as store:
        model = Model(nasty, nasty)
        task = Task(
            "robustness",
            nasty,
            (model,),
            nasty,
            nasty,
            Perturbation(0.1),
            "linear",
            Linear(),
            "hull",
            {"property": nasty},
        )
        store.register(task, [0], [1], ["key"])
        store.record({"key": Answer("error", message=nasty)})
    with Store.read(tmp_path / "runs.db") as store:
        page = report_html(store)
    content = content_of(page)
    assert content["tasks"][0]["network"] == nasty
    assert content["messages"][1] == nasty
    for live in ("alert(1)</script>", "<b>", "<!--"):
        assert live not in page
    assert page.count("</script>") == 3


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with Store.write(tmp_path / "runs.db", {"command": "test"}) as store:
        task = Task(
            "robustness",
            "n",
            (MODEL,),
            "d",
            "d.npz",
            Perturbation(0.1),
            "linear",
            Linear(),
            "hull",
            {"x": float("nan")},
        )
        store.register(task, [0, 1], [1, 1], ["a", "b"])
        store.record({"a": Answer("certified", bound=float("inf")), "b": Answer("unknown", bound=float("-inf"))})
    with Store.read(tmp_path / "runs.db") as store:
        content = content_of(report_html(store))
    assert content["columns"]["bound"] == [None, None]


def test_twenty_thousand_instances_stay_small(tmp_path: Path) -> None:
    with Store.read(made_up_store(tmp_path, 1000, (0.01, 0.02, 0.03, 0.04, 0.05), side=28)) as opened:
        page = report_html(opened)
    content = content_of(page)
    assert len(content["columns"]["task"]) == 20_000
    assert len(page.encode()) < 15e6


def test_pictures_are_the_inputs_that_were_verified(store: Path) -> None:
    import base64

    with Store.read(store) as opened:
        content = report_content(opened)
    (pictures,) = content["pictures"]["sets"]
    assert list(pictures["shape"]) == [8, 8, 1]
    pixels = np.load(store.parent / "images.npz")["x"]
    for index, packed in pictures["inputs"].items():
        assert base64.b64decode(packed) == pixels[index].tobytes()
    assert len(pictures["inputs"]) == 40
    verdicts = {content["verdicts"][content["columns"]["verdict"][row]] for row in content["pictures"]["worst"]}
    assert verdicts == {"falsified", "bounded"}


def test_inputs_that_have_changed_are_not_shown(tmp_path: Path) -> None:
    store = made_up_store(tmp_path, 10)
    with np.load(tmp_path / "images.npz") as data:
        x, y = data["x"].copy(), data["y"]
    x[3] ^= 1
    np.savez(tmp_path / "images.npz", x=x, y=y)
    with Store.read(store) as opened:
        shown = report_content(opened)["pictures"]
    assert set(shown["sets"][0]["inputs"]) == set(range(10)) - {3}
    assert "not those of the runs" in shown["note"]


def test_data_that_has_gone_or_moved(tmp_path: Path) -> None:
    store = made_up_store(tmp_path, 5)
    (tmp_path / "images.npz").rename(tmp_path / "moved.npz")
    with Store.read(store) as opened:
        gone = report_content(opened)["pictures"]
        moved = report_content(opened, [tmp_path / "moved.npz"])["pictures"]
        unwanted = report_content(opened, images=False)["pictures"]
    assert gone["sets"] == []
    assert "--data" in gone["note"]
    assert len(moved["sets"][0]["inputs"]) == 5
    assert unwanted == {"sets": [], "worst": {}, "note": ""}


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((8, 8), (8, 8, 1)),
        ((784,), (28, 28, 1)),
        ((28, 28, 1), (28, 28, 1)),
        ((1, 28, 28), (28, 28, 1)),
        ((3, 32, 32), (32, 32, 3)),
        ((32, 32, 3), (32, 32, 3)),
        ((224, 224, 3), (44, 44, 3)),
        ((16,), None),
        ((10,), None),
        ((2, 2), None),
        ((), None),
        ((0, 8), None),
        ((4, 5, 6, 7), None),
    ],
)
def test_what_counts_as_an_image(shape: tuple[int, ...], shown: tuple[int, int, int] | None) -> None:
    layout = picture_layout(shape)
    assert (layout and layout.shown) == shown
    if layout is not None:
        x = np.random.default_rng(0).random(shape)
        assert layout.image(x.reshape(-1)).shape == shown
        assert np.ptp(layout.image(np.full(x.size, 0.25))) == 0


def test_colours_first_and_last_give_the_same_picture() -> None:
    image = np.random.default_rng(0).random((32, 32, 3))
    last, first = picture_layout((32, 32, 3)), picture_layout((3, 32, 32))
    assert last is not None
    assert first is not None
    np.testing.assert_array_equal(last.image(image.reshape(-1)), first.image(image.transpose(2, 0, 1).reshape(-1)))


def task_row(method: object, name: str, bound: str, sha: str = "00", **keywords: object) -> dict:
    task = Task("robustness", "net", (Model("n", sha),), "d", "d", Perturbation(0.1), name, method, bound, keywords)
    row = task.columns()
    return row | {"settings": json.loads(row["settings"]), "models": json.loads(row["models"])}


def test_labels_say_what_differs_and_no_more() -> None:
    rows = [
        task_row(Linear(optimize=0), "linear", "hull", property="all"),
        task_row(Linear(optimize=20), "linear", "hull", property="runner-up"),
        task_row(Paper(), "paper", "lse*", property="all"),
    ]
    assert method_labels(rows) == ["linear · hull · optimize 0", "linear · hull · optimize 20", "paper · lse*"]


def test_networks_of_one_name_are_told_apart_by_their_hash() -> None:
    rows = [task_row(Linear(), "linear", "hull", sha) for sha in ("aaaaaaaaaa", "bbbbbbbbbb")]
    assert network_names(rows) == ["net (aaaaaaaa)", "net (bbbbbbbb)"]
    assert network_names(rows[:1]) == ["net"]


def test_an_empty_store_and_a_foreign_file(tmp_path: Path) -> None:
    with Store.write(tmp_path / "empty.db", {"command": "test"}):
        pass
    done = CliRunner().invoke(app, ["report", str(tmp_path / "empty.db"), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    (tmp_path / "foreign.db").write_bytes(b"not a store at all, but long enough to be looked at" * 50)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "foreign.db"), "-o", str(tmp_path / "no.html")])
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "no.html").exists()


def test_the_title_names_the_campaign(tmp_path: Path) -> None:
    with Store.write(tmp_path / "runs.db", {"command": "run", "campaign": "/somewhere/digits.toml"}):
        pass
    with Store.read(tmp_path / "runs.db") as store:
        assert report_content(store)["title"] == "digits (runs.db)"
    with Store.write(tmp_path / "other.db", {"command": "robustness"}):
        pass
    with Store.read(tmp_path / "other.db") as store:
        assert report_content(store)["title"] == "other.db"


def test_two_stores_keep_their_rows_tasks_and_pictures(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [made_up_store(tmp_path / "a", 4), made_up_store(tmp_path / "b", 6, (0.01,))]
    with Store.read(paths[0]) as first, Store.read(paths[1]) as second:
        parts, both = [report_content(first), report_content(second)], report_content([first, second])
    assert len(both["columns"]["index"]) == sum(len(part["columns"]["index"]) for part in parts)
    assert len(both["tasks"]) == sum(len(part["tasks"]) for part in parts)
    rows = len(parts[0]["columns"]["index"])
    for name, column in parts[1]["columns"].items():
        own = both["columns"][name][rows:]
        if name == "task":
            assert [both["tasks"][place]["eps"] for place in own] == [parts[1]["tasks"][p]["eps"] for p in column]
        elif name == "message":
            assert [both["messages"][place] for place in own] == [parts[1]["messages"][p] for p in column]
        else:
            assert own == column
    for row, pixels in parts[1]["pictures"]["worst"].items():
        assert both["pictures"]["worst"][row + rows] == pixels
    sets = both["pictures"]["sets"]
    assert [len(each["inputs"]) for each in sets] == [4, 6]
    assert {task["pictures"] for task in both["tasks"]} == {0, 1}
