"""Five questions that a newcomer asks, and where in the README the answer stands.

Each answer is one click from the table at the top, contains what is needed to act on it, and leads on to pages and
sections that exist.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .documents import PAGES, ROOT

# Question -> the section, what must be in it, and where it leads.
ANSWERS = {
    "verify an ONNX file": (
        "verify-an-onnx-file",
        ["softhull verify", ".onnx", "--eps", "certified"],
        ["docs/inputs.md", "docs/attention.md"],
    ),
    "bound a softmax": (
        "bound-a-softmax",
        ["softhull.softmax_planes(", "softhull.softmax_extrema("],
        ["docs/choosing.md", "docs/gallery/planes.md"],
    ),
    "certify an ensemble": (
        "certify-an-ensemble",
        ["softhull uncertainty", "certified at most"],
        ["docs/uncertainty.md", "docs/gallery/ensemble.md"],
    ),
    'know what "certified" means': (
        "what-certified-means",
        ["every real input", "rounding", "Falsified", "Unknown"],
        ["docs/soundness.md", "docs/certificates.md"],
    ),
    "know what is not covered": ("what-is-not-covered", ["refused"], ["docs/limits.md", "docs/operators.md"]),
}

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def slug(heading: str) -> str:
    """The anchor of a heading, as both GitHub and the site make it."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def prose(page: Path) -> str:
    """A page without its fenced code, in which # is a comment."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)}


def section(anchor: str) -> str:
    """The text of the README under the heading with this anchor."""
    parts = re.split(r"^## (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(map(slug, parts[1::2]), parts[2::2]))[anchor]


@pytest.mark.parametrize("question", ANSWERS)
def test_the_readme_answers(question: str) -> None:
    anchor, needed, onward = ANSWERS[question]
    top = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(rf"^\| {re.escape(question)} \|.*\(#{anchor}\)", top, flags=re.MULTILINE)
    answer = section(anchor)
    assert len(answer.splitlines()) <= 45, "more than a screen"
    assert all(words in answer for words in needed)
    targets = {link.partition("#")[0] for link in _LINK.findall(answer)}
    assert set(onward) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if re.match(r"\w+:", link) or link.endswith(".ipynb"):  # elsewhere, or made with the site
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else page.parent / name
        assert target.exists(), link
        assert not anchor or target.name == "api.md" or anchor in anchors(target), link
