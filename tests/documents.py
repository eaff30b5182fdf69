"""Pages of the documentation, the code in them, and what it prints.

``python -m tests.documents [PAGE ...]`` runs the code and writes what it prints, and the pictures it saves, into the
pages; the tests run the same code and compare.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from click.testing import CliRunner

from softhull.cli.app import app

ROOT = Path(__file__).parents[1]
GALLERY = tuple(sorted((ROOT / "docs/gallery").glob("*.md")))
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *GALLERY)

# Commands that take minutes: their options are read, the work is not done.
LONG = {"tightness", "paper", "demo", "plot"}
RUN_ANYWAY = {"--only-files", "sigmoid", "reliability"}
# The title of a block with what the code before it prints.
OUTPUT = "Output"

_BLOCK = re.compile(r"^( *)```(\w+)?([^\n]*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="([\w.-]+)"')
_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w-]+\.(?:png|svg))\)")
# What differs from run to run and from machine to machine: times, memory, addresses of workers.
_MEASURED = re.compile(r"\d+(?:\.\d+)?(?= ?(?:ms|CPU s|CPU seconds|seconds|s|MB)\b)|tcp://[\d.:]+")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


@dataclass(frozen=True)
class Block:
    """Fenced code: its language, its text, the file it is shown as, if any, and where it stands in the page."""

    language: str
    text: str
    title: str | None
    span: tuple[int, int] = (0, 0)

    @property
    def is_output(self) -> bool:
        return self.language == "text" and self.title == OUTPUT


def blocks(page: Path) -> list[Block]:
    """All fenced code of a page, in order."""
    found = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        indent, language, options, text = match.groups()
        plain = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        title = _TITLE.search(options)
        found.append(Block(language, plain, title and title[1], match.span()))
    return found


def pictures(page: Path) -> list[str]:
    """Pictures beside the page that it shows."""
    return _PICTURE.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> Iterator[list[str]]:
    """The softhull commands of a shell block one by one, file patterns expanded by what is there at that moment."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["softhull"]:
            yield [name for word in words[1:] for name in _expanded(word)]


def _expanded(word: str) -> list[str]:
    return sorted(glob.glob(word)) if "*" in word and glob.glob(word) else [word]


def run(page: Path) -> Iterator[tuple[Block, str]]:
    """Run the code of a page in the current folder; yields each block that ran and what it printed."""
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        if block.title and not block.is_output:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, str(page), "exec"), names)
            yield block, printed.getvalue()
        elif block.language == "sh":
            yield block, "".join(_command(arguments) for arguments in commands(block.text))


def _command(arguments: list[str]) -> str:
    if arguments[0] in LONG and not RUN_ANYWAY & set(arguments):
        _read_only(arguments)
        return ""
    done = CliRunner(env={"COLUMNS": "100"}).invoke(app, arguments)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout


def _read_only(arguments: list[str]) -> None:
    """Parse a command with all its options and stop before it runs."""
    command: click.Command | None = app
    left = list(arguments)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), left.pop(0))
    assert command is not None, arguments
    command.make_context(command.name, left)


def output_after(page: Path, block: Block) -> Block | None:
    """The output that the page shows right below a block."""
    text = page.read_text(encoding="utf-8")
    for other in blocks(page):
        if other.span[0] > block.span[0]:
            return other if other.is_output and not text[block.span[1] : other.span[0]].strip() else None
    return None


def same(shown: str, printed: str) -> bool:
    """Whether two outputs agree, but for what is measured and for the last digits of other numbers.

    A line of three dots in what is shown stands for any number of lines.
    """
    shown, printed = _without_costs(tidy(shown)), _without_costs(tidy(printed))
    pieces = re.split(r"^\s*\.\.\.\s*$", shown, flags=re.MULTILINE)
    if re.fullmatch(r".*?".join(map(_pattern, pieces)), printed, flags=re.DOTALL) is None:
        return False
    return len(pieces) > 1 or all(_close(a, b) for a, b in zip(_numbers(shown), _numbers(printed)))


def _without_costs(text: str) -> str:
    """A table without the cells of columns that are measured; columns stand two spaces or more apart."""
    lines = text.splitlines()
    for rule in [number for number, line in enumerate(lines) if number and re.fullmatch(r" *─+ *", line)]:
        names = _cells(lines[rule - 1])
        for number in range(rule + 1, len(lines)):
            cells = _cells(lines[number])
            if len(cells) != len(names):
                break
            kept = [cell for name, cell in zip(names, cells) if not re.search("CPU|seconds|cost", name)]
            lines[number] = "  ".join(kept)
    return "\n".join(lines)


def _cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def _pattern(shown: str) -> str:
    skeleton = re.split(r"\s+", _NUMBER.sub("\0", _MEASURED.sub("\0", shown)))
    number = r"(?:" + _NUMBER.pattern + r"|tcp://[\d.:]+)"
    return r"\s*".join(re.escape(word).replace(re.escape("\0"), number) for word in skeleton)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(_MEASURED.sub("", text))]


def _close(a: float, b: float) -> bool:
    """To a part in a hundred, which other versions of torch or another machine stay within; counts are exact."""
    return a == b if a.is_integer() and b.is_integer() else abs(a - b) <= 0.01 * max(abs(a), abs(b)) + 1e-6


def tidy(printed: str) -> str:
    """Without spaces at the ends of lines and empty lines around."""
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()).rstrip()


def rewrite(page: Path) -> None:
    """Run a page and write into it what its code prints, where the page shows output, and beside it its pictures."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        printed = [(output_after(page, block), text) for block, text in run(page)]
        for name in pictures(page):
            if Path(name).exists():
                shutil.copyfile(name, page.parent / name)
    text = page.read_text(encoding="utf-8")
    for shown, said in reversed(printed):
        if shown is not None and not same(shown.text, said):
            block = f'```text title="{OUTPUT}"\n{tidy(said)}\n```'
            text = text[: shown.span[0]] + block + text[shown.span[1] :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for chosen in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        print(chosen.relative_to(ROOT), flush=True)
        rewrite(chosen)
