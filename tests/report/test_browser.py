"""The report in a real browser: opens without a complaint, and its parts do what they say."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from softhull.propagate.methods import Linear
from softhull.regions import Perturbation
from softhull.report.html import report_html
from softhull.runs.store import Store
from softhull.runs.tasks import Answer, Model, Task

from .browser import find_browser, start_browser
from .stores import RADII, made_up_store

INSTANCES = 40

Open = Callable[[Path], Any]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_browser()
    folder = tmp_path_factory.mktemp("report")
    return written(made_up_store(folder, INSTANCES))


def written(store: Path) -> Path:
    out = store.with_suffix(".html")
    with Store.read(store) as opened:
        out.write_text(report_html(opened), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()


def opened(browser: Any, page: Path) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.as_uri())
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return document.documentElement.dataset.ready"))
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert browser.get_log("browser") == []
    return browser


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((found) => found.textContent.trim())"
    return browser.execute_script(script, selector)


def column(browser: Any, table: str, place: int) -> list[str]:
    return texts(browser, f"{table} tbody td:nth-child({place})")


def choose(browser: Any, label: str, value: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.CSS_SELECTOR, f'#filters select[aria-label="{label}"]')).select_by_value(value)
    settle(browser)


def settle(browser: Any) -> None:
    """Wait for what a filter has started."""
    browser.execute_async_script("setTimeout(() => requestAnimationFrame(arguments[0]), 200)")


def click(browser: Any, selector: str, place: int = 0) -> None:
    browser.execute_script("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, place)
    settle(browser)


def painted(browser: Any, selector: str) -> bool:
    """Whether a canvas shows more than one colour."""
    script = """
      const canvas = document.querySelector(arguments[0]);
      const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(image.data.buffer)).size > 1"""
    return browser.execute_script(script, selector)


def test_every_part_is_there_and_nothing_was_fetched(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    for part in ("headline", "radius", "scatter", "cost", "disagreements", "pictures", "instances", "reproduce"):
        assert texts(browser, f"#{part} h2"), part
    for chart in ("#radius", "#scatter", "#cost"):
        assert painted(browser, f"{chart} canvas"), chart
    assert painted(browser, "#pictures canvas")
    assert len(column(browser, "#headline", 1)) == 2 * len(RADII)
    assert texts(browser, "#count") == [f"{2 * INSTANCES * len(RADII)} instances"]
    assert "sha256 " + "ab" * 32 in " ".join(texts(browser, "#reproduce code"))


def test_scores_have_brackets(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    click(browser, ".tab", 1)
    assert painted(browser, "#brackets canvas")
    assert set(column(browser, "#headline", 2)) == {"nll", "brier"}
    assert browser.execute_script("return document.getElementById('disagreements').hidden")
    assert browser.get_log("browser") == []


def test_filters_leave_what_they_name(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    choose(browser, "Radius", "0.02")
    assert set(column(browser, "#instances", 4)) == {"0.02"}
    choose(browser, "Verdict", "certified")
    assert set(column(browser, "#instances", 6)) == {"certified"}
    left = int(texts(browser, "#count")[0].split()[0])
    assert 0 < left < 2 * INSTANCES
    choose(browser, "Method", "paper · lse*")
    assert set(column(browser, "#instances", 5)) == {"paper · lse*"}
    click(browser, "#reset")
    assert texts(browser, "#count") == [f"{2 * INSTANCES * len(RADII)} instances"]


def test_the_headline_follows_the_filters_and_mixes_nothing(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    assert not [text for text in texts(browser, "#cards") if "%" in text]  # of several methods and radii
    choose(browser, "Radius", "0.02")
    choose(browser, "Method", "paper · lse*")
    share = column(browser, "#headline", 5)
    assert len(share) == 1
    assert f"{share[0]}certified: stays the class" in texts(browser, "#cards .card")
    assert "0.02radius" in texts(browser, "#cards .card")


def test_filters_live_in_the_address(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    choose(browser, "Radius", "0.02")
    choose(browser, "Verdict", "certified")
    left = texts(browser, "#count")
    address = browser.current_url
    assert "eps=0.02" in address
    browser.get("about:blank")
    browser.get(address)
    settle(browser)
    assert texts(browser, "#count") == left
    assert set(column(browser, "#instances", 4)) == {"0.02"}
    browser.get(page.as_uri() + "#eps=17&verdict=%3Cb%3E&question=__proto__")  # what is not known is ignored
    settle(browser)
    assert texts(browser, "#count") == [f"{2 * INSTANCES * len(RADII)} instances"]
    assert browser.get_log("browser") == []


def test_every_input_has_its_certified_radius(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    script = """
      const rows = [...Array(SIZE).keys()].filter((row) => taskOf(row).question === "robustness");
      return radiiOf(rows).map((found) => [found.index, found.task.label, found.certified, found.broken]);"""
    found = browser.execute_script(script)
    assert len(found) == 2 * INSTANCES
    for index, label, certified, broken in found:
        assert certified is None or broken is None or certified < broken, (index, label)
    assert texts(browser, "#radii h2") == ["Certified radius of every input"]
    choose(browser, "Radius", "0.02")  # one radius says nothing about the largest
    assert browser.execute_script("return document.getElementById('radii').hidden")


def test_tables_and_charts_are_saved(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    charts, pictures = len(texts(browser, ".chart canvas")), len(texts(browser, ".drawing .save"))
    assert charts == pictures > 0
    assert len(texts(browser, ".tabular")) == len(texts(browser, ".tabular > .save"))
    script = """
      const saved = [];
      window.download = (name, url) => saved.push([name, url.slice(0, 30)]);
      const blobs = [];
      const make = URL.createObjectURL;
      URL.createObjectURL = (blob) => { blobs.push(blob); return make(blob); };
      document.querySelector("#headline .save").click();
      document.querySelector("#radius .save").click();
      URL.createObjectURL = make;
      blobs[0].text().then((text) => arguments[0]([saved, text]));"""
    saved, text = browser.execute_async_script(script)
    assert saved[0][0] == "at-a-glance.csv"
    assert saved[1][0].endswith(".png")
    assert saved[1][1].startswith("data:image/png")
    lines = text.strip().split("\r\n")
    assert len(lines) == 1 + 2 * len(RADII)
    assert lines[0].startswith("network,radius,method,inputs,certified %")
    assert browser.execute_script('return csvText(["a"], [["=1+1"], [\'x,"y"\'], [null]])').split("\r\n")[1:4] == [
        *("'=1+1", '"x,""y"""', ""),
    ]


def test_two_stores_stand_side_by_side(wide: Any, tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    stores = [made_up_store(tmp_path / name, 12) for name in ("before", "after")]
    with Store.read(stores[0]) as first, Store.read(stores[1]) as second:
        (tmp_path / "both.html").write_text(report_html([first, second]), encoding="utf-8")
    browser = opened(wide, tmp_path / "both.html")
    methods = set(column(browser, "#headline", 3))
    assert methods == {f"{m} · {s}/runs.db" for m in ("linear · hull", "paper · lse*") for s in ("before", "after")}
    assert texts(browser, "#count") == [f"{2 * 2 * 12 * len(RADII)} instances"]
    assert painted(browser, "#scatter canvas")
    assert browser.get_log("browser") == []


def test_search_finds_an_index(wide: Any, page: Path) -> None:
    from selenium.webdriver.common.by import By

    browser = opened(wide, page)
    browser.find_element(By.CSS_SELECTOR, "#filters input").send_keys("17")
    settle(browser)
    assert set(column(browser, "#instances", 1)) == {"17"}
    assert texts(browser, "#count")[0].startswith(f"{2 * len(RADII)} of")


def test_a_search_without_hits_shows_empty_tables(wide: Any, page: Path) -> None:
    from selenium.webdriver.common.by import By

    browser = opened(wide, page)
    browser.find_element(By.CSS_SELECTOR, "#filters input").send_keys("no such thing")
    settle(browser)
    assert texts(browser, "#count")[0].startswith("0 of")
    assert column(browser, "#instances", 1) == []
    assert texts(browser, "#empty h2") == ["Nothing passes these filters"]
    assert browser.get_log("browser") == []


def test_a_click_on_a_heading_sorts_and_another_reverses(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    heading = "#instances th:nth-child(9)"
    assert texts(browser, heading) == ["margin, certified"]

    def shown() -> list[float]:
        return [float(text.replace("−", "-")) for text in column(browser, "#instances", 9)]

    click(browser, f"{heading} button")
    assert shown() == sorted(shown())
    smallest = shown()[0]
    click(browser, f"{heading} button")
    assert shown() == sorted(shown(), reverse=True)
    assert shown()[0] > smallest
    click(browser, "#instances .pager button", 3)
    assert shown()[0] > smallest


def test_a_line_opens_the_instance(wide: Any, page: Path) -> None:
    browser = opened(wide, page)
    choose(browser, "Verdict", "falsified")
    index = column(browser, "#instances", 1)[0]
    click(browser, "#instances tbody tr")
    assert texts(browser, "#detail h2")[0].startswith(f"Input {index},")
    label = int(column(browser, "#instances", 2)[0])
    new = (label + 1) % 10
    assert texts(browser, "#detail figcaption") == [f"input: {label}", f"counterexample: {new}", "change"]
    assert "of 255" in texts(browser, "#detail .scale")[0]
    assert "stays the class" in texts(browser, "#detail dd")
    sizes = "return [...document.querySelectorAll(arguments[0])].map((c) => c.getBoundingClientRect().width)"
    for strip in ("#detail canvas", "#pictures .picture:first-child canvas"):
        widths = browser.execute_script(sizes, strip)
        assert len(widths) == 3
        assert max(widths) - min(widths) < 1
    assert "object" not in texts(browser, "#detail")[0]
    click(browser, "#detail .title button")
    assert not browser.execute_script("return document.getElementById('detail').open")


def test_the_theme_follows_the_reader_and_the_button(page: Path, tmp_path: Path) -> None:
    browser = start_browser(tmp_path, dark=True)
    try:
        opened(browser, page)

        def brightness() -> float:
            colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            red, green, blue = json.loads("[" + colour.removeprefix("rgb(").removesuffix(")") + "]")
            return (red + green + blue) / 3

        assert brightness() < 60
        click(browser, "#theme")
        assert brightness() > 200
        click(browser, "#theme")
        assert brightness() < 60
        assert browser.get_log("browser") == []
    finally:
        browser.quit()


def test_nothing_sticks_out_on_a_phone(page: Path, tmp_path: Path) -> None:
    browser = start_browser(tmp_path, width=390, height=844)
    try:
        opened(browser, page)
        for tab in (0, 1):
            click(browser, ".tab", tab)
            assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        # The headline is read without scrolling sideways: every number of the first line is on the screen.
        rights = (
            "return [...document.querySelectorAll('#headline tr td')].map((cell) => cell.getBoundingClientRect().right)"
        )
        assert max(browser.execute_script(rights)) <= 390
        assert browser.get_log("browser") == []
    finally:
        browser.quit()


def test_hostile_names_are_shown_as_they_are(wide: Any, tmp_path: Path) -> None:
    nasty = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>"
    with Store.write(tmp_path / "runs.db", {"command": nasty}) as store:
        for method in ("linear", "paper"):
            model = Model(nasty, nasty)
            task = Task(
                *("robustness", nasty, (model,), nasty, nasty, Perturbation(0.1), method + nasty, Linear(), nasty),
                {"property": nasty},
            )
            store.register(task, [0], [1], [method])
            verdict = "certified" if method == "linear" else "falsified"
            store.record({method: Answer(verdict, 0.1, 0.1, message=nasty, cpu_seconds=0.1)})
    browser = opened(wide, written(tmp_path / "runs.db"))
    click(browser, "#instances tbody tr")
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.images.length") == 0
    assert column(browser, "#headline", 1) == [nasty, nasty]
    assert "1 contradiction" in texts(browser, "#alarm")[0]
    assert browser.get_log("browser") == []


def test_descriptions_that_make_no_sense_do_no_harm(wide: Any, tmp_path: Path) -> None:
    store = made_up_store(tmp_path, 3, (0.01,))
    with sqlite3.connect(store) as connection:
        connection.execute(
            "UPDATE tasks SET eps = 9e999, models = '7', settings = 'null', norm = '__proto__' WHERE id = 1"
        )
        connection.execute("UPDATE tasks SET question = '__proto__', clip_low = NULL, score = 'x' WHERE id = 3")
        connection.execute("UPDATE answers SET bound = 9e999, cpu_seconds = -9e999 WHERE rowid % 2")
    connection.close()
    browser = opened(wide, written(store))
    for tab in range(len(texts(browser, ".tab"))):
        click(browser, ".tab", tab)
        assert column(browser, "#instances", 1)[0] == "0"
        assert browser.get_log("browser") == []


def test_an_empty_store_says_so(wide: Any, tmp_path: Path) -> None:
    with Store.write(tmp_path / "runs.db", {"command": "test"}):
        pass
    browser = opened(wide, written(tmp_path / "runs.db"))
    assert texts(browser, "#headline h2") == ["Nothing answered yet"]


def test_twenty_thousand_instances_answer_to_filters(wide: Any, tmp_path: Path) -> None:
    store = made_up_store(tmp_path, 1000, (0.01, 0.02, 0.03, 0.04, 0.05), side=28)
    browser = opened(wide, written(store))
    assert texts(browser, "#count") == ["10,000 instances"]
    choose(browser, "Verdict", "unknown")
    assert set(column(browser, "#instances", 6)) == {"unknown"}
    click(browser, ".tab", 1)
    assert texts(browser, "#count") == ["10,000 instances"]
    assert browser.get_log("browser") == []
