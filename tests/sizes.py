"""Limits for the sizes of files and functions, checked by `make lint`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jupyter_gpugate", "tests", "notebooks", "docs")
#: Files as former versions wrote them, kept for ever.
FROZEN = ROOT / "tests" / "data"
FILE_LINES, MEDIAN_LINES, P90_LINES, FUNCTION_LINES = 350, 8, 20, 45


def sources() -> dict[Path, str]:
    """The text of every Python file of the project."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: path.read_text(encoding="utf-8") for path in paths if FROZEN not in path.parents}


def functions(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The length of every function in a file, docstring included, and its place."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield lines, f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"


def main() -> int:
    """Print the figures and every size above its limit; 1 if there is any."""
    texts = sources()
    lengths = [found for path, text in texts.items() for found in functions(path, text)]
    counts = sorted(lines for lines, _ in lengths)
    middle, ninth = median(counts), quantiles(counts, n=10)[8]
    files = {str(path.relative_to(ROOT)): text.count("\n") for path, text in texts.items()}
    excess = [f"{name}: {n} lines" for name, n in files.items() if n > FILE_LINES]
    excess += [f"{place}: {n} lines" for n, place in lengths if n > FUNCTION_LINES]
    print(
        f"{len(files)} files of at most {max(files.values())} lines (limit {FILE_LINES}), "
        f"{len(counts)} functions: median {middle:g} ({MEDIAN_LINES}), "
        f"p90 {ninth:g} ({P90_LINES}), longest {counts[-1]} ({FUNCTION_LINES})"
    )
    print(*excess, sep="\n", end="\n" if excess else "")
    return int(bool(excess) or middle > MEDIAN_LINES or ninth > P90_LINES)


if __name__ == "__main__":
    sys.exit(main())
