"""Every page of the gallery is also a Jupyter notebook, made from it when the site is built."""

from __future__ import annotations

import json
import re
from typing import Any

from mkdocs.structure.files import File, Files

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$\n?", flags=re.DOTALL | re.MULTILINE)
_FILE = re.compile(r'title="([\w.-]+)"')
_LINK = re.compile(r"^\[Download.*\n", flags=re.MULTILINE)


def on_files(files: Files, config: Any, **context: Any) -> Files:
    """Adds ``gallery/NAME.ipynb`` for every ``gallery/NAME.md``."""
    for page in list(files.documentation_pages()):
        if page.src_uri.startswith("gallery/") and page.name != "index":
            name = page.src_uri.removesuffix(".md") + ".ipynb"
            files.append(File.generated(config, name, content=json.dumps(notebook(page.content_string), indent=1)))
    return files


def notebook(page: str) -> dict[str, Any]:
    """The page as a notebook: prose and code in cells, outputs under the code that printed them."""
    cells: list[dict[str, Any]] = []
    at = 0
    for fence in _FENCE.finditer(page):
        _add_prose(cells, page[at : fence.start()])
        at = fence.end()
        language, options, text = fence.groups()
        file = _FILE.search(options)
        if language == "text" and file and cells and cells[-1]["cell_type"] == "code":
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
        elif language == "python":
            cells.append(_code(text))
        elif file:
            cells.append(_code(f"%%writefile {file[1]}\n{text}"))
        elif language == "sh":
            cells.append(_code(f"%%bash\n{text}"))
        else:
            _add_prose(cells, fence[0])
    _add_prose(cells, page[at:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _add_prose(cells: list[dict[str, Any]], text: str) -> None:
    text = _LINK.sub("", text).strip()
    if text:
        cells.append({"cell_type": "markdown", "metadata": {}, "source": text})


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": text.removesuffix("\n"),
    }
