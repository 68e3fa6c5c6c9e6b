"""Answers one request: which code a run executes, as a hash, and which packages it imports.

The program reads one JSON request on stdin and writes one JSON answer to stdout.  It reads files
and neither imports nor executes the code that it describes.

The hash covers the syntax tree of the cell or script and of every first-party module that it
imports, directly or not: comments and formatting do not count.  A module is first-party unless it
belongs to Python or to an installed distribution; distributions count by name and version, wherever
their folder is.  The versions of torch and JAX are not in the hash: they are the ``runtime``, which
decides a run's memory besides the code.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .cache import FileCache
from .cell import describe_cell
from .distributions import Distributions
from .files import FileSystem
from .import_graph import ImportGraph
from .reader import FileReader


def describe(request: Mapping[str, Any], processes: int = 1) -> dict[str, Any]:
    """Answer ``{"kind": "cell", "source", "cwd", "path"}`` or ``{"kind": "program", "argv", ...}``.

    ``path`` is ``sys.path`` of the run, null for this interpreter's own; ``cache``, which may be
    missing, is a folder that only this user can enter.  The answer has ``source_hash``, ``files``
    (first-party, absolute), ``folders`` (searched for modules), ``packages`` (version by imported
    name), ``runtime``, ``python``, ``syntax_error`` (null, or ``line``, ``column``, ``message`` and
    ``text``), ``magic_lines`` (``line``, ``text``) and ``error``, null or the reason why there is
    nothing to run.  Many files are read by up to ``processes`` processes.
    """
    files = FileSystem()
    cache = FileCache(request.get("cache"), files)
    reader = FileReader(files, cache, processes)
    distributions = Distributions(files, cache)

    def new_graph(path: Sequence[str]) -> ImportGraph:
        return ImportGraph(path, files, reader, distributions)

    path = ["", *sys.path] if request["path"] is None else request["path"]
    if request["kind"] == "cell":
        answer = describe_cell(request["source"], request["cwd"], path, new_graph)
    else:
        from .command import describe_command  # few submits need it, and its imports are slow

        answer = describe_command(request["argv"], request["cwd"], path, new_graph)
    cache.write()
    return answer


def main() -> None:
    """Answer the request on stdin."""
    gc.disable()  # trees have no cycles, and collections would visit their nodes in vain
    processors = min(4, len(os.sched_getaffinity(0)))
    json.dump(describe(json.load(sys.stdin), processors), sys.stdout)
