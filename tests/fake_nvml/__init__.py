"""A stand-in for the NVIDIA driver library, for tests without a GPU.

`StandIn` builds ``libnvidia-ml.so.1`` from the C sources beside this file and writes what it
answers from; README.md describes the state file, the registry of holders and the variants::

    stand_in = StandIn(tmp_path)
    gpu = stand_in.gpu(total=24 * GB)
    stand_in.hold(os.getpid(), gpu, 2 * GB)
    subprocess.run([...], env=os.environ | stand_in.env())
    stand_in.fail("nvmlDeviceGetMemoryInfo*", 15, gpu=gpu)
    stand_in.heal()
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.fake_nvml import holder

#: Put into a run's own process by path: ``runpy.run_path(str(HOLDER))["hold_gpu"](0, size)``.
HOLDER = Path(holder.__file__).resolve()
VARIANTS = {
    "current": (),
    "no-memory-v2": ("-DWITHOUT_MEMORY_V2",),
    "no-lists-v3": ("-DWITHOUT_LISTS_V3",),
    "old": ("-DWITHOUT_MEMORY_V2", "-DWITHOUT_LISTS_V2", "-DWITHOUT_LISTS_V3"),
    "wide-rows": ("-DWIDE_ROWS",),
    "wide-rows-only": ("-DWIDE_ROWS", "-DWITHOUT_LISTS_V2"),
}
GB = 1 << 30


def build(directory: Path, variant: str = "current") -> Path:
    """Compile the library as ``directory/libnvidia-ml.so.1`` and return its path."""
    library = directory / "libnvidia-ml.so.1"
    library.write_bytes(_compiled(variant))
    return library


@functools.cache
def _compiled(variant: str) -> bytes:
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the stand-in driver library needs a C compiler named cc")
    sources = [
        str(HOLDER.with_name(name))
        for name in ("nvml_stand_in.c", "state.c", "holders.c", "rules.c")
    ]
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "library")
        flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared"]
        subprocess.run(
            [compiler, *flags, *VARIANTS[variant], "-o", str(output), *sources, "-lpthread"],
            check=True,
        )
        return output.read_bytes()


@dataclass(frozen=True)
class State:
    """What is held now, told without the library: the oracle beside it."""

    parts: tuple[holder.Part, ...]
    holds: tuple[holder.Hold, ...]

    def part(self, gpu: str | int) -> holder.Part:
        if isinstance(gpu, int):
            return [p for p in self.parts if p.slice is None][gpu]
        return next(p for p in self.parts if p.uuid == gpu)

    def held_by_pid(self, gpu: str | int) -> dict[int, int]:
        """Bytes per pid on a board or slice, the same bytes under two kinds counted once."""
        return holder.held_by_pid(self.part(gpu), self.parts, self.holds)

    def used_bytes(self, gpu: str | int) -> int:
        return holder.used_bytes(self.part(gpu), self.parts, self.holds)

    def free_bytes(self, gpu: str | int) -> int:
        part = self.part(gpu)
        return max(0, part.total - part.reserved - self.used_bytes(gpu))


class StandIn:
    """One stand-in driver: its library, its boards, who holds what, and what goes wrong.

    A GPU is named by its UUID or by its index, sizes are bytes.  Every change is one atomic
    replacement of the state file, seen by the library at its next call.
    """

    def __init__(self, directory: Path, variant: str = "current") -> None:
        self.directory = directory
        self.registry = directory / "holders"
        self.registry.mkdir(parents=True)
        self.library = build(directory, variant)
        self._versions: dict[str, str] = {}
        self._boards: dict[str, dict[str, str | int]] = {}
        self._slices: dict[str, tuple[str, dict[str, str | int]]] = {}
        self._rows: list[str] = []
        self._rules: list[str] = []
        self._session = 0
        self._numbers = itertools.count()
        self._write()

    def env(self) -> dict[str, str]:
        """Return what a process needs in its environment to meet this driver."""
        former = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": str(self.directory) + (f":{former}" if former else ""),
            holder.STATE: str(self._path),
            holder.PROCS: str(self.registry),
        }

    # -- boards -------------------------------------------------------------------------------

    def version(self, **versions: str) -> None:
        """Set what ``driver``, ``nvmlver`` or ``cuda`` answer."""
        self._versions.update(versions)
        self._write()

    def gpu(self, total: int = 24 * GB, *, uuid: str = "", **keys: str | int) -> str:
        """Add a board; keys as in README.md (name, reserved, used, unlisted, util, mig, bus)."""
        uuid = uuid or f"GPU-{next(self._numbers):08x}-aaaa-bbbb-cccc-dddddddddddd"
        self._boards[uuid] = {"name": "NVIDIA A10", "total": total, **keys}
        self._write()
        return uuid

    def mig_slice(self, board: str, total: int, *, uuid: str = "", **keys: str | int) -> str:
        """Cut a slice off a board, whose MIG mode is on from now."""
        uuid = uuid or f"MIG-{next(self._numbers):08x}-aaaa-bbbb-cccc-dddddddddddd"
        number = sum(on == board for on, _ in self._slices.values())
        self._boards[board].setdefault("mig", 1)
        name = f"{self._boards[board]['name']} MIG 1g.{total // GB}gb"
        made: dict[str, str | int] = {"name": name, "total": total, "gi": number + 1, "ci": 0}
        self._slices[uuid] = (board, made | keys)
        self._write()
        return uuid

    def change(self, gpu: str | int, **keys: str | int) -> None:
        """Change keys of a board or slice, such as ``unlisted=2 * GB`` or ``util=80``."""
        uuid = self.uuid(gpu)
        (self._boards[uuid] if uuid in self._boards else self._slices[uuid][1]).update(keys)
        self._write()

    def remove(self, gpu: str | int) -> None:
        """Let a board and its slices vanish, as after a reboot without it; or a slice alone."""
        uuid = self.uuid(gpu)
        self._boards.pop(uuid, None)
        self._slices = {u: made for u, made in self._slices.items() if uuid not in (u, made[0])}
        self._write()

    def reorder(self, *uuids: str) -> None:
        """Put the boards into another order: their indices change, their UUIDs do not."""
        self._boards = {uuid: self._boards[uuid] for uuid in uuids}
        self._write()

    def uuid(self, gpu: str | int) -> str:
        return list(self._boards)[gpu] if isinstance(gpu, int) else gpu

    # -- who holds what -----------------------------------------------------------------------

    def hold(
        self, pid: int, gpu: str | int, size: int | None, *, kind: str = "C", sticky: bool = False
    ) -> None:
        """Let a process hold memory until it ends, or for ever when sticky; None: "N/A"."""
        ticks = holder.start_ticks(pid) or 0
        hold = holder.Hold(pid, ticks, kind, self.uuid(gpu), size, sticky)
        holder.write_hold(self.registry, hold)

    def release(self, pid: int) -> None:
        """Take all that a process holds from it."""
        for path in self.registry.glob(f"{pid}-*"):
            path.unlink(missing_ok=True)

    def listed(self, pid: int, gpu: str | int, size: int | None, *, kind: str = "C") -> None:
        """Let the driver list any pid at all, alive or not, of this namespace or not."""
        index = list(self._boards).index(self.uuid(gpu))
        mem = "na" if size is None else size
        self._rows.append(f"proc gpu={index} kind={kind} pid={pid} mem={mem}")
        self._write()

    def state(self) -> State:
        """Read what is held now, for a test to compare with."""
        parts = holder.read_parts(self._path.read_text())
        return State(parts, tuple(holder.read_holds(self.registry)))

    # -- what goes wrong ----------------------------------------------------------------------

    def fail(self, function: str, code: int, **scope: str | int) -> None:
        """Let a call return an error code; see `_rule` for the function and its scope."""
        self._rule("err", function, {"code": code, **scope})

    def delay(self, function: str, seconds: float, **scope: str | int) -> None:
        """Let a call take longer."""
        self._rule("delay", function, {"us": int(seconds * 1e6), **scope})

    def hang(self, function: str, **scope: str | int) -> None:
        """Let a call return only after `heal`."""
        self._rule("hang", function, scope)

    def hanging(self) -> list[int]:
        """List the live processes of which a call hangs right now."""
        signs = (int(path.name.rpartition("-")[2]) for path in self.registry.glob(".hanging-*"))
        return [pid for pid in signs if holder.start_ticks(pid) is not None]

    def crash(self, function: str, **scope: str | int) -> None:
        """Let a call end its process by SIGSEGV."""
        self._rule("crash", function, scope)

    def garbage(self, function: str, **scope: str | int) -> None:
        """Let a call succeed with noise for an answer."""
        self._rule("garbage", function, scope)

    def say(self, function: str, **scope: str | int) -> None:
        """Let a call print to its process's standard output."""
        self._rule("say", function, scope)

    def blind(self, **scope: str | int) -> None:
        """Let the driver count no board at all."""
        self._rule("blind", "nvmlDeviceGetCount_v2", scope)

    def stale(self) -> None:
        """Let the sessions of now go on with the boards of now, whatever changes from here on."""
        self._rules.append(f"stale upto={self._session}")
        self._session += 1
        self._write()

    def lose(self, gpu: str | int) -> None:
        """Let a board fall off the bus: every call on it, and on its slices, fails."""
        self.fail("nvmlDevice*", 15, gpu=gpu)

    def heal(self) -> None:
        """Let everything work again."""
        self._rules.clear()
        self._write()

    def _rule(self, action: str, function: str, scope: dict[str, str | int]) -> None:
        """Add a rule for a function's name, or for all that begin as a name ending in ``*``.

        Scope: ``gpu`` (a board with its slices), ``device`` (a board or slice alone), ``after``
        (spare so many calls), ``every`` (act on each n-th), ``times`` (act so often); calls count
        per process; ``sessions``: only in processes that have the library ``"open"`` by now, or
        only in those that open it from now on, ``"new"``.
        """
        if "sessions" in scope:
            key = {"open": "upto", "new": "beyond"}[str(scope["sessions"])]
            scope = {k: v for k, v in scope.items() if k != "sessions"} | {key: self._session}
            self._session += 1
        if "gpu" in scope:
            scope = scope | {"gpu": list(self._boards).index(self.uuid(scope["gpu"]))}
        self._rules.append(_line(f"{action} {function}", scope))
        self._write()

    # -- the file -----------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self.directory / "state"

    def _write(self) -> None:
        boards = list(self._boards)
        seen = dict.fromkeys(boards, 0)
        lines = [f"session {self._session}"]
        lines += [f"{key} {value}" for key, value in self._versions.items()]
        for index, (uuid, keys) in enumerate(self._boards.items()):
            lines.append(_line(f"gpu {index}", {"uuid": uuid, **keys}))
        for uuid, (board, keys) in self._slices.items():
            lines.append(_line(f"mig {boards.index(board)} {seen[board]}", {"uuid": uuid, **keys}))
            seen[board] += 1
        draft = self.directory / ".state"
        draft.write_text("\n".join([*lines, *self._rows, *self._rules, ""]))
        draft.replace(self._path)


def _line(head: str, keys: dict[str, str | int]) -> str:
    words = [f"{key}={str(value).replace(' ', '_')}" for key, value in keys.items()]
    return " ".join([head, *words])
