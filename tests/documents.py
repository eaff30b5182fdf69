"""Pages of the documentation and the code in them."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"^( *)```(\w+)?([^\n]*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="([\w.-]+)"')


@dataclass(frozen=True)
class Block:
    """Fenced code: its language, its text, and the file it is shown as, if any."""

    language: str
    text: str
    title: str | None


def blocks(page: Path) -> list[Block]:
    """All fenced code of a page, in order."""
    found = []
    for indent, language, options, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        plain = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        title = _TITLE.search(options)
        found.append(Block(language, plain, title and title[1]))
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The softhull commands of a shell block one by one, file patterns expanded by what is there at that moment."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["softhull"]:
            yield [name for word in words[1:] for name in _expanded(word)]


def _expanded(word: str) -> list[str]:
    return sorted(glob.glob(word)) if "*" in word and glob.glob(word) else [word]
