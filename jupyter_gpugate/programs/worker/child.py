"""A process that the cell started by spawn or forkserver: it defines the names that it needs."""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import re
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from .attempt import Attempt
from .console import print_utf8, refuse_input
from .episodes import Episode
from .events import warn_from_child
from .execution import end_tasks, execute
from .hooks import ENTRY, PROCESS_MODULES, follow_imports
from .outline import READS_ANY_NAME, Outline
from .statements import Statement, single_statements, thinned_block
from .values import load_input
from .wording import error_text, listed


class _EndOfDefinitions(BaseException):
    """A child process has reached the cell's work, which is not its own."""


class _NoEpisodes:
    """Replaces ``episodes`` in a process that the cell started."""

    def __init__(self, attempt: Attempt) -> None:
        self._share = range(attempt.worker, int(attempt.launch["episodes"]), attempt.workers)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Episode]:
        raise _EndOfDefinitions

    @property
    def values(self) -> list[object]:
        raise _EndOfDefinitions


#: Errors of multiprocessing if a process that is being set up, or one of a pool, starts another.
_STARTS_A_PROCESS = re.compile("bootstrapping phase|daemonic processes")


class Definitions:
    """Provides a started process with the names that it needs from the cell, and executes no more.

    It is the ``__getattr__`` of the process's ``__main__``.  The first name that is requested, for
    example by a pickled function, executes imports, settings and definitions; each name executes
    the statements that it needs.  Every statement is executed once.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._outline: Optional[Outline] = None
        self._inputs = set(attempt.launch["inputs"])
        self._done: set[Statement] = set()
        self._requested: set[str] = set()
        # Defined, but not requested: names that their functions read may be missing yet.
        self._aside: dict[str, Any] = {}
        # The names that every cell has, until the cell binds them itself.
        self._given = attempt.own_names(_NoEpisodes(attempt))
        self._lock = threading.RLock()

    def __call__(self, name: str) -> object:
        """Return the value of a name of the cell."""
        namespace = sys.modules["__mp_main__"].__dict__
        if not (name.startswith("__") and name.endswith("__")):
            with self._lock, _starting_no_process():
                self._define(name, namespace)
        if name not in namespace:
            raise AttributeError(f"the cell has no `{name}` for a process that it started")
        return namespace[name]

    def _define(self, name: str, namespace: dict[str, Any]) -> None:
        if self._outline is None:
            self._outline = Outline(self._attempt.source(), self._attempt.cell)
        outline = self._outline
        chosen, names = outline.needed(name)
        self._requested |= names
        namespace.update({each: self._aside.pop(each) for each in names & self._aside.keys()})
        for given in sorted(self._inputs & names):
            self._inputs.discard(given)
            namespace[given] = load_input(self._attempt.run / "inputs", given)
        is_whole = bool(names & READS_ANY_NAME)
        for given in self._given if is_whole else self._given.keys() & names:
            namespace.setdefault(given, self._given[given])
        todo = chosen - self._done
        self._warn_of_repeats(self._executed(todo, namespace, is_whole=is_whole))
        if not is_whole:
            others = (outline.defined - self._requested) & namespace.keys()
            self._aside.update({each: namespace.pop(each) for each in others})

    def _executed(
        self, todo: set[Statement], namespace: dict[str, Any], *, is_whole: bool
    ) -> list[Statement]:
        """Execute statements in the cell's order, and return those that were completed."""
        outline: Any = self._outline
        self._done |= todo
        leaves = {part.node: part for part in todo}
        is_at_work = False
        completed: list[Statement] = []
        for statement in thinned_block(outline.tree.body, set(leaves)):
            parts = [leaves[leaf] for leaf, _ in single_statements([statement]) if leaf in leaves]
            if is_at_work and not all(part.is_import or part.is_definition for part in parts):
                continue
            try:
                self._execute(statement, namespace)
                completed += parts
            except _EndOfDefinitions:
                is_at_work = is_whole  # the rest of a whole cell is its work
            except (Exception, SystemExit) as error:  # noqa: BLE001 - other names may suffice
                if not outline.settings.issuperset(parts):
                    self._warn(
                        f"{self._quoted(statement)} failed in a process that the cell started: "
                        f"{error_text(error)}"
                    )
        return completed

    def _execute(self, statement: ast.stmt, namespace: dict[str, Any]) -> None:
        outline: Any = self._outline
        try:
            loop = execute([outline.code([statement])], namespace)
        except (RuntimeError, AssertionError) as error:
            if _STARTS_A_PROCESS.search(str(error)):
                raise _EndOfDefinitions from error
            raise
        if loop is not None:
            end_tasks(loop, 0.0)

    def _warn_of_repeats(self, parts: Sequence[Statement]) -> None:
        outline: Any = self._outline
        lines = [self._quoted(part.node) for part in parts if not outline.is_quiet(part)]
        if lines:
            self._warn(
                f"a process that the cell started repeated {listed(lines)}, "
                "which its function needs"
            )

    def _quoted(self, node: ast.stmt) -> str:
        lines = self._attempt.source().splitlines()
        return f"line {node.lineno} `{lines[node.lineno - 1].strip()[:80]}`"

    def _warn(self, text: str) -> None:
        """Warn once for all processes that this worker of the run starts."""
        digest = zlib.crc32(text.encode(errors="replace"))
        mark = self._attempt.kept / f"said.{self._attempt.worker}.{digest:08x}"
        with contextlib.suppress(OSError):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            warn_from_child(text)


@contextlib.contextmanager
def _starting_no_process() -> Iterator[None]:
    """Make every start of a process fail, as while a process is being set up."""
    modules = [sys.modules.get(f"{name}.process") for name in PROCESS_MODULES[:2]]
    current = [module.current_process() for module in modules if module is not None]
    ours = [process for process in current if not getattr(process, "_inheriting", False)]
    for process in ours:
        process._inheriting = True  # noqa: SLF001
    try:
        yield
    finally:
        for process in ours:
            with contextlib.suppress(AttributeError):
                del process._inheriting  # noqa: SLF001


def define_in_child(target: dict[str, Any]) -> None:
    """Make ``target``, the ``__mp_main__`` of a started process, provide the cell's definitions."""
    attempt = Attempt(Path(os.environ["GPUGATE_ATTEMPT_DIR"]), int(os.environ["GPUGATE_WORKER"]))
    follow_imports(attempt, warn_from_child)
    print_utf8()
    refuse_input()
    builtins.__dict__.setdefault("display", lambda *_, **__: None)
    # By this file, processes that this one starts execute it too.
    kept = {"__name__": "__mp_main__", "__file__": ENTRY, "__builtins__": builtins}
    target.clear()
    target.update(kept, __getattr__=Definitions(attempt))
