"""A run store as one HTML file: everything inside, nothing fetched, nothing of the store ever run or read as HTML."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

from ..runs.store import Store
from .content import report_content

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = (
    *("dom", "save", "content", "filters", "tables", "charts", "overview", "radius", "radii", "datasets", "brackets"),
    *("methods", "pictures", "instances", "reproduce", "main"),
)


def report_html(stores: Store | Sequence[Store], data: Sequence[Path] = (), images: bool = True) -> str:
    """The report on everything that one store holds, or several side by side, as the text of a self-contained page.

    ``data`` names the data files where they are no longer at the place the store remembers; ``images`` adds pictures of
    the inputs and worst inputs where the data are images.
    """
    content = report_content(stores, data, images)
    style = _part("page.css")
    chart, script = _part("chart.js"), "\n".join(_part(f"{name}.js") for name in _SCRIPTS)
    scripts = f"{_fingerprint(chart)} {_fingerprint(script)}"
    policy = f"default-src 'none'; script-src {scripts}; style-src {_fingerprint(style)}; base-uri 'none'"
    parts = {
        "policy": policy,
        "title": html.escape(str(content["title"])),
        "style": style,
        "chart": chart,
        "script": script,
        "content": _inert(json.dumps(content, separators=(",", ":"), allow_nan=False)),
    }
    # All places at once: what is put in is never searched for places again.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _part("page.html"))


def _part(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _fingerprint(text: str) -> str:
    """What a browser must find of a script before it runs it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inert(text: str) -> str:
    """JSON that holds no character HTML gives a meaning to."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
