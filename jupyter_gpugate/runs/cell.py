"""One worker of a cell's run: makes the cell ``__main__`` and hands it its share of the episodes.

Copied into the attempt as ``worker.py`` and started there as ``worker.py ATTEMPT_DIR INDEX``, in
the interpreter of the notebook's kernel: a single file, standard library only, CPython 3.9 or
later.  Events go as JSON lines to the pipe ``GPUGATE_EVENTS_FD``; what the cell prints stays on
stdout and stderr.  Exit code 0: the cell ended; 1: after an ``error`` event; else the cell's own.

A process that the cell starts by spawn or forkserver imports this file as ``__mp_main__`` and runs
the cell as far as its definitions go: up to the first episode, or the first process it would start.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import inspect
import io
import json
import mmap
import os
import pickle
import re
import runpy
import sys
import threading
import time
import tokenize
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Optional

PROTOCOL = 5
POLL_S = 0.05  # between two looks at whether the other workers have come to their end
# 007 is a name, and so is what only other scripts count with.
_NUMBER = re.compile(
    r"[+-]?((0|[1-9][0-9]{0,300})(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?"
)

# -- what the supervisor is told -----------------------------------------------------------------


class Events:
    """JSON lines to the supervisor, from this process only: what forks off it is not heard."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - else the cell's children keep it open
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, event: str, **fields: object) -> None:
        """Write one event whole; a supervisor that is gone is not worth failing for."""
        if os.getpid() != self._pid:
            return
        line = json.dumps({"event": event, **fields}, default=_plain).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._descriptor, line) :]

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

    def names(self, episodes: object) -> dict[str, Any]:
        """Return what the run gives to the cell: its own four names and the inputs."""
        given = {name: parsed(text) for name, text in self.launch["parameters"].items()}
        names = {
            "episodes": episodes,
            "worker": self.worker,
            "workers": self.workers,
            "params": given,
        }
        inputs = self.run / "inputs"
        return {**names, **{name: load_input(inputs, name) for name in self.launch["inputs"]}}


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


def execute(codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> None:
    """Run the compiled cell; only one that awaits at its top level gets an event loop."""
    if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
        import asyncio

        asyncio.run(_awaited(codes, namespace))
        return
    for code in codes:
        exec(code, namespace)  # noqa: S102 - running the user's cell is the purpose


async def _awaited(codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> None:
    for code in codes:
        value = eval(code, namespace)  # noqa: S307 - as above
        if code.co_flags & inspect.CO_COROUTINE:
            await value


def show(events: Events, **fields: object) -> None:
    """Send a display after what was printed before it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    events.send("display", **fields)


class PlainShell:
    """Runs a cell where IPython is not: the last expression is shown by its ``repr``."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def run(self, codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> None:
        sys.displayhook = self._show
        execute(codes, namespace)

    def traceback(self, error: BaseException, frames: Optional[types.TracebackType]) -> list[str]:
        return traceback.format_exception(type(error), error, frames)

    def _show(self, value: object) -> None:
        if value is not None:
            data = {"text/plain": repr(value)}
            show(self._events, data=data, metadata={}, transient={}, update=False, result=True)


def ipython_shell(module: types.ModuleType, events: Events) -> Any:
    """Return a shell of this process's IPython that shows things as events."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

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
            fields = {"data": data, "metadata": metadata or {}, "transient": transient or {}}
            show(events, **fields, update=update, result=False)

        def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's
            show(events, clear=True, wait=wait)

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
            fields = {"data": format_dict, "metadata": md_dict or {}, "transient": {}}
            show(events, **fields, update=False, result=True)

    class Shell(InteractiveShell):
        def init_virtualenv(self) -> None:
            pass  # sys.path is the kernel's, to the letter

        def run(self, codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> None:
            with self.builtin_trap, self.display_trap:
                self.events.trigger("pre_execute")
                try:
                    execute(codes, namespace)
                finally:
                    self.events.trigger("post_execute")  # open figures are shown here

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
        return ipython_shell(module, events)
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


def tell_error(error: BaseException, shell: Any, attempt: Attempt, events: Events) -> None:
    """Send what ended the cell, with its own lines; stderr gets it too, as of any program."""
    found = oom(error, attempt)
    if found is not None:
        events.send("oom", **found)
    text = _said(error)
    lines = [text]
    with contextlib.suppress(Exception):  # there may be no memory left to read the source with
        show_own_frames(error, attempt.cell)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    print("".join(lines).rstrip("\n"), file=sys.stderr, flush=True)  # noqa: T201
    # IPython's printer knows neither a group of exceptions nor an error without frames.
    if error.__traceback__ is not None and not hasattr(error, "exceptions"):
        with contextlib.suppress(Exception):
            lines = shell.traceback(error, error.__traceback__)
    evalue = text.partition(": ")[2]
    lines = [line.rstrip("\n") for line in lines]
    events.send("error", ename=type(error).__name__, evalue=evalue, traceback=lines)


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


def run_worker(attempt: Attempt, events: Events) -> object:
    """Run the cell as ``__main__``; return what `sys.exit` takes."""
    module = types.ModuleType("__main__")
    module.__file__ = attempt.cell
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module
    shell: Any = PlainShell(events)
    try:
        follow_imports(attempt, events.warn)
        codes = compiled(attempt.source(), attempt.cell)
        shell = shell_for(module, events)
        episodes = Episodes(attempt, events, resumable(attempt, events))
        module.__dict__.update(attempt.names(episodes))
        try:
            shell.run(codes, module.__dict__)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                return leaving.code
        episodes.close()
        write_outputs(attempt, module.__dict__, events)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the run's end and its news
        tell_error(error, shell, attempt, events)
        return 1
    finally:
        tell_torch_memory(attempt, events)
    return 0


def follow_imports(attempt: Attempt, warn: Callable[[str], None]) -> None:
    """Act when the cell imports torch or starts to use processes, never before."""
    here = str(Path(__file__).absolute())

    def point_children_here(spawn: Any) -> None:
        original = spawn.get_preparation_data

        def get_preparation_data(name: str) -> Any:
            data = original(name)
            if data.get("init_main_from_path") == attempt.cell:
                data["init_main_from_path"] = here
            return data

        spawn.get_preparation_data = get_preparation_data

    AfterImport(
        {
            "multiprocessing.spawn": point_children_here,
            "torch.cuda": lambda cuda: cap_torch(cuda, attempt, warn),
        }
    )


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


def define_in_child(target: dict[str, Any]) -> None:
    """Fill ``target``, the ``__mp_main__`` of a started process, with the cell's definitions."""
    here = Path(__file__).absolute()
    attempt = Attempt(here.parent, int(os.environ["GPUGATE_WORKER"]))
    module = types.ModuleType("__mp_main__")
    module.__file__ = str(here)  # so that this child's own children come here too
    sys.modules["__mp_main__"] = module  # classes look up their module while they are made
    follow_imports(attempt, lambda text: print(text, file=sys.stderr))  # noqa: T201
    module.__dict__.update(attempt.names(_NoEpisodes(attempt)))
    builtins.__dict__.setdefault("display", lambda *_, **__: None)
    try:
        execute(compiled(attempt.source(), attempt.cell), module.__dict__)
    except _EndOfDefinitions:
        pass
    except Exception as error:  # noqa: BLE001 - what was defined before it may be all that is needed
        if "bootstrapping phase" not in str(error):  # else it only came to the start of a process
            traceback.print_exc()
    found = dict(module.__dict__)
    target.clear()
    target.update(found)


def main(argv: Sequence[str]) -> object:
    """Run worker ``INDEX`` of ``ATTEMPT_DIR``."""
    events = Events(int(os.environ.pop("GPUGATE_EVENTS_FD")))
    attempt = Attempt(Path(argv[1]), int(argv[2]))
    if attempt.launch["path"] is None:  # the interpreter's own, as for a script in this folder
        attempt.launch["path"] = ["", *(p for p in sys.path if p != str(attempt.directory))]
    sys.path[:] = attempt.launch["path"]
    sys.argv = [attempt.cell]
    return run_worker(attempt, events)


if __name__ == "__main__":
    sys.exit(main(sys.argv))  # type: ignore[arg-type]
elif __name__ == "__mp_main__":
    # From a module of its own, as this one's names make room for the cell's.
    runpy.run_path(__file__, run_name="gpugate_worker")["define_in_child"](globals())
