"""Asks `source.py`, under the run's own interpreter, what a run's source is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.codec import ProtocolError, from_json
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.runs.turns import TooManyWaiting, Turns

SOURCE_FILE = Path(__file__).with_name("source.py")
#: Counted from the start of the interpreter; whoever submits is told meanwhile that it reads.
TIMEOUT_S = 120.0
REMEMBERED = 256
#: An interpreter prints less than this.
MOST_ANSWERED_BYTES = 16 << 20
MOST_COMPLAINED_BYTES = 64 << 10
SHOWN_CHARS = 200
AT_ONCE = max(3, min(6, os.cpu_count() or 1))
MOST_WAITING = 500


@dataclass(frozen=True)
class Answer:
    """The form of the answer of `source.describe`, which may come from any program."""

    source_hash: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    packages: Mapping[str, str]
    runtime: str
    python: str
    error: str | None
    uses_names: tuple[str, ...]
    magic_lines: tuple[Mapping[str, Any], ...]
    syntax_error: Mapping[str, Any] | None


class NoSource(Exception):
    """The program that was started is not Python, or does not end."""


class SourceReader:
    """Reads sources; an answer stands as long as no file behind it has changed."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._known: OrderedDict[str, tuple[dict[str, Any], tuple[object, ...]]] = OrderedDict()
        self._turns = Turns(AT_ONCE, MOST_WAITING)

    async def read(
        self,
        interpreter: str,
        question: Mapping[str, Any],
        environ: Mapping[str, str],
        whose: str = "",
    ) -> dict[str, Any]:
        """Return the answer of ``source.py``; raise `Refused` (400) if the interpreter cannot run.

        ``whose`` only decides the order of turns.
        """
        key = json.dumps([interpreter, question, environ.get("PATH"), environ.get("PYTHONPATH")])
        known = self._known.get(key)
        if known is not None and known[1] == await asyncio.to_thread(_stamps, known[0]):
            self._known.move_to_end(key)
            return known[0]
        try:
            async with self._turns.one(f"{interpreter}\0{whose}"):
                answer = await self._asked(interpreter, question, environ)
        except TooManyWaiting:
            problem = f"{MOST_WAITING} sources are waiting to be read; try again later"
            raise Refused(429, "queue_full", problem, retry_after="5") from None
        self._known[key] = (answer, await asyncio.to_thread(_stamps, answer))
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return answer

    async def _asked(
        self, interpreter: str, question: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        cache = str(self._cache) if self._cache else None
        asked = json.dumps({**question, "cache": cache}).encode()
        try:
            return _answer(await _said(interpreter, asked, question["cwd"], environ))
        except NoSource as error:
            problem, field = f"{interpreter[:SHOWN_CHARS]} {error}", "interpreter"
        except OSError as error:
            if error.filename == question["cwd"]:
                problem, field = f"{error.strerror}: {question['cwd']}"[:SHOWN_CHARS], "cwd"
            else:
                named = interpreter[:SHOWN_CHARS]
                problem, field = f"{named} cannot be run: {error.strerror}", "interpreter"
        raise Refused(400, "bad_request", f"{field}: {problem}", field=field)


async def _said(
    interpreter: str, asked: bytes, cwd: str, environ: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    """Return the interpreter's exit code, stdout and stderr, limited in size."""
    process = await asyncio.create_subprocess_exec(
        interpreter,
        str(SOURCE_FILE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=dict(environ),
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(_talk(process, asked), TIMEOUT_S)
    except asyncio.TimeoutError:  # an OSError too, from Python 3.11 on
        await _end(process)
        raise NoSource("does not answer") from None
    except BaseException:
        await _end(process)
        raise
    return await process.wait(), out, err


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it and whatever it has started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    # A pipe that is full, or that somebody else keeps open, would never tell its end.
    process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001
    await process.wait()


async def _talk(process: asyncio.subprocess.Process, asked: bytes) -> tuple[bytes, bytes]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise NoSource("has no standard streams")
    talks = [
        asyncio.ensure_future(_heard(process.stdout, MOST_ANSWERED_BYTES)),
        asyncio.ensure_future(_heard(process.stderr, MOST_COMPLAINED_BYTES)),
        asyncio.ensure_future(_tell(process.stdin, asked)),
    ]
    try:
        out, err, _ = await asyncio.gather(*talks)
        await process.wait()
        return out or b"", err or b""
    finally:
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _tell(stdin: asyncio.StreamWriter, asked: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stdin.write(asked)
        await stdin.drain()
    stdin.close()


async def _heard(stream: asyncio.StreamReader, most: int) -> bytes:
    pieces, heard = [], 0
    while piece := await stream.read(1 << 16):
        heard += len(piece)
        if heard > most:
            raise NoSource("prints more than a Python interpreter would")
        pieces.append(piece)
    return b"".join(pieces)


def _answer(said: tuple[int, bytes, bytes]) -> dict[str, Any]:
    code, out, err = said
    if code != 0:
        last = err.decode(errors="replace").strip().rpartition("\n")[2][:SHOWN_CHARS]
        problem = f"cannot read the source: {last}" if last else "cannot read the source"
        raise NoSource(problem)
    try:
        data = json.loads(out)
        from_json(Answer, data, "answer")
    except (ProtocolError, ValueError, RecursionError):
        raise NoSource("does not answer like a Python interpreter") from None
    return dict(data)


def _stamps(answer: Mapping[str, Any]) -> tuple[object, ...]:
    """Return stamps that change when a file of an answer changes, or could be shadowed."""
    return tuple(map(_stamp, _watched(answer)))


def _watched(answer: Mapping[str, Any]) -> Sequence[str]:
    return [*answer["files"], *answer["folders"]]


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)  # noqa: PTH116 - some hundreds for each submit
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)
