"""The command line: thin, one file per command.

A new command is a file of this package that defines ``command``, and its name in ``app.COMMANDS``.
"""

from __future__ import annotations

import atexit
import gc
import sys

from ..deadlines import since_start
from ..errors import missing_extra


def main() -> None:
    """Run the command line; say what to install when its packages are missing."""
    try:
        import rich as rich

        from .app import app
    except ModuleNotFoundError as problem:
        missing = missing_extra(problem, "the command line")
        if missing is None:
            raise
        print(f"softhull: {missing}", file=sys.stderr)
        sys.exit(2)
    atexit.register(gc.freeze)  # the process ends at once, without looking through all that it has loaded
    # The process is this command alone: its time counts from the start of the process.
    app(prog_name="softhull", obj=since_start)
