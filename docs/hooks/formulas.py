"""Formulas become MathML when the site is built: browsers draw it themselves, no script and no network needed."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_page_content(html: str, **context: Any) -> str:
    """The page with every formula in place."""
    return _FORMULA.sub(_drawn, html)


def _drawn(found: re.Match[str]) -> str:
    kind = "block" if found[2] == "[" else "inline"
    return convert(unescape(found[3]).strip(), display=kind)
