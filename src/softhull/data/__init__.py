"""Small networks and images that come with the package; README.md beside says where they are from."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidInput

_FOLDER = Path(__file__).parent
BUNDLED = tuple(sorted(path.name for path in _FOLDER.iterdir() if path.suffix in (".onnx", ".npz", ".toml")))


def bundled(name: str) -> Path:
    """The path of a file in the package: a network (``digits-attention.onnx``) or images (``digits.npz``)."""
    if name not in BUNDLED:
        raise InvalidInput(f"nothing called {name!r} comes with softhull; there are {', '.join(BUNDLED)}")
    return _FOLDER / name
