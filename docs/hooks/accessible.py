"""What the theme leaves out for screen readers."""

from __future__ import annotations

from typing import Any

_SEARCH = 'data-md-component="search" role="dialog"'


def on_post_page(output: str, **context: Any) -> str:
    """The page with a name for its search dialog."""
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')
