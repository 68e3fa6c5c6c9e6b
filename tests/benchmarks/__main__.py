"""Every benchmark in this folder, one after the other: a table each, and JSON under ``build/``.

A benchmark is a module ``bN_*.py``: ``run()`` returns JSON data, ``main(arguments)`` prints a table
of it and returns 1 where a bar is missed.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(wanted: list[str]) -> int:
    """Run those that are named (``b1 b3``), or all; 1 where any bar is missed."""
    missed = 0
    for path in sorted(Path(__file__).resolve().parent.glob("b[0-9]*.py")):
        number, _, _ = path.stem.partition("_")
        if wanted and number not in wanted:
            continue
        module = importlib.import_module(f"tests.benchmarks.{path.stem}")
        print(f"\n== {(module.__doc__ or path.stem).splitlines()[0]}\n")
        missed |= module.main([])
    return missed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
