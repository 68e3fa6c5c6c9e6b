"""Describes a command: a Python module, script or code, or any other program."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from .command_line import PythonCommand, parse_python
from .import_graph import ImportGraph, NewGraph, python_version
from .modules import absolute
from .summaries import UNREADABLE, parse

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
_NO_CELL: dict[str, Any] = {"magic_lines": [], "syntax_error": None}


def describe_command(
    argv: Sequence[str], cwd: str, path: Sequence[str], new_graph: NewGraph
) -> dict[str, Any]:
    """Describe what a command line runs; its other arguments do not count."""
    executable = _executable(argv[0], cwd)
    if executable is None:
        problem = f"{argv[0]}: no such program"
        return {**new_graph([]).answer(), **_NO_CELL, "error": problem}
    version = python_version()
    error = None
    if _PYTHON.fullmatch(Path(argv[0]).name):
        from .interpreter import path_and_version  # its imports are slow

        path, version = path_and_version(str(executable), path, version)
        graph, error = _python_graph(parse_python(argv[1:]), cwd, path, new_graph)
    else:
        graph = _program_graph(executable, argv, cwd, path, new_graph)
    return {**graph.answer(), **_NO_CELL, "python": version, "error": error}


def _executable(name: str, cwd: str) -> Optional[Path]:
    if os.sep in name:
        path = Path(cwd, name)
        return path if path.is_file() else None
    found = shutil.which(name)
    return None if found is None else Path(found).absolute()


def _python_graph(
    command: PythonCommand, cwd: str, path: Sequence[str], new_graph: NewGraph
) -> tuple[ImportGraph, Optional[str]]:
    """Return what Python would run, and why there is nothing to run, if so."""
    graph = new_graph(absolute(["", *path], cwd))
    if command.module:
        if not graph.add_main(command.module):
            return graph, f"-m {command.module}: no such module"
    elif command.file:
        file = Path(cwd, command.file)
        graph = new_graph(absolute([str(file.resolve().parent), *path], cwd))
        main = file / "__main__.py" if file.is_dir() else file
        if not main.is_file():
            return graph, f"{command.file}: no such file"
        graph.add_file("__main__", str(main), python=True)
    else:
        try:
            graph.add_tree("__main__", parse(command.code), package="")
        except (SyntaxError, *UNREADABLE):
            graph.add_bytes("__main__", command.code.encode("utf-8", "surrogatepass"))
    return graph, None


def _program_graph(
    executable: Path, argv: Sequence[str], cwd: str, path: Sequence[str], new_graph: NewGraph
) -> ImportGraph:
    """Describe a program by the ``.py`` file in its arguments, and by its distribution."""
    scripts = [Path(cwd, word) for word in argv if word.endswith(".py")]
    script = next((file for file in scripts if file.is_file()), None)
    if executable.name in _SHELLS and script is None:
        words = [Path(cwd, word) for word in argv[1:] if not word.startswith("-")]
        script = next((file for file in words if file.is_file()), None)
    own = [str(script.resolve().parent)] if script else []
    graph = new_graph([*absolute(own, cwd), *path])
    if script is not None:
        graph.add_file("__main__", str(script))
    if script is None or not script.samefile(executable):
        graph.add_executable(str(executable), _site_folders(executable))
    return graph


def _site_folders(executable: Path) -> list[str]:
    """Return the folders of installed packages in the environments that have a program."""
    roots = dict.fromkeys([executable.parent.parent, executable.resolve().parent.parent])
    return [str(site) for root in roots for site in root.glob("lib*/python*/*-packages")]
