"""One worker of a cell's run: makes the cell ``__main__`` and hands it its share of the episodes.

Copied into the attempt as ``worker.py`` and started there as ``worker.py ATTEMPT_DIR INDEX``, in
the interpreter of the notebook's kernel: a single file, standard library only, CPython 3.9 or
later.  Events go as JSON lines to the pipe ``GPUGATE_EVENTS_FD``; what the cell prints stays on
stdout and stderr.  Exit code 0: the cell ended; 1: after an ``error`` event; else the cell's own.

A process that the cell starts by spawn or forkserver imports this file as ``__mp_main__`` and
executes of the cell what it asks for: `Definitions`.
"""

from __future__ import annotations
import __future__

import ast
import atexit
import base64
import builtins
import contextlib
import dis
import fcntl
import functools
import gc
import importlib.abc
import importlib.machinery
import inspect
import io
import json
import mmap
import operator
import os
import pickle
import re
import runpy
import select
import sys
import threading
import time
import tokenize
import traceback
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Optional

PROTOCOL = 5
POLL_S = 0.05  # between two looks at whether the other workers have come to their end
# 007 is a name, and so is what only other scripts count with.
_NUMBER = re.compile(
    r"[+-]?((0|[1-9][0-9]{0,300})(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?"
)

# -- what the supervisor is told -----------------------------------------------------------------


class Events:
    """Sends JSON lines to the supervisor, from this process only: forks of it are ignored.

    A display leaves a mark in the printed output, where the supervisor takes it out: that keeps the
    order of prints and displays, those of subprocesses and of libraries in C included.
    """

    def __init__(self, descriptor: int, secret: str = "") -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - else the cell's children keep it open
        self._descriptor = descriptor
        self._secret = secret
        self._printed: Optional[int] = None
        if secret:
            with contextlib.suppress(OSError):  # above the other one, which is known by its number
                self._printed = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, descriptor + 1)
        self._marks = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, event: str, **fields: object) -> None:
        """Write one event whole; a supervisor that is gone is not worth failing for."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._write({"event": event, **fields})

    def show(self, clears: str = "", /, **fields: object) -> None:
        """Send a display or a clear, which belongs after the output printed so far."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._marks += 1
            mark = f"\x1b]gpugate;{self._secret};{self._marks};{clears}\x07".encode()
            with contextlib.suppress(OSError):
                if self._printed is not None:
                    os.write(self._printed, mark)  # short enough to be written in one piece
            self._write({"event": "display", "mark": self._marks, **fields})

    def _write(self, event: Mapping[str, object]) -> None:
        rest = memoryview(json.dumps(event, default=_plain).encode() + b"\n")
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def warn(self, text: str) -> None:
        self.send("warning", text=text)


def _plain(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return repr(value)


# -- the attempt's directory ---------------------------------------------------------------------


class Attempt:
    """One attempt as this worker sees it; every path is absolute."""

    def __init__(self, directory: Path, worker: int) -> None:
        self.directory = directory.absolute()
        self.run = self.directory.parent.parent
        self.cell = str(self.directory / "cell.py")
        self.kept = self.directory / "episodes"
        self.launch: dict[str, Any] = _read_json(self.directory / "launch.json")
        self.worker = worker
        self.workers = int(self.launch["workers"])
        self.caps = _caps(os.environ.get("GPUGATE_CAPS", ""))

    def source(self) -> str:
        with tokenize.open(self.cell) as file:  # honours a coding line, as Python itself does
            return file.read()

    def own_names(self, episodes: object) -> dict[str, Any]:
        """Return the four names that every cell has."""
        return {
            "episodes": episodes,
            "worker": self.worker,
            "workers": self.workers,
            "params": {name: parsed(text) for name, text in self.launch["parameters"].items()},
        }

    def names(self, episodes: object) -> dict[str, Any]:
        """Return what the run gives to the cell: its own four names and the inputs."""
        inputs = {name: load_input(self.run / "inputs", name) for name in self.launch["inputs"]}
        return {**self.own_names(episodes), **inputs}


def parsed(text: Any) -> Any:
    """Return a parameter as a number where its text is written as one, else as it stands."""
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        return text
    return float(text) if any(mark in text for mark in ".eE") else int(text)


def _caps(text: str) -> dict[str, int]:
    return {str(uuid): int(cap) for uuid, cap in json.loads(text or "{}").items()}


def _read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


# -- values in files -----------------------------------------------------------------------------

# `notebook/values.py` is the other end: it writes the inputs and reads the outputs.
OUT_OF_BAND_FROM = 64 * 1024  # bytes of a buffer that is written beside the pickle
ALIGNED = 64  # where a buffer begins, for arithmetic on vectors; its length stands before it


def load_input(folder: Path, name: str) -> object:
    """Load ``NAME.pickle``; its large buffers, ``NAME.buffers``, are mapped privately, not read."""
    try:
        with (folder / f"{name}.pickle").open("rb") as file:
            return pickle.load(file, buffers=_buffers(folder / f"{name}.buffers"))  # noqa: S301 - the user's own
    except Exception as error:
        raise ValueError(f"input `{name}` cannot be loaded: {_said(error)}") from error


def _buffers(path: Path) -> Iterator[memoryview]:
    if not path.exists():
        return
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    at = 0
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 8], "little")
        at += ALIGNED
        yield whole[at : at + size]
        at += size + -size % ALIGNED


def append_buffer(file: BinaryIO, raw: memoryview) -> None:
    """Write one buffer as `_buffers` reads it."""
    file.write(raw.nbytes.to_bytes(8, "little").ljust(ALIGNED, b"\0"))
    file.write(raw)
    file.write(bytes(-raw.nbytes % ALIGNED))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a file that appears at ``path`` complete and on the disk, or never."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _portable(value: Any) -> Any:
    """Reduce an array so that it comes back in host memory, whatever device it is on.

    ``NotImplemented`` leaves a value to its own way.  An open file is refused: cloudpickle would
    make it a copy in memory, at the start of the file.
    """
    if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
        raise TypeError("an open file does not travel, its path does")
    torch, jax, cupy = (sys.modules.get(name) for name in ("torch", "jax", "cupy"))
    if torch is not None:
        storages = (
            getattr(torch.storage, "TypedStorage", ()),
            getattr(torch, "UntypedStorage", ()),
        )
        if type(value) is torch.Tensor and not value.requires_grad:
            # Kinds that NumPy has not, such as bfloat16 or sparse, take torch's own way.
            with contextlib.suppress(TypeError, RuntimeError):
                return torch.from_numpy, (value.cpu().resolve_conj().resolve_neg().numpy(),)
        elif isinstance(value, storages) and value.device.type != "cpu":
            return value.cpu().__reduce__()
    if jax is not None and isinstance(value, jax.Array):
        return sys.modules["numpy"].asarray(value).__reduce_ex__(PROTOCOL)
    if cupy is not None and isinstance(value, cupy.ndarray):
        return value.get().__reduce_ex__(PROTOCOL)
    return NotImplemented


#: Takes a buffer; a true answer leaves it inside the pickle.
BufferCallback = Callable[[pickle.PickleBuffer], bool]


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _portable(value)


def dump_by_reference(value: object, file: BinaryIO) -> None:
    """Pickle a value for this same cell: its classes are found again by name."""
    _Pickler(file, PROTOCOL).dump(value)


def dump_by_value(value: object, file: BinaryIO, outside: Optional[BufferCallback] = None) -> None:
    """Pickle a value for another program: cloudpickle takes the cell's own classes along."""
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        _Pickler(file, PROTOCOL, buffer_callback=outside).dump(value)
        return

    base: Any = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = _portable(value)
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    Pickler(file, PROTOCOL, buffer_callback=outside).dump(value)


def _cloudpickle() -> Any:
    with contextlib.suppress(ImportError):
        import cloudpickle

        return cloudpickle
    return None


def _remedy(error: BaseException) -> str:
    """Say what would let functions and classes of a cell travel that pickle alone cannot take."""
    by_name = isinstance(error, (pickle.PicklingError, AttributeError))
    if not by_name or _cloudpickle() is not None:
        return ""
    return "; install cloudpickle in this environment to hand over what a cell defines"


def write_output(path: Path, value: object) -> None:
    """Write a value for the notebook; its large buffers go into a file beside, to be mapped."""
    beside = path.with_suffix(".buffers")
    with beside.open("wb") as buffers:

        def outside(buffer: pickle.PickleBuffer) -> bool:
            with buffer.raw() as raw:
                if raw.nbytes >= OUT_OF_BAND_FROM:
                    append_buffer(buffers, raw)
                return raw.nbytes < OUT_OF_BAND_FROM

        def write(file: BinaryIO) -> None:
            dump_by_value(value, file, outside)
            buffers.flush()
            os.fsync(buffers.fileno())

        try:
            write_whole(path, write)
        except BaseException:
            beside.unlink()
            raise
        if not buffers.tell():
            beside.unlink()


# -- episodes ------------------------------------------------------------------------------------


class Episode:
    """One unit of the run's work; ``index`` counts from 0 over all workers."""

    def __init__(self, index: int, keep: Callable[[int, object], None]) -> None:
        self.index = index
        self._keep = keep

    def keep(self, value: object) -> None:
        """Store the episode's result; it is on the disk when this returns, and survives a retry."""
        self._keep(self.index, value)

    def __repr__(self) -> str:
        return f"Episode({self.index})"


class Episodes:
    """The episodes of one worker's share (w, w + N, ...); iterate over it.

    On a resumed run what earlier attempts have kept is not given out again.
    """

    def __init__(self, attempt: Attempt, events: Events, resumed: Mapping[int, Path]) -> None:
        self._attempt = attempt
        self._events = events
        self._resumed = dict(resumed)  # index -> file of the value, of every worker
        self._share = range(attempt.worker, int(attempt.launch["episodes"]), attempt.workers)
        self._finished = {index for index in resumed if index in self._share}
        self._kept: set[int] = set()
        self._open: Optional[int] = None
        self._iterated = False
        self._at_end = False
        attempt.kept.mkdir(mode=0o700, exist_ok=True)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Episode]:
        self._iterated = True
        for index in self._share:
            if index not in self._resumed:
                self._open = index
                yield Episode(index, self._keep)
                self._finish()
        self._end()

    @property
    def values(self) -> list[object]:
        """The kept values in the order of their episodes, over all attempts.

        Until this worker's loop has ended, its own; after that every worker's, and it waits until
        theirs have ended too.
        """
        if self._at_end:
            self._wait_for_the_others()
        files = {**self._resumed, **kept_files(self._attempt.kept)}
        wanted = [i for i in sorted(files) if self._at_end or i in self._share]
        return [self._load(index, files[index]) for index in wanted]

    def close(self) -> None:
        """End with the cell: ``break`` ends an episode too, and no loop at all is one episode."""
        if self._open is not None:
            self._finish()
        if not self._iterated and self._attempt.worker == 0:
            asked = int(self._attempt.launch["episodes"])
            if asked > 1:
                self._events.warn(
                    f"the cell never iterates over `episodes`: the run counts as one episode, "
                    f"though {asked} were asked for"
                )
            self._open = 0
            self._finish()
        elif len(self._finished) < len(self._share) and self._iterated:
            self._events.warn(
                f"the loop over `episodes` was left after {len(self._finished)} of "
                f"{len(self._share)} episodes" + self._of_this_worker()
            )
        self._end()

    def _of_this_worker(self) -> str:
        return f" of worker {self._attempt.worker}" if self._attempt.workers > 1 else ""

    def _keep(self, index: int, value: object) -> None:
        path = self._attempt.kept / f"{index}.pickle"
        try:
            write_whole(path, lambda file: dump_by_reference(value, file))
        except (pickle.PicklingError, AttributeError, TypeError):
            try:
                write_whole(path, lambda file: dump_by_value(value, file))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise TypeError(
                    f"the value of episode {index} cannot be kept: {_said(error)}{_remedy(error)}"
                ) from error
        self._kept.add(index)

    def _load(self, index: int, path: Path) -> object:
        try:
            with path.open("rb") as file:
                return pickle.load(file)  # noqa: S301 - written by this run
        except Exception as error:
            raise ValueError(
                f"the kept value of episode {index} cannot be loaded: {_said(error)}"
            ) from error

    def _finish(self) -> None:
        index, self._open = self._open, None
        if index is None:
            return
        self._finished.add(index)
        kept = index in self._kept
        if not kept:
            _mark(self._attempt.kept, "unkept")
        worker, done = self._attempt.worker, len(self._finished)
        self._events.send("episode", worker=worker, index=index, kept=kept, done=done)
        tell_torch_memory(self._attempt, self._events)

    def _end(self) -> None:
        self._at_end = True
        _mark(self._attempt.kept, f"ended.{self._attempt.worker}")

    def _wait_for_the_others(self) -> None:
        marks = [f"ended.{worker}" for worker in range(self._attempt.workers)]
        while not all((self._attempt.kept / mark).exists() for mark in marks):
            time.sleep(POLL_S)  # a worker that fails takes the run with it, this one too


def _mark(folder: Path, name: str) -> None:
    path = folder / name
    if not path.exists():
        write_whole(path, lambda file: file.write(b""))


def kept_files(folder: Path) -> dict[int, Path]:
    """Return the files of the values kept in one attempt, by episode."""
    return {int(path.stem): path for path in folder.glob("*.pickle") if path.stem.isdecimal()}


def resumable(attempt: Attempt, events: Events) -> dict[int, Path]:
    """Return what earlier attempts have kept; empty, with a warning, where a run must start anew.

    It goes on only if every finished episode kept a value and nothing else is carried from one
    episode to the next.
    """
    found: dict[int, Path] = {}
    reason = ""
    try:
        for folder in _earlier(attempt):
            found = {**kept_files(folder / "episodes"), **found}
            if (folder / "episodes" / "unkept").exists():
                reason = "an episode ended without `keep`"
    except (OSError, ValueError, KeyError) as error:
        reason = f"an earlier attempt cannot be read: {_said(error)}"
    if found and not reason:
        reason = carried(ast.parse(attempt.source()))
    if reason and attempt.worker == 0:
        events.warn(f"the run starts again at episode 0: {reason}")
    return {} if reason else found


def _earlier(attempt: Attempt) -> Iterator[Path]:
    """Yield the attempts that this one goes on from, the newest first."""
    before = attempt.launch["resume_from"]
    while before is not None:
        folder = attempt.run / before
        yield folder
        before = _read_json(folder / "launch.json")["resume_from"]


# -- whether a loop carries anything but kept values -----------------------------------------------

_PROGRESS_BARS = frozenset({"tqdm", "tqdm_notebook", "track"})
_CHANGES_ITS_OBJECT = re.compile(
    "(add|append|clear|discard|extend|insert|pop|push|put|remove|reverse|setdefault|sort|step"
    "|update|write)(left|item|lines|row|rows)?"
)
_Names = frozenset  # of names that are surely bound at a point of the loop's body


def carried(tree: ast.AST) -> str:
    """Say what a loop over ``episodes`` carries from one episode to the next, or "" for nothing.

    It is asked before episodes are left out, so a doubt is an answer: the run then starts anew,
    which is right for every cell.
    """
    loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.AsyncFor)) and _over(n.iter)]
    fine = {id(node) for loop in loops for node in ast.walk(loop.iter)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) or _calls(node, "len"):
            fine |= {id(child) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "episodes" and id(node) not in fine:
            return f"line {node.lineno} uses `episodes` otherwise than in a `for` loop"
        if isinstance(node, ast.Global):
            return f"line {node.lineno} changes the global `{node.names[0]}`"
    if len(loops) > 1:
        return f"line {loops[1].lineno} is a second loop over `episodes`"
    return _Loop(tree, loops[0]).carried() if loops else ""


def _over(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and node.args and _called(node) in _PROGRESS_BARS:
        node = node.args[0]
    return isinstance(node, ast.Name) and node.id == "episodes"


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _stored(*nodes: ast.AST) -> frozenset[str]:
    """Return every name that is bound somewhere in ``nodes``, but for those of comprehensions."""
    names: set[str] = set()
    every = [inner for outer in nodes for inner in ast.walk(outer)]
    own = {id(n) for c in every if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    for node in every:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names |= set() if id(node) in own else {node.id}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return frozenset(names)


class _Loop:
    """Follows one iteration in the order in which it is evaluated, keeping what is surely bound."""

    def __init__(self, tree: ast.AST, loop: Any) -> None:
        self._loop = loop
        self._own = _stored(loop.target, *loop.body)
        self._modules = _stored(*(n for n in ast.walk(tree) if isinstance(n, ast.alias)))
        inside = {id(n) for n in ast.walk(loop)}
        end = max(getattr(node, "lineno", 0) for node in ast.walk(loop))
        self._after = [n for n in ast.walk(tree) if id(n) not in inside and _line(n) > end]
        self._found: list[tuple[int, str]] = []

    def carried(self) -> str:
        self._block(self._loop.body, _stored(self._loop.target))
        self._look_behind()
        if not self._found:
            return ""
        line, name = min(self._found)
        return f"`{name}` (line {line}) carries something from one episode to the next"

    def _look_behind(self) -> None:
        """Note what is read after the loop of its last iteration, before it is bound anew."""
        names = [node for node in self._after if isinstance(node, ast.Name)]
        anew: dict[str, int] = {}
        for node in names:
            if not isinstance(node.ctx, ast.Load):
                anew[node.id] = min(node.lineno, anew.get(node.id, node.lineno))
        for node in names:
            first = anew.get(node.id, node.lineno)
            if node.id in self._own and isinstance(node.ctx, ast.Load) and node.lineno <= first:
                self._found.append((node.lineno, node.id))

    def _block(self, body: Sequence[ast.stmt], bound: _Names[str]) -> Optional[_Names[str]]:
        """Return what is bound after ``body``, or None where its end is never reached."""
        after: Optional[_Names[str]] = bound
        for statement in body:
            if after is None:
                return None
            after = self._statement(statement, after)
        return after

    def _statement(self, node: Any, bound: _Names[str]) -> Optional[_Names[str]]:
        if isinstance(node, ast.If):
            self._look(node.test, bound)
            bound |= _stored(node.test)
            return _both(self._block(node.body, bound), self._block(node.orelse, bound))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._inner_loop(node, bound)
            return bound
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._look(item, bound)
                bound |= _stored(item)
            return self._block(node.body, bound)
        if isinstance(node, ast.Try):
            return self._try(node, bound)
        self._look(node, bound)
        leaves = isinstance(node, (ast.Continue, ast.Break, ast.Return, ast.Raise))
        return None if leaves else bound | _stored(node)

    def _inner_loop(self, node: Any, bound: _Names[str]) -> None:
        head = node.test if isinstance(node, ast.While) else node.iter
        self._look(head, bound)
        target = frozenset() if isinstance(node, ast.While) else _stored(node.target)
        self._block(node.body, bound | target | _stored(head))
        self._block(node.orelse, bound)

    def _try(self, node: ast.Try, bound: _Names[str]) -> Optional[_Names[str]]:
        after = self._block(node.body, bound)
        if after is not None:
            after = self._block(node.orelse, after)
        for handler in node.handlers:
            caught = bound | ({handler.name} if handler.name else frozenset())
            after = _both(after, self._block(handler.body, caught))
        final = self._block(node.finalbody, bound)
        return None if final is None or after is None else after | final

    def _look(self, node: ast.AST, bound: _Names[str]) -> None:
        """Note what ``node`` reads of an earlier iteration and changes for a later one."""
        bound |= frozenset(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        for inner in ast.walk(node):
            name = _read(inner)
            if name in self._own and name not in bound:
                self._found.append((_line(inner), name))
            name = _changed(inner)
            if name and name not in bound | self._modules:
                self._found.append((_line(inner), name))


def _both(one: Optional[_Names[str]], other: Optional[_Names[str]]) -> Optional[_Names[str]]:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _read(node: ast.AST) -> str:
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _changed(node: ast.AST) -> str:
    """Return the name whose object ``node`` changes in place, or ""."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return _root(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _root(node.func) if _CHANGES_ITS_OBJECT.fullmatch(node.func.attr) else ""
    return ""


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# -- torch: its cap, its peaks, its words ----------------------------------------------------------


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once somebody else has imported it; imports none itself."""

    def __init__(self, calls: Mapping[str, Callable[[Any], None]]) -> None:
        self._calls = dict(calls)
        for name in [name for name in calls if name in sys.modules]:
            self._calls.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Any, target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        call = self._calls.pop(fullname, None)
        if call is None:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                _also(spec.loader, call)
                return spec
        return None


def _also(loader: Any, call: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        call(module)

    loader.exec_module = exec_module


def cap_torch(cuda: Any, attempt: Attempt, warn: Callable[[str], None]) -> None:
    """Limit torch's allocator in this process as soon as the cell's own code starts CUDA."""

    def limit() -> None:
        try:
            for index in range(cuda.device_count()):
                cap = attempt.caps.get(device_uuid(cuda, index, attempt))
                if cap is not None:
                    total = cuda.get_device_properties(index).total_memory
                    cuda.set_per_process_memory_fraction(min(1.0, max(0, cap) / total), index)
        except Exception as error:  # noqa: BLE001 - a missing cap must not end the run
            warn(f"the memory cap could not be set: {_said(error)}")

    queue = getattr(cuda, "_lazy_call", None)
    if queue is None:
        warn("the memory cap could not be set: this torch has no way to wait for CUDA's start")
    elif attempt.caps:
        queue(limit)


def device_uuid(cuda: Any, index: int, attempt: Attempt) -> str:
    """Name a visible device as the driver does, by torch's word or by its place in the mask."""
    told = getattr(cuda.get_device_properties(index), "uuid", None)
    name = "" if told is None else f"GPU-{told}"
    if name in attempt.launch["devices"]:
        return name
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    place = mask[index].strip() if index < len(mask) else ""
    return place if place in attempt.launch["devices"] else name


def tell_torch_memory(attempt: Attempt, events: Events) -> None:
    """Send what torch's allocator reserves and has reserved, if the cell has started CUDA."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return
    try:
        devices = [(device_uuid(cuda, i, attempt), i) for i in range(cuda.device_count())]
        peaks = {uuid: cuda.max_memory_reserved(i) for uuid, i in devices if uuid}
        held = {uuid: cuda.memory_reserved(i) for uuid, i in devices if uuid}
    except Exception as error:  # noqa: BLE001 - a broken device must not end the run here
        events.warn(f"torch's memory could not be read: {_said(error)}")
        return
    # Only the driver knows what a context costs; nothing here asks it.
    events.send("torch", vram_peak=peaks, vram_held=held, overhead={})


_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
_RESERVED = re.compile(
    r"([\d.]+) (\w+) (?:is allocated by PyTorch|is reserved by PyTorch|reserved in total)"
)
_DEVICE = re.compile(r"\bGPU (\d+)")


def oom(error: BaseException, attempt: Attempt) -> Optional[dict[str, str]]:
    """Say whose memory was full where an error, or what it says caused it, is out of memory."""
    torch = sys.modules.get("torch")
    torch_kinds = tuple(
        kind
        for kind in (getattr(torch, "OutOfMemoryError", None), _cuda_oom())
        if isinstance(kind, type)
    )
    cause: Optional[BaseException] = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = _said(cause)[:2000]
        if isinstance(cause, torch_kinds):
            return {"resource": "vram", "evidence": _whose_limit(text, attempt), "text": text}
        if isinstance(cause, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
            return {"resource": "ram", "evidence": "memory_error", "text": text}
        cause = cause.__cause__
    return None


def _cuda_oom() -> object:
    return getattr(sys.modules.get("torch.cuda"), "OutOfMemoryError", None)


def _whose_limit(text: str, attempt: Attempt) -> str:
    """Return ``own_cap`` where torch reserved so much that the request went over this run's cap."""
    asked, device, cuda = _ASKED.search(text), _DEVICE.search(text), sys.modules.get("torch.cuda")
    if asked is None or cuda is None:
        return "device_full"
    index = int(device[1]) if device else 0
    try:
        cap = attempt.caps.get(device_uuid(cuda, index, attempt))
        told = [_at_most(*found) for found in _RESERVED.findall(text)]
        reserved = sum(told) if told else cuda.memory_reserved(index)
    except Exception:  # noqa: BLE001 - a device in trouble answers nothing
        return "device_full"
    over = cap is not None and reserved + _at_most(asked[1], asked[2]) > cap
    return "own_cap" if over else "device_full"


def _at_most(number: str, unit: str) -> float:
    """Return the greatest number of bytes that is printed like this, with two decimals."""
    return (float(number) + (0.005 if "." in number else 0)) * _UNITS.get(unit, 1)


# -- what a started process repeats of the cell ----------------------------------------------------

_READS = frozenset(
    {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"}
)
_RUN_IN_PLACE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
#: With one of these a function may read any name.
_READS_ANY_NAME = frozenset({"globals", "locals", "vars", "eval", "exec"})
#: Calls that change nothing in the process that makes them.
_ONLY_TELLS = frozenset(
    {"print", "display", "debug", "info", "warning", "error", "critical", "log"}
)
#: Functions of modules that change the state of this process alone.  The start method is left out:
#: a started process has it already, and setting it twice is an error.
_SETTING = re.compile(
    r"(?!set_start_method)(set|use|enable|disable|register|configure|setup|install|seed|filter)(_\w+)?"
    r"|\w*seed(_all|_everything)?|basicConfig|dictConfig|fileConfig|\w+_logging|config|simplefilter"
    r"|filterwarnings|captureWarnings|setLevel|addHandler|load_dotenv|chdir|umask|addsitedir"
    r"|insert|append|extend|update|setdefault"
)
#: Calls that are repeated without a warning: they compute a small value from their arguments.
_COMPUTES = frozenset(
    {"Counter", "Enum", "Fraction", "Decimal", "IntEnum", "Lock", "NewType", "Path", "PurePath"}
    | {"Random", "RLock", "SimpleNamespace", "TypeVar", "array", "arange", "compile", "count"}
    | {"defaultdict", "default_rng", "deque", "device", "dict", "environ", "field", "float"}
    | {"format", "frozenset", "get", "getLogger", "getcwd", "getenv", "int", "is_available", "join"}
    | {"len", "linspace", "list", "lower", "max", "min", "namedtuple", "ones", "partial", "range"}
    | {"set", "sorted", "split", "str", "strip", "sum", "tensor", "time", "timedelta", "tuple"}
    | {"uname", "upper", "zeros", "zip", "cpu_count", "device_count", "get_context", "local"}
)
_PLAIN: tuple[type, ...] = (
    *(ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.operator, ast.unaryop, ast.boolop),
    *(ast.cmpop, ast.expr_context),
)
_MAKES_AN_INSTANCE = frozenset({"__init__", "__new__", "__post_init__"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_TRIES: tuple[type, ...] = tuple(getattr(ast, n) for n in ("Try", "TryStar") if hasattr(ast, n))


class Part:
    """One statement of a cell, and the names of the cell that it reads, binds and changes."""

    def __init__(self, node: ast.stmt, around: Sequence[ast.expr], code: types.CodeType) -> None:
        self.node = node
        self.binds: set[str] = set()
        self.makes: set[str] = set()  # by `global`, once the function is called
        self.now: set[str] = set()  # read when the statement is executed
        self.later: set[str] = set()  # read by functions in it
        self._take(code, in_function=False, in_class=False)
        self.now |= {n.id for test in around for n in ast.walk(test) if isinstance(n, ast.Name)}
        self.later |= _annotated(node)
        self.stores = {_root(n) for n in _outside_functions(node) if _is_store(n)} - {""}
        calls = [n for n in _outside_functions(node) if isinstance(n, ast.Call)]
        self.calls = [call for call in calls if _called(call) not in _ONLY_TELLS]
        self.passes = {name for call in self.calls for name in _passed(call)}
        self.is_import = isinstance(node, _IMPORTS)
        self.is_definition = isinstance(node, _DEFINITIONS)

    def _take(self, code: types.CodeType, *, in_function: bool, in_class: bool) -> None:
        for step in dis.get_instructions(code):
            inner = step.argval
            if isinstance(inner, types.CodeType):
                is_function = bool(inner.co_flags & inspect.CO_NEWLOCALS)
                is_function = is_function and inner.co_name not in _RUN_IN_PLACE
                self._take(inner, in_function=in_function or is_function, in_class=not is_function)
            elif step.opname in _READS:
                (self.later if in_function else self.now).add(inner)
            elif step.opname == "STORE_GLOBAL":
                (self.makes if in_function else self.binds).add(inner)
            elif step.opname == "STORE_NAME" and not in_class:
                self.binds.add(inner)

    def sets(self, modules: set[str]) -> bool:
        """Whether it changes a setting of this process, in a module that the cell imports."""
        simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Expr)
        if not isinstance(self.node, simple):
            return False
        if self.stores and self.stores <= modules:
            return True
        value = getattr(self.node, "value", None)
        if not isinstance(value, ast.Call) or not self.binds <= {"_"}:
            return False
        return bool(_SETTING.fullmatch(_called(value))) and _origin(value) in modules


def _is_store(node: ast.AST) -> bool:
    is_place = isinstance(node, (ast.Attribute, ast.Subscript))
    return is_place and not isinstance(getattr(node, "ctx", None), ast.Load)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement's nodes but for the bodies of functions, which only a call executes."""
    todo = [node]
    while todo:
        inner = todo.pop()
        yield inner
        if isinstance(inner, _FUNCTIONS):
            todo += [*getattr(inner, "decorator_list", ()), *inner.args.defaults]
            todo += [default for default in inner.args.kw_defaults if default is not None]
        else:
            todo += ast.iter_child_nodes(inner)


def _origin(node: ast.AST) -> str:
    """Return the name that a chain of attributes, items and calls begins with, or ""."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _passed(call: ast.Call) -> set[str]:
    """Name the objects that a call may change: its own one and its arguments."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    own = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return {_origin(node) for node in (*own, *arguments)} - {""}


def _annotated(node: ast.AST) -> set[str]:
    """Name what annotations mention; as text they are no part of the code."""
    found: set[str] = set()
    for inner in ast.walk(node):
        for written in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            for name in ast.walk(written) if written is not None else ():
                if isinstance(name, ast.Name):
                    found.add(name.id)
                elif isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found |= set(re.findall(r"[^\W\d]\w*", name.value))
    return found


def _light(definitions: Iterable[Any]) -> set[str]:
    """Name the classes whose instances take no work to make: their own `__init__` loads nothing."""
    light: set[str] = set()
    heavy: set[str] = set()
    for node in definitions:
        if not isinstance(node, ast.ClassDef):
            continue
        made = [f for f in node.body if getattr(f, "name", "") in _MAKES_AN_INSTANCE]
        calls = [n for function in made for n in ast.walk(function) if isinstance(n, ast.Call)]
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        known = _COMPUTES | light | _MAKES_AN_INSTANCE | {"super"}
        is_light = not bases & heavy and all(_called(call) in known for call in calls)
        (light if is_light else heavy).add(node.name)
    return light


def _names_a_value(test: ast.expr) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(test))


def _leaves(
    body: Sequence[ast.stmt], around: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[ast.stmt, tuple[ast.expr, ...]]]:
    """Yield the statements of a cell, those under `if` and `try` one by one, with their tests."""
    for node in body:
        if isinstance(node, ast.If) and not _names_a_value(node.test):
            yield from _leaves([*node.body, *node.orelse], (*around, node.test))
        elif isinstance(node, _TRIES):
            tried: Any = node
            kinds = tuple(handler.type for handler in tried.handlers if handler.type is not None)
            caught = [statement for handler in tried.handlers for statement in handler.body]
            every = [*tried.body, *caught, *tried.orelse, *tried.finalbody]
            yield from _leaves(every, (*around, *kinds))
        else:
            yield node, around


def _only(body: Sequence[ast.stmt], chosen: set[ast.stmt]) -> list[ast.stmt]:
    """Return a block with nothing but the chosen statements, and the `if` and `try` they are in."""
    kept: list[ast.stmt] = []
    for node in body:
        if node in chosen or not isinstance(node, (ast.If, *_TRIES)):
            kept += [node] if node in chosen else []
        elif any(leaf in chosen for leaf, _ in _leaves([node])):
            kept.append(_thinned(node, chosen))
    return kept


def _thinned(node: Any, chosen: set[ast.stmt]) -> ast.stmt:
    fields = {name: getattr(node, name) for name in node._fields}
    nothing = ast.copy_location(ast.Pass(), node)
    fields["body"] = _only(node.body, chosen) or [nothing]
    fields["orelse"] = _only(node.orelse, chosen)
    if not isinstance(node, ast.If):
        fields["finalbody"] = _only(node.finalbody, chosen)
        fields["handlers"] = [
            ast.copy_location(
                ast.ExceptHandler(each.type, each.name, _only(each.body, chosen) or [nothing]), each
            )
            for each in node.handlers
        ]
    made: ast.stmt = ast.copy_location(type(node)(**fields), node)
    return made


class Outline:
    """A cell's statements, and which of them a function or a class of the cell rests on.

    Imports, settings and definitions are always among them, whatever else a process needs: they
    are cheap, and other modules may count on them.  Anything else is there for a name that is read.
    A statement that may change an object counts as one that makes it.
    """

    def __init__(self, source: str, path: str) -> None:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.tree: Any = compile(source, path, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        self._path, self._flags = path, flags | _future_flags(self.tree)
        leaves = list(_leaves(self.tree.body))
        self.parts = [Part(leaf, around, self.code([leaf])) for leaf, around in leaves]
        self.modules = {name for part in self.parts if part.is_import for name in part.binds}
        definitions = [part for part in self.parts if part.is_definition]
        self.defined = {name for part in definitions for name in part.binds}
        self._classes = _light(part.node for part in definitions)
        self._aliases = self._all_aliases()
        self.steady = self._unchangeable()
        for part in self.parts:
            for name in self._made_by_calls(part):
                part.binds |= name
        self.settings = {part for part in self.parts if part.sets(self.modules)}
        self.always = self._always()

    def code(self, body: list[ast.stmt]) -> types.CodeType:
        """Compile some statements, with the cell's own `from __future__`."""
        tree = ast.Module(body, type_ignores=[])
        made: types.CodeType = compile(tree, self._path, "exec", self._flags, dont_inherit=True)
        return made

    def needed(self, name: str) -> tuple[set[Part], set[str]]:
        """Return what makes ``name`` as its functions see it, and every name that is read there."""
        chosen = set(self.always)
        todo = [name, *(read for part in chosen for read in part.now)]
        # A definition that is only made, not called, reads nothing in its body yet.
        seen: set[str] = set()
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            for part in self.parts:
                if self._makes(part, one):
                    chosen.add(part)
                    # What it binds by `global` has its first value before it is called.
                    todo += part.now | part.later | part.makes
        if seen & _READS_ANY_NAME:
            return set(self.parts), seen
        return chosen, seen

    def is_quiet(self, part: Part) -> bool:
        """Return whether it may be repeated without a warning."""
        if part.is_import or part.is_definition or part in self.settings:
            return True
        if isinstance(part.node, (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)):
            return False
        return all(_called(call) in _COMPUTES | self._classes for call in part.calls)

    def _makes(self, part: Part, name: str) -> bool:
        if name in part.binds:
            return True
        changed = part.stores if name in self.steady else part.stores | part.passes
        return name in changed or any(self._aliases.get(one, "") == name for one in changed)

    def _unchangeable(self) -> set[str]:
        """Names of modules, functions, classes, and of values that no call can change."""
        plain = {"params", "worker", "workers"}
        other: set[str] = set()
        for part in self.parts:
            value = getattr(part.node, "value", None)
            nodes = list(ast.walk(value)) if isinstance(value, ast.expr) else [part.node]
            is_plain = all(
                node.id in plain - other if isinstance(node, ast.Name) else isinstance(node, _PLAIN)
                for node in nodes
            )
            (plain if is_plain else other).update(part.binds)
        return plain - other | self.modules | self.defined

    def _all_aliases(self) -> dict[str, str]:
        """Map a name to the object that it is a part of: `layer = model.fc`, `for x in xs`."""
        found: dict[str, str] = {}
        for part in self.parts:
            for node in _outside_functions(part.node):
                if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
                    pairs = [(target, node.value) for target in node.targets]
                elif isinstance(node, (ast.For, ast.AsyncFor)):
                    pairs = [(node.target, node.iter)]
                else:
                    continue
                for target, value in pairs:
                    for name in _stored(target):
                        found.setdefault(name, _origin(value))
        return found

    def _made_by_calls(self, part: Part) -> Iterator[set[str]]:
        """Yield what functions of the cell that this statement calls bind by `global`."""
        for other in self.parts:
            if other.is_definition and other.makes and other.binds & part.now and part.calls:
                yield other.makes

    def _always(self) -> set[Part]:
        cheap = self.modules | self.steady
        for part in self.parts:
            if self.is_quiet(part):
                cheap |= part.binds
        every = set(self.settings)
        for part in self.parts:
            own = {name for other in self.parts for name in other.binds} & part.now
            if part.is_import or (part.is_definition and own <= cheap):
                every.add(part)
        return every


def _future_flags(tree: ast.Module) -> int:
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    names = [alias.name for node in imports for alias in node.names]
    flags: list[int] = [getattr(__future__, n).compiler_flag for n in names if n in dir(__future__)]
    return functools.reduce(operator.or_, flags, 0)


# -- what a kernel has and a bare interpreter has not ----------------------------------------------


def speak_utf8() -> None:
    """Make printed output UTF-8 whatever the locale, like that of a notebook."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def be_without_keyboard() -> None:
    """Make requests for input fail with an explanation."""
    ask, stdin = input, sys.stdin

    def no_keyboard(prompt: object = "", *_: object, **__: object) -> str:
        if sys.stdin is not stdin:  # the cell has put something in its place
            return ask(prompt)
        asked = f" to answer `{str(prompt).strip()[:80]}`" if str(prompt).strip() else ""
        raise EOFError(f"runs have no keyboard{asked}: give the value by --input or --set")

    def no_password(*_: object, **__: object) -> str:
        raise EOFError("runs have no keyboard: set the secret in the notebook's `os.environ`")

    def no_debugger(*_: object, **__: object) -> None:
        raise RuntimeError("runs have no keyboard for a debugger: remove `breakpoint()`")

    builtins.input = no_keyboard
    AfterImport({"getpass": lambda module: setattr(module, "getpass", no_password)})
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = no_debugger


# -- running the cell ------------------------------------------------------------------------------


def compiled(source: str, path: str) -> list[types.CodeType]:
    """Compile the cell; its last expression stands alone, to be shown, unless it ends in ``;``."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: Any = compile(source, path, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    shown = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not _ends_quietly(source):
        shown = ast.Interactive([tree.body.pop()])
    codes = [compile(tree, path, "exec", flags, dont_inherit=True)]
    if shown is not None:
        codes.append(compile(shown, path, "single", flags, dont_inherit=True))
    return codes


def _ends_quietly(source: str) -> bool:
    passed = {tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    words = [token.string for token in tokens if token.type not in passed]
    return bool(words) and words[-1] == ";"


def execute(codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
    """Run the compiled cell; only one that awaits at its top level gets an event loop.

    Return that loop: tasks that the cell has left in it may not have ended yet.
    """
    if not any(code.co_flags & inspect.CO_COROUTINE for code in codes):
        for code in codes:
            exec(code, namespace)  # noqa: S102 - running the user's cell is the purpose
        return None
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_awaited(codes, namespace))
    except BaseException:
        end_tasks(loop, 0.0)
        raise
    return loop


async def _awaited(codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> None:
    for code in codes:
        value = eval(code, namespace)  # noqa: S307 - as above
        if code.co_flags & inspect.CO_COROUTINE:
            await value


def end_tasks(loop: Any, patience_s: float) -> list[str]:
    """Let the tasks of a loop end by themselves, cancel the rest, and return the names of those."""
    import asyncio

    def unfinished(timeout_s: float) -> Any:
        tasks = asyncio.all_tasks(loop)
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=timeout_s))
        return asyncio.all_tasks(loop)

    left = unfinished(patience_s)
    for task in left:
        task.cancel()
    unfinished(1.0)
    with contextlib.suppress(Exception):
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), 1.0))
    asyncio.set_event_loop(None)
    with contextlib.suppress(RuntimeError):  # a task that takes no cancellation still runs
        loop.close()
    return sorted(task.get_coro().__qualname__ for task in left)


#: Of one display; no front end shows more.
DISPLAY_MOST = 24 << 20
WORDS_MOST = 256 << 10  # characters of an error's message, and of each part of its traceback
#: What a page shows of a widget, if it has the widget's model.
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_PACE_S = 0.2  # between two updates of what widgets show


def show(
    events: Events,
    data: Mapping[str, Any],
    metadata: Optional[Mapping[str, Any]] = None,
    transient: Optional[Mapping[str, Any]] = None,
    *,
    update: bool = False,
    result: bool = False,
) -> None:
    """Send a display after what was printed before it."""
    _flush()
    fitting = _fitting(data, events)
    name = (transient or {}).get("display_id")
    # What a supervisor must know comes first: it does not read the data of a large display.
    fields = {
        "transient": {} if name is None else {"display_id": str(name)},
        "data": fitting,
        "metadata": metadata or {},
    }
    if update:  # has no place of its own
        events.send("display", update=True, result=result, **fields)
    else:
        events.show(update=False, result=result, **fields)


def clear_output(events: Events, *, wait: bool) -> None:
    """Send a clear of all that was displayed and printed before it."""
    _flush()
    events.show("wait" if wait else "now", clear=True, wait=wait)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _fitting(data: Mapping[str, Any], events: Events) -> Mapping[str, Any]:
    """Drop the forms of a display that are too large, with a warning."""
    sizes = {kind: _size(form) for kind, form in data.items()}
    kept: dict[str, Any] = {}
    for kind in sorted(data, key=sizes.__getitem__):
        if sum(map(sizes.__getitem__, kept)) + sizes[kind] <= DISPLAY_MOST:
            kept[kind] = data[kind]
    if len(kept) == len(data):
        return data
    left_out = sum(sizes.values()) - sum(map(sizes.__getitem__, kept))
    problem = (
        f"a display of {left_out >> 20:,} MB is not shown: {DISPLAY_MOST >> 20} MB is the most"
    )
    events.warn(problem)
    return {"text/plain": f"[{problem}]"}


def _size(form: Any) -> int:
    """About how many bytes a form of a display takes in an event."""
    if isinstance(form, str):
        return len(form) if form.isascii() else 6 * len(form)
    if isinstance(form, (bytes, bytearray)):
        return len(form) * 4 // 3
    if isinstance(form, Mapping):
        return sum(len(str(key)) + _size(value) for key, value in form.items())
    if isinstance(form, (list, tuple)):
        return sum(map(_size, form))
    return 20


class WidgetTexts:
    """Shows widgets as text that follows their state, because the page does not have their models.

    A model lives in the process that made it, and a notebook's page asks the notebook's kernel for
    it: that is another process than this one.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._shown: dict[str, Any] = {}  # the widget of each display that follows one
        self._said: dict[str, str] = {}
        self._displays_of: Any = weakref.WeakKeyDictionary()  # by each part of a widget
        self._changed: set[str] = set()
        self._awake = threading.Event()
        self._lock = threading.RLock()
        self._thread: Optional[threading.Thread] = None

    def show(
        self,
        data: Mapping[str, Any],
        metadata: Optional[Mapping[str, Any]] = None,
        transient: Optional[Mapping[str, Any]] = None,
        **how: bool,
    ) -> None:
        """Send a display; the view of a widget is left out, and its text put in its place."""
        name = (transient or {}).get("display_id")
        self._shown.pop(str(name), None)  # it shows something else now
        if WIDGET not in data:
            show(self._events, data, metadata, transient, **how)
            return
        rest = {kind: form for kind, form in data.items() if kind != WIDGET}
        widget = _widget(data[WIDGET])
        if widget is None or set(rest) - {"text/plain"}:
            plain = rest or {"text/plain": "[a widget of the run]"}
            show(self._events, plain, metadata, transient, **how)
            return
        name = str(name or f"gpugate-widget-{os.getpid()}-{len(self._said)}")
        with self._lock:
            text = self._follow(name, widget) or rest.get("text/plain") or ""
            self._said[name] = text
            show(self._events, {"text/plain": text}, None, {"display_id": name}, **how)

    def clear(self, *, wait: bool) -> None:
        """Clear the page, and follow none of its widgets any more.

        The contents of an `Output` widget are on the page like the rest, so that clearing the
        widget must not take that rest away.
        """
        if not _is_in_output_widget():
            self._shown.clear()
            clear_output(self._events, wait=wait)

    def catch_up(self) -> None:
        """Renew the displays of the widgets that have changed."""
        with self._lock:
            changed, self._changed = self._changed, set()
            for name in sorted(changed & set(self._shown)):
                widget = self._shown.get(name)
                text = "" if widget is None else self._follow(name, widget)
                if text != self._said[name]:
                    self._said[name] = text
                    place = {"display_id": name}
                    show(self._events, {"text/plain": text}, None, place, update=True)

    def _follow(self, name: str, widget: Any) -> str:
        self._shown[name] = widget
        for part in _parts(widget):
            if part not in self._displays_of:
                self._displays_of[part] = set()
                part.observe(self._note)
            self._displays_of[part].add(name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpugate-widgets", daemon=True)
            self._thread.start()
        return text_of(widget)

    def _note(self, change: Any) -> None:
        self._changed |= self._displays_of.get(change["owner"], set())
        self._awake.set()

    def _run(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            with contextlib.suppress(Exception):  # widgets may be of any class
                self.catch_up()
            time.sleep(WIDGET_PACE_S)


def _widget(view: Any) -> Any:
    """Return the widget of this process that a view is of; None where there is none."""
    return _widgets_here().get(view.get("model_id") if isinstance(view, Mapping) else None)


def _widgets_here() -> Mapping[Any, Any]:
    """Return the widgets of this process by the id of their model."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    known = getattr(module, "_instances", None)
    if known is None:  # ipywidgets 7
        known = getattr(getattr(module, "Widget", None), "widgets", None)
    return known or {}


def _is_in_output_widget() -> bool:
    """Return whether the cell is in the ``with`` block of an `Output` widget."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget_output")
    output = getattr(module, "Output", None)
    known = _widgets_here().values()
    return output is not None and any(
        isinstance(widget, output) and widget.msg_id for widget in list(known)
    )


def with_output_widgets_marked(shell: Any) -> Any:
    """Let `Output` widgets note when they are entered, which they do only beside a kernel."""

    class Parent:
        """The message that an `Output` in a notebook captures the replies to."""

        def get_parent(self) -> dict[str, Any]:
            return {"header": {"msg_id": "run"}}

    with contextlib.suppress(ImportError, AttributeError):
        import comm

        made: Any = type("Comm", (comm.DummyComm,), {"kernel": Parent()})
        comm.create_comm = made
    return shell


def _parts(widget: Any) -> Iterator[Any]:
    """Return a widget with all that is in it."""
    waiting, seen = [widget], set()
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += getattr(part, "children", ())


def text_of(widget: Any) -> str:
    """Write a widget as one or more lines: bars as bars, labels and values as text."""
    import html

    layout = getattr(widget, "layout", None)
    hidden = {getattr(layout, "visibility", None), getattr(layout, "display", None)}
    if getattr(widget, "comm", None) is None or hidden & {"hidden", "none"}:
        return ""
    kinds = {kind.__name__ for kind in type(widget).__mro__}
    if hasattr(widget, "children"):
        parts = filter(None, map(text_of, widget.children))
        return (" " if "HBox" in kinds else "\n").join(parts)
    if "Output" in kinds:
        return "".join(map(_text_of_output, widget.outputs)).rstrip("\n")
    value = getattr(widget, "value", None)
    if kinds & {"FloatProgress", "IntProgress"}:
        is_narrow = getattr(layout, "width", None) == "20px"  # as where no end is known
        value = _bar(widget, 2 if is_narrow else 20)
    elif kinds & {"HTML", "HTMLMath", "Label"}:
        value = html.unescape(re.sub(r"<[^>]*>", "", str(value))).replace("\u2007", " ").strip()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        value = None
    words = (getattr(widget, "description", None), value)
    return " ".join(str(word) for word in words if word not in (None, ""))


def _text_of_output(output: Mapping[str, Any]) -> str:
    """Write what was put into an `Output` widget by hand, not by a `with` block."""
    return str(output.get("text") or f"{(output.get('data') or {}).get('text/plain', '')}\n")


def _bar(widget: Any, width: int) -> str:
    span = widget.max - widget.min
    share = min(1.0, max(0.0, (widget.value - widget.min) / span)) if span else 1.0
    full = int(share * width)
    return f"|{'█' * full}{' ' * (width - full)}|"


class PlainShell:
    """Runs a cell where IPython is not: the last expression is shown by its ``repr``."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def run(self, codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
        sys.displayhook = self._show
        return execute(codes, namespace)

    def traceback(self, error: BaseException, frames: Optional[types.TracebackType]) -> list[str]:
        return traceback.format_exception(type(error), error, frames)

    def _show(self, value: object) -> None:
        if value is not None:
            show(self._events, {"text/plain": repr(value)}, result=True)


#: Magics of kernels alone that are about their page: a run passes over them.
_PAGE_MAGICS = ("autosave", "clear", "connect_info", "less", "man", "more", "qtconsole", "subshell")


def with_kernel_magics(shell: Any) -> Any:
    """Give a shell the line magics that a kernel has beyond IPython's own."""

    def store(line: str) -> Any:
        shell.extension_manager.load_extension("storemagic")
        return shell.run_line_magic("store", line)

    for name in _PAGE_MAGICS:
        shell.register_magic_function(lambda _line: None, "line", name)
    shell.register_magic_function(store, "line", "store")
    return shell


def without_windows(_shell: object, gui: Optional[str] = None) -> None:
    """Refuse the event loops of windows; figures that are shown inline ask for none."""
    if gui not in (None, "inline", "asyncio"):
        raise RuntimeError(
            f"runs have no screen for windows of `{gui}`: use `inline`, or save figures to files"
        )


def end_cell(_shell: object) -> NoReturn:
    """End the cell, as `exit()` and `quit()` ask the shell to."""
    raise SystemExit


def ipython_shell(module: types.ModuleType, events: Events) -> Any:
    """Return a shell of this process's IPython that shows things as events."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    widgets = WidgetTexts(events)

    class Publisher(DisplayPublisher):
        def publish(
            self,
            data: Mapping[str, Any],
            metadata: Optional[Mapping[str, Any]] = None,
            *_: object,
            transient: Optional[Mapping[str, Any]] = None,
            update: bool = False,
            **__: object,
        ) -> None:
            widgets.show(data, metadata, transient, update=update)

        def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's
            widgets.clear(wait=bool(wait))

    class Hook(DisplayHook):
        def quiet(self) -> bool:
            return False  # decided when the cell was compiled

        def write_output_prompt(self) -> None:
            pass

        def log_output(self, format_dict: object) -> None:
            pass

        def write_format_data(
            self, format_dict: Mapping[str, Any], md_dict: Optional[Mapping[str, Any]] = None
        ) -> None:
            widgets.show(format_dict, md_dict, result=True)

    class Shell(InteractiveShell):
        def init_virtualenv(self) -> None:
            pass  # sys.path is the kernel's, to the letter

        enable_gui = without_windows
        ask_exit = end_cell

        def run(self, codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
            with self.builtin_trap, self.display_trap:
                self.events.trigger("pre_execute")
                try:
                    return execute(codes, namespace)
                finally:
                    self.events.trigger("post_execute")  # open figures are shown here
                    with contextlib.suppress(Exception):  # widgets may be of any class
                        widgets.catch_up()

        def traceback(
            self, error: BaseException, frames: Optional[types.TracebackType]
        ) -> list[str]:
            printer = self.InteractiveTB.structured_traceback
            return list(printer(type(error), error, frames, tb_offset=0))

    return Shell.instance(
        config=Config(HistoryManager={"enabled": False, "hist_file": ":memory:"}),
        display_pub_class=Publisher,
        displayhook_class=Hook,
        user_module=module,
        user_ns=module.__dict__,
    )


def shell_for(module: types.ModuleType, events: Events) -> Any:
    """Return IPython's shell where this interpreter has a working one, else a plain one."""
    try:
        return with_output_widgets_marked(with_kernel_magics(ipython_shell(module, events)))
    except ImportError:
        return PlainShell(events)
    except Exception as error:  # noqa: BLE001 - a broken profile must not end the run
        events.warn(f"IPython does not start, displays are plain text: {_said(error)}")
        return PlainShell(events)


# -- errors ----------------------------------------------------------------------------------------


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - any class may have a broken __str__
        return type(error).__name__


def _cut(text: str) -> str:
    """Shorten a text that is too long to report."""
    left_out = len(text) - WORDS_MOST
    if left_out <= 0:
        return text
    half = WORDS_MOST // 2
    return f"{text[:half]}\n... {left_out:,} more characters ...\n{text[-half:]}"


#: Whose frames say nothing of a cell; the first is this file's own name for itself.
_NOT_THE_CELLS = (__file__, f"{os.sep}cloudpickle{os.sep}")


def show_own_frames(error: BaseException, cell: str) -> None:
    """Take out of an error, and of those that it came from, every frame that is not the user's.

    That is all before the cell's first frame, and this file's; an error that only these frames
    raised tells nothing beyond the one that was made of it.
    """
    seen: set[int] = set()
    waiting: list[Optional[BaseException]] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _own_frames(one.__traceback__, cell)
        cause = one.__cause__
        if cause is not None and cause.__traceback__ and not _own_frames(cause.__traceback__, cell):
            one.__cause__ = None  # which also hides what was raised before it
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _own_frames(frames: Optional[types.TracebackType], cell: str) -> Optional[types.TracebackType]:
    every = []
    while frames is not None:
        every.append(frames)
        frames = frames.tb_next
    files = [each.tb_frame.f_code.co_filename for each in every]
    first = files.index(cell) if cell in files else 0
    kept = None
    for each, file in reversed(list(zip(every, files))[first:]):
        if not any(name in file for name in _NOT_THE_CELLS):
            kept = types.TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def advise(error: BaseException, attempt: Attempt) -> None:
    """Add advice to an error that is caused by a difference between notebook and run."""
    text = ""
    if isinstance(error, NameError):
        name = re.search(r"'(\w+)'", str(error))
        if name is not None and name[1] in attempt.launch["parameters"]:
            text = f'{error}; the values of `--set` are in `params`: `params["{name[1]}"]`'
    elif type(error).__name__ == "BdbQuit" and not str(error):
        text = "runs have no keyboard for a debugger"
    if text:
        error.args = (text,)


def tell_error(error: BaseException, shell: Any, attempt: Attempt, events: Events) -> None:
    """Send what ended the cell, with its own lines; stderr gets it too, as of any program."""
    found = oom(error, attempt)
    if found is not None:
        events.send("oom", **found)
    advise(error, attempt)
    text = _said(error)
    lines = [text]
    with contextlib.suppress(Exception):  # there may be no memory left to read the source with
        show_own_frames(error, attempt.cell)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    print("".join(map(_cut, lines)).rstrip("\n"), file=sys.stderr, flush=True)  # noqa: T201
    # IPython's printer knows neither a group of exceptions nor an error without frames.
    if error.__traceback__ is not None and not hasattr(error, "exceptions"):
        with contextlib.suppress(Exception):
            lines = shell.traceback(error, error.__traceback__)
    evalue = _cut(text.partition(": ")[2])
    lines = [_cut(line.rstrip("\n")) for line in lines]
    events.send("error", ename=type(error).__name__, evalue=evalue, traceback=lines)


# -- from the end of the cell to the end of its process --------------------------------------------

IDLE_S = 3.0  # what the cell has left running is ended when it has done nothing for so long,
MOST_S = 60.0  # or when it is at work for so long
HANDLERS_IDLE_S = 10.0  # the same of exit handlers, which may have results to upload
HANDLERS_MOST_S = 600.0
BUSY = 0.01  # of a core: beyond that a process counts as at work


class Activity:
    """Reports when processes have been idle for long enough, or active for too long."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._began = self._busy_at = self._looked_at = time.monotonic()
        self._used = self._cpu_s()

    def is_over(self, idle_s: float, most_s: float) -> bool:
        """Tell so; to be asked several times a second."""
        now = time.monotonic()
        if now - self._looked_at >= 1.0:
            used = self._cpu_s()
            if used - self._used > BUSY * (now - self._looked_at):
                self._busy_at = now
            self._looked_at, self._used = now, used
        return now - self._busy_at >= idle_s or now - self._began >= most_s

    def _cpu_s(self) -> float:
        ticks = 0
        for pid in self._pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def leave(code: object, loop: Any, events: Events) -> NoReturn:
    """End this process like an interpreter, but do not wait for anything that never ends.

    A kernel goes on after a cell, and with it the threads, tasks and processes that the cell has
    left.  A run ends: they may finish their work, and the card names those that did not.
    """
    status = code if isinstance(code, int) else int(code is not None)
    everybody = Activity(_descendants)
    guard = threading.Thread(target=_guard, args=(everybody, status, events), daemon=True)
    guard.start()
    if loop is not None:
        _warn_of(events, [f"task `{name}`" for name in end_tasks(loop, IDLE_S)], "await")
    # These wake the threads of executors that have nothing to do, and wait for the others.
    wake = list(getattr(threading, "_threading_atexits", ()))
    threading.Thread(target=lambda: [call() for call in reversed(wake)], daemon=True).start()
    left = _left_after(_threads, events)
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not left:
        with contextlib.suppress(Exception):
            util._run_finalizers(0)  # noqa: SLF001 - as at an exit: managers and pools end
    left += _left_after(_processes, events)
    if not left:
        sys.exit(code)  # type: ignore[arg-type]
    _warn_of(events, left, "join")
    children: Any = getattr(sys.modules.get("multiprocessing.process"), "_children", set())
    children.difference_update([child for child in set(children) if not child.daemon])
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001
    if status and not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201 - as `sys.exit` does
    end_at_once(status)


def _left_after(look: Callable[[], dict[str, int]], events: Events) -> list[str]:
    """Wait for threads or processes; return the names of those that did not end."""
    activity = Activity(lambda: [pid for pid in look().values() if pid])
    is_told = False
    began = time.monotonic()
    while True:
        left = look()
        if not left or activity.is_over(IDLE_S, MOST_S):
            return sorted(left)
        if not is_told and time.monotonic() - began > IDLE_S + 1:
            is_told = True
            events.warn(
                f"the cell has ended, but {_listed(sorted(left))} is still at work: the run waits "
                f"until that ends, {MOST_S:.0f} s at most"
            )
        time.sleep(POLL_S)


def _threads() -> dict[str, int]:
    main = threading.main_thread()
    every = [thread for thread in threading.enumerate() if thread is not main]
    return {f"thread `{thread.name}`": 0 for thread in every if not thread.daemon}


def _processes() -> dict[str, int]:
    children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
    living = [child for child in set(children) if not child.daemon and child.is_alive()]
    return {f"process `{child.name}`": child.pid for child in living}


def _descendants() -> list[int]:
    found = [os.getpid()]
    for pid in found:  # grows meanwhile
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_bytes().split())
    return found[1:]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004
    return ", ".join(names[:3]) + more


def _warn_of(events: Events, left: Sequence[str], remedy: str) -> None:
    if left:
        events.warn(
            f"the cell ended without {_listed(left)}, which the end of the run has stopped: "
            f"{remedy} it in the cell if its work is needed"
        )


def _guard(everybody: Activity, status: int, events: Events) -> None:
    """End the process if an exit handler, or another part of the exit, never returns."""
    while not everybody.is_over(HANDLERS_IDLE_S, HANDLERS_MOST_S):
        time.sleep(10 * POLL_S)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    where = traceback.extract_stack(frame)[-1] if frame is not None else None
    place = f" in `{where.name}` ({where.filename}, line {where.lineno})" if where else ""
    events.warn(f"the cell had ended, but its interpreter did not end{place}: it was stopped")
    end_at_once(status)


def end_at_once(status: int) -> NoReturn:
    """Write what is buffered, and end this process without waiting for its threads."""
    writer = threading.Thread(target=_flush_files, daemon=True)
    writer.start()
    writer.join(2.0)  # a thread may hold the lock of a file for ever
    os._exit(status & 0xFF)


def _flush_files() -> None:
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    every = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    for file in sorted(every, key=lambda thing: not isinstance(thing, io.TextIOWrapper)):
        with contextlib.suppress(Exception):
            file.flush()


# -- a worker from its start to its end ------------------------------------------------------------


def write_outputs(attempt: Attempt, namespace: Mapping[str, Any], events: Events) -> None:
    """Write each output to ``result.NAME.WORKER.pickle``, then say so; raise naming what cannot.

    One that cannot be written keeps no other from the disk, and the error tells of those.
    """
    names = list(attempt.launch["outputs"])
    problems: dict[str, Exception] = {}
    for name in names:
        try:
            hand_back(attempt, name, namespace)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - raised when all have had their turn
            problems[name] = error
    if problems:
        first = next(iter(problems.values()))
        stored = ", ".join(name for name in names if name not in problems)
        remedy = f"; `.values()` of this run has {stored}" if stored else ""
        raise type(first)(f"{first}{remedy}") from first.__cause__
    events.send("result", outputs=names)


def hand_back(attempt: Attempt, name: str, namespace: Mapping[str, Any]) -> None:
    """Write one output; an error names it."""
    if name not in namespace:
        raise NameError(f"output `{name}` is not defined when the cell ends")
    value = namespace[name]
    try:
        write_output(attempt.directory / f"result.{name}.{attempt.worker}.pickle", value)
    except MemoryError:
        raise
    except OSError as error:
        raise OSError(f"output `{name}` cannot be written: {error.strerror or error}") from error
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"output `{name}` ({kind}) cannot be stored: {_said(error)}{_remedy(error)}"
        ) from error


def run_worker(attempt: Attempt, events: Events) -> tuple[object, Any]:
    """Run the cell as ``__main__``; return what `sys.exit` takes, and the cell's event loop."""
    module = types.ModuleType("__main__")
    module.__file__ = attempt.cell
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module
    shell: Any = PlainShell(events)
    loop = None
    try:
        follow_imports(attempt, events.warn)
        codes = compiled(attempt.source(), attempt.cell)
        shell = shell_for(module, events)
        episodes = Episodes(attempt, events, resumable(attempt, events))
        module.__dict__.update(attempt.names(episodes))
        try:
            loop = shell.run(codes, module.__dict__)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                return leaving.code, loop
        episodes.close()
        write_outputs(attempt, module.__dict__, events)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the run's end and its news
        tell_error(error, shell, attempt, events)
        return 1, loop
    finally:
        tell_torch_memory(attempt, events)
    return 0, loop


def follow_imports(attempt: Attempt, warn: Callable[[str], None]) -> None:
    """Act when the cell imports torch or starts to use processes, never before."""
    AfterImport(
        {
            **{f"{name}.spawn": functools.partial(point_children_here, attempt) for name in _FORKS},
            **{f"{name}.pool": end_broken_pools for name in _FORKS[:2]},
            "torch.cuda": lambda cuda: cap_torch(cuda, attempt, warn),
        }
    )


# -- processes that the cell starts ----------------------------------------------------------------

#: The standard library's module, and those that were made of it and start processes in its way.
_FORKS = (
    "multiprocessing",
    "multiprocess",
    "joblib.externals.loky.backend",
    "loky.backend",
)


def point_children_here(attempt: Attempt, spawn: Any) -> None:
    """Let a started process import this file where it would execute the cell's."""
    original = spawn.get_preparation_data
    here = str(Path(__file__).absolute())

    def get_preparation_data(*args: Any, **options: Any) -> Any:
        data = original(*args, **options)
        if data.get("init_main_from_path") == attempt.cell:
            data["init_main_from_path"] = here
        return data

    spawn.get_preparation_data = get_preparation_data


def end_broken_pools(module: Any) -> None:
    """Make a pool fail if its workers end as soon as they begin, instead of starting them for ever.

    Twice as many workers as the pool has, with nothing done in between, are enough to tell.
    """
    pools: Any = weakref.WeakSet()
    kind: Any = module.Pool
    begin, join_exited = kind.__init__, kind._join_exited_workers  # noqa: SLF001

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        begin(self, *args, **options)
        pools.add(self)

    def _join_exited_workers(workers: list[Any]) -> Any:
        codes = [code for code in [worker.exitcode for worker in workers] if code]
        cleaned = join_exited(workers)
        for pool in [pool for pool in list(pools) if pool._pool is workers] if codes else ():  # noqa: SLF001
            jobs = dict(pool._cache)  # noqa: SLF001
            done = {key: _progress(job) for key, job in jobs.items()}
            before, ends = vars(pool).get("_gpugate_ends", (done, 0))
            ends = (ends if before == done else 0) + len(codes)
            if jobs and ends >= 2 * max(2, pool._processes):  # noqa: SLF001
                _fail_jobs(jobs.values(), codes[0])
                ends = 0
            pool._gpugate_ends = (done, ends)  # noqa: SLF001
        return cleaned

    kind.__init__, kind._join_exited_workers = __init__, staticmethod(_join_exited_workers)  # noqa: SLF001


def _progress(job: Any) -> tuple[object, ...]:
    return tuple(vars(job).get(name) for name in ("_number_left", "_index"))


def _fail_jobs(jobs: Iterable[Any], code: int) -> None:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    error = RuntimeError(
        f"the processes of this pool end before they do any work ({how}); "
        "their own errors are in the output"
    )
    for job in jobs:
        if hasattr(job, "_items"):  # of `imap`: whoever waits for the next item gets this one
            with job._cond:  # noqa: SLF001
                job._items.append((False, error))  # noqa: SLF001
                job._cond.notify()  # noqa: SLF001
        else:
            while not job.ready():  # each chunk of a `map`
                job._set(0, (False, error))  # noqa: SLF001


class _EndOfDefinitions(BaseException):
    """A child process has come to the cell's work, which is not its own."""


class _NoEpisodes:
    """Stands for ``episodes`` in a process that the cell started."""

    def __init__(self, attempt: Attempt) -> None:
        self._share = range(attempt.worker, int(attempt.launch["episodes"]), attempt.workers)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Episode]:
        raise _EndOfDefinitions

    @property
    def values(self) -> list[object]:
        raise _EndOfDefinitions


#: How multiprocessing refuses to start a process from one that is being set up, or of a pool.
_STARTS_A_PROCESS = re.compile("bootstrapping phase|daemonic processes")


class Definitions:
    """Provides a started process with the names that it needs from the cell, and executes no more.

    It is the ``__getattr__`` of the process's ``__main__``.  The first name that is asked for, as
    by a pickled function, brings imports, settings and definitions along; each name brings the
    statements that it rests on.  Every statement is executed once.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._outline: Optional[Outline] = None
        self._inputs = set(attempt.launch["inputs"])
        self._done: set[Part] = set()
        self._asked: set[str] = set()
        # Made, but not asked for: what their functions read may not be there yet.
        self._aside: dict[str, Any] = {}
        # The names that every cell has; one that the cell binds itself is its own from there on.
        self._given = attempt.own_names(_NoEpisodes(attempt))
        self._lock = threading.RLock()

    def __call__(self, name: str) -> object:
        """Return a name of the cell."""
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
        self._asked |= names
        namespace.update({each: self._aside.pop(each) for each in names & self._aside.keys()})
        for given in sorted(self._inputs & names):
            self._inputs.discard(given)
            namespace[given] = load_input(self._attempt.run / "inputs", given)
        is_whole = bool(names & _READS_ANY_NAME)
        for given in self._given if is_whole else self._given.keys() & names:
            namespace.setdefault(given, self._given[given])
        self._say_what_is_repeated(self._executed(chosen - self._done, namespace, is_whole))
        if not is_whole:
            unasked = (outline.defined - self._asked) & namespace.keys()
            self._aside.update({each: namespace.pop(each) for each in unasked})

    def _executed(self, todo: set[Part], namespace: dict[str, Any], is_whole: bool) -> list[Part]:  # noqa: FBT001
        """Execute statements in the cell's order, and return those that came to their end."""
        outline: Any = self._outline
        self._done |= todo
        leaves = {part.node: part for part in todo}
        is_at_work = False
        ended: list[Part] = []
        for statement in _only(outline.tree.body, set(leaves)):
            parts = [leaves[leaf] for leaf, _ in _leaves([statement]) if leaf in leaves]
            if is_at_work and not all(part.is_import or part.is_definition for part in parts):
                continue
            try:
                self._execute(statement, namespace)
                ended += parts
            except _EndOfDefinitions:
                is_at_work = is_whole  # the rest of a whole cell is its work
            except (Exception, SystemExit) as error:  # noqa: BLE001 - other names may be all that is needed
                if not outline.settings.issuperset(parts):
                    self._say(
                        f"{self._quoted(statement)} failed in a process that the cell started: "
                        f"{_said(error)}"
                    )
        return ended

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

    def _say_what_is_repeated(self, parts: Sequence[Part]) -> None:
        outline: Any = self._outline
        lines = [self._quoted(part.node) for part in parts if not outline.is_quiet(part)]
        if lines:
            more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""  # noqa: PLR2004
            self._say(
                f"a process that the cell started repeated {', '.join(lines[:3])}{more}, "
                "which its function needs"
            )

    def _quoted(self, node: ast.stmt) -> str:
        lines = self._attempt.source().splitlines()
        return f"line {node.lineno} `{lines[node.lineno - 1].strip()[:80]}`"

    def _say(self, text: str) -> None:
        """Warn once for all processes that this worker of the run starts."""
        digest = zlib.crc32(text.encode(errors="replace"))
        mark = self._attempt.kept / f"said.{self._attempt.worker}.{digest:08x}"
        with contextlib.suppress(OSError):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            warn_from_child(text)


@contextlib.contextmanager
def _starting_no_process() -> Iterator[None]:
    """Let the start of a process fail, as it does while a process is being set up."""
    modules = [sys.modules.get(f"{name}.process") for name in _FORKS[:2]]
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


def warn_from_child(text: str) -> None:
    """Send a warning through the pipe of the run's own process, or print it if that is closed."""
    line = json.dumps({"event": "warning", "text": text}).encode() + b"\n"
    try:
        descriptor = os.open(os.environ["GPUGATE_EVENTS"], os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, line[: select.PIPE_BUF])
        finally:
            os.close(descriptor)
    except (KeyError, OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def define_in_child(target: dict[str, Any]) -> None:
    """Make ``target``, the ``__mp_main__`` of a started process, give out what the cell defines."""
    here = Path(__file__).absolute()
    attempt = Attempt(here.parent, int(os.environ["GPUGATE_WORKER"]))
    follow_imports(attempt, warn_from_child)
    speak_utf8()
    be_without_keyboard()
    builtins.__dict__.setdefault("display", lambda *_, **__: None)
    # A child of this child comes here too, by the name of this file.
    kept = {"__name__": "__mp_main__", "__file__": str(here), "__builtins__": builtins}
    target.clear()
    target.update(kept, __getattr__=Definitions(attempt))


def main(argv: Sequence[str]) -> NoReturn:
    """Run worker ``INDEX`` of ``ATTEMPT_DIR``."""
    descriptor = int(os.environ.pop("GPUGATE_EVENTS_FD"))
    os.environ["GPUGATE_EVENTS"] = f"/proc/{os.getpid()}/fd/{descriptor}"
    events = Events(descriptor, os.environ.pop("GPUGATE_MARK", ""))
    attempt = Attempt(Path(argv[1]), int(argv[2]))
    if attempt.launch["path"] is None:  # the interpreter's own, as for a script in this folder
        attempt.launch["path"] = ["", *(p for p in sys.path if p != str(attempt.directory))]
    sys.path[:] = attempt.launch["path"]
    sys.argv = [attempt.cell]
    speak_utf8()
    be_without_keyboard()
    code, loop = run_worker(attempt, events)
    leave(code, loop, events)


if __name__ == "__main__":
    main(sys.argv)
elif __name__ == "__mp_main__":
    # From a module of its own, as this one's names make room for the cell's.
    runpy.run_path(__file__, run_name="gpugate_worker")["define_in_child"](globals())
