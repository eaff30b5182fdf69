"""The command line: thin, one file per command.

A new command is a file of this package that defines ``command``, and its name in ``app.COMMANDS``.
"""

from __future__ import annotations

import sys

from ..deadlines import since_start


def main() -> None:
    """Run the command line; say what to install when its packages are missing."""
    try:
        import rich as rich

        from .app import app
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.split(".")[0] not in ("click", "rich"):
            raise
        print(f"softhull: the command line needs {problem.name}: pip install 'softhull[cli]'", file=sys.stderr)
        sys.exit(2)
    # The process is this command alone: its time counts from the start of the process.
    app(prog_name="softhull", obj=since_start)
