"""``python -m benchmarks [name ...]``: run some or all benchmarks; each prints its own table."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    # Models have a target of their own, scale takes many hours.
    wanted = sys.argv[1:] or [name for name in NAMES if name not in ("models", "scale")]
    for name in wanted:
        if name not in NAMES:
            print(f"no benchmark {name!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
            return 2
    for name in wanted:
        print(f"\n== {name}")
        import_module(f"benchmarks.{name}").run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
