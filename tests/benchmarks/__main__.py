"""Every benchmark in this folder: a table and a JSON file for each.

A benchmark is a module ``bN_*.py`` with a ``main(arguments)`` that prints its table and returns 1
where a bar is missed, and a ``run()`` that returns the same as JSON data.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.benchmarks.measure import save


def main() -> int:
    """Run those whose names are given, or all; 1 where any bar is missed."""
    here = Path(__file__).resolve().parent
    wanted = sys.argv[1:]
    missed = False
    for path in sorted(here.glob("b[0-9]*.py")):
        number, _, _ = path.stem.partition("_")
        if wanted and number not in wanted:
            continue
        module = importlib.import_module(f"tests.benchmarks.{path.stem}")
        result = module.run()
        print(f"\n{(module.__doc__ or path.stem).partition(chr(10))[0]}\n\n{module.show(result)}")
        print(f"-> {save(number, result)}")
        missed = missed or result["passed"] is False
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
