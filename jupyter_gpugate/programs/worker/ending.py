"""The end of a worker: threads, pools and exit handlers that the cell has left."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .events import Events
from .execution import end_tasks
from .wording import listed

#: Threads and processes of the cell are ended when they have been idle for so long,
_IDLE_S = 3.0
#: or at work for so long.
_MOST_S = 60.0
#: The same for exit handlers, which may have results to upload.
_HANDLERS_IDLE_S = 10.0
_HANDLERS_MOST_S = 600.0
_BUSY = 0.01  # of a core: beyond that a process counts as at work
_POLL_S = 0.05


class Activity:
    """Reports when processes have been idle for long enough, or active for too long."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._began = self._busy_at = self._read_at = time.monotonic()
        self._used = self._cpu_s()

    def is_over(self, idle_s: float, most_s: float) -> bool:
        """Return whether it is time; to be called several times a second."""
        now = time.monotonic()
        if now - self._read_at >= 1.0:
            used = self._cpu_s()
            if used - self._used > _BUSY * (now - self._read_at):
                self._busy_at = now
            self._read_at, self._used = now, used
        return now - self._busy_at >= idle_s or now - self._began >= most_s

    def _cpu_s(self) -> float:
        ticks = 0
        for pid in self._pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def leave(code: object, loop: Any, events: Events) -> NoReturn:
    """End this process as an interpreter does, but wait for nothing that never ends.

    A kernel continues after a cell, and so do the threads, tasks and processes that the cell has
    left.  A run ends: they may finish their work, and the card names those that did not.
    """
    status = code if isinstance(code, int) else int(code is not None)
    everybody = Activity(_descendants)
    guard = threading.Thread(target=_guard, args=(everybody, status, events), daemon=True)
    guard.start()
    if loop is not None:
        _warn_of(events, [f"task `{name}`" for name in end_tasks(loop, _IDLE_S)], "await")
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


def _left_after(find: Callable[[], dict[str, int]], events: Events) -> list[str]:
    """Wait for threads or processes; return the names of those that did not end."""
    activity = Activity(lambda: [pid for pid in find().values() if pid])
    is_warned = False
    began = time.monotonic()
    while True:
        left = find()
        if not left or activity.is_over(_IDLE_S, _MOST_S):
            return sorted(left)
        if not is_warned and time.monotonic() - began > _IDLE_S + 1:
            is_warned = True
            events.warn(
                f"the cell has ended, but {listed(sorted(left))} is still at work: the run waits "
                f"until that ends, {_MOST_S:.0f} s at most"
            )
        time.sleep(_POLL_S)


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


def _warn_of(events: Events, left: Sequence[str], remedy: str) -> None:
    if left:
        events.warn(
            f"the cell ended without {listed(left)}, which the end of the run has stopped: "
            f"{remedy} it in the cell if its work is needed"
        )


def _guard(everybody: Activity, status: int, events: Events) -> None:
    """End the process if an exit handler, or another part of the exit, never returns."""
    while not everybody.is_over(_HANDLERS_IDLE_S, _HANDLERS_MOST_S):
        time.sleep(10 * _POLL_S)
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
