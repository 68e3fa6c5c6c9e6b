"""Finds the notebook kernels among the processes, with their notebooks and users."""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from jupyter_gpugate.core.samples import KernelProcess, Process, ProcessKey

_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*t?$")
_CONNECTION_FILE: Final = re.compile(r"kernel-[^/]*\.json$")
#: A variable in the environment of every process of a run.
OF_A_RUN: Final = b"GPUGATE_RUN_ID="
#: How many parents are climbed.
DEPTH: Final = 24
_MODULES: Final = frozenset({"ipykernel", "ipykernel_launcher"})


def is_kernel(command_line: bytes) -> bool:
    """Whether a process was started as a kernel.

    ``command_line`` is ``/proc/PID/cmdline``: arguments ended by NUL bytes.  A kernel of any
    language is known by its connection file, ``-f .../kernel-*.json``; IPython's also by its
    module or its script.
    """
    if b"kernel" not in command_line:  # nearly always, and quickly
        return False
    words = [word.decode("utf-8", "replace") for word in command_line.split(b"\0")]
    return _runs_ipykernel(words) or _has_connection_file(words)


def session_name(environ: bytes) -> str | None:
    """Return the notebook's path from the text of ``/proc/PID/environ``, None where it has none."""
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == b"JPY_SESSION_NAME" and value:
            return value.decode("utf-8", "replace")
    return None


class UserNames:
    """User names by uid, each asked for once; a uid without a name is its number.

    A name that could not be had is asked for again: a directory service may be away for a while.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, uid: int) -> str:
        name = self._known.get(uid)
        if name is None:
            try:
                name = self._known[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, OSError):
                return str(uid)
        return name


class Kernels:
    """The kernels among the processes of a reading, by pid.

    A process that a kernel has left behind counts as well: it has a notebook's name in its
    environment and no kernel above it.
    """

    def __init__(self) -> None:
        self._started: dict[int, _Started] = {}
        self._left: dict[int, _Left] = {}
        self._users = UserNames()

    def look_at(self, process: Process, command_line: bytes, environ: Callable[[], bytes]) -> None:
        """Judge a process by its current program; ``environ`` is called only for a kernel.

        It may raise `OSError`, as for another user's process: its notebook is then not known.
        """
        if not is_kernel(command_line):
            self._started.pop(process.pid, None)
            self._look_for_notebook(process, environ)
            return
        self._left.pop(process.pid, None)
        try:
            notebook = session_name(environ())
        except OSError:
            notebook = None
        name = notebook or f"pid {process.pid}"
        kernel = KernelProcess(process.key, name, self._users.of(process.uid))
        self._started[process.pid] = _Started(kernel, command_line)

    def _look_for_notebook(self, process: Process, environ: Callable[[], bytes]) -> None:
        """Learn, once, which notebook started a process; a run has its name from elsewhere."""
        known = self._left.get(process.pid)
        if known is not None and known.key == process.key:
            return
        try:
            text = environ()
        except OSError:
            text = b""
        notebook = None if OF_A_RUN in text else session_name(text)
        kernel = None
        if notebook is not None:
            kernel = KernelProcess(process.key, notebook, self._users.of(process.uid))
        self._left[process.pid] = _Left(process.key, kernel)

    def forget(self, pid: int) -> None:
        self._started.pop(pid, None)
        self._left.pop(pid, None)

    def among(self, processes: Mapping[int, Process]) -> tuple[KernelProcess, ...]:
        """Return the kernels; all of them must be ``processes``.

        A child that a kernel forked has the kernel's command line until it executes something
        else; it is a part of that kernel, not another one.
        """
        found = []
        for pid, started in self._started.items():
            parent = self._started.get(processes[pid].parent_pid)
            if parent is None or parent.command_line != started.command_line:
                found.append(started.kernel)
        for pid, left in self._left.items():
            if left.kernel is not None and not self._has_notebook_above(pid, processes):
                found.append(left.kernel)
        return tuple(found)

    def _has_notebook_above(self, pid: int, processes: Mapping[int, Process]) -> bool:
        for _ in range(DEPTH):
            process = processes.get(pid)
            if process is None:
                return False
            pid = process.parent_pid
            left = self._left.get(pid)
            if pid in self._started or (left is not None and left.kernel is not None):
                return True
        return False


class _Left(NamedTuple):
    key: ProcessKey
    kernel: KernelProcess | None  # in the place of the one that started it


class _Started(NamedTuple):
    kernel: KernelProcess
    command_line: bytes


def _runs_ipykernel(words: list[str]) -> bool:
    names = [PurePosixPath(word).name for word in words[:2]]
    scripts = names if _PYTHON.match(names[0]) else names[:1]
    if any(name.removesuffix(".py") == "ipykernel_launcher" for name in scripts):
        return True
    return any(
        flag == "-m" and module.split(".")[0] in _MODULES for flag, module in pairwise(words)
    )


def _has_connection_file(words: list[str]) -> bool:
    return any(
        flag == "-f" and _CONNECTION_FILE.search(value) is not None
        for flag, value in pairwise(words)
    )
