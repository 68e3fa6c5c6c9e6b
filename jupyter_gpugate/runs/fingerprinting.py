"""Runs the fingerprint program under the interpreter of a run, and remembers its answers."""

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
from jupyter_gpugate.runs.folder import in_words
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.runs.turns import TooManyWaiting, Turns

#: Counted from the start of the interpreter; clients show meanwhile that sources are being read.
TIMEOUT_S = 120.0
REMEMBERED = 256
#: The answer of a Python interpreter is shorter.
MOST_OUTPUT_BYTES = 16 << 20
MOST_ERROR_BYTES = 64 << 10
SHOWN_CHARS = 200
AT_ONCE = max(3, min(6, os.cpu_count() or 1))
MOST_WAITING = 500


@dataclass(frozen=True)
class Fingerprint:
    """The form of the program's answer, which may come from anything named as an interpreter."""

    source_hash: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    packages: Mapping[str, str]
    runtime: str
    python: str
    error: str | None
    magic_lines: tuple[Mapping[str, Any], ...]
    syntax_error: Mapping[str, Any] | None


class NotPython(Exception):
    """The interpreter does not answer as Python would."""


class Fingerprinter:
    """Fingerprints sources; an answer is valid as long as no file behind it has changed."""

    def __init__(self, programs: Programs, cache: Path | None = None) -> None:
        self._programs = programs
        self._cache = cache
        self._known: OrderedDict[str, tuple[dict[str, Any], tuple[object, ...]]] = OrderedDict()
        self._turns = Turns(AT_ONCE, MOST_WAITING)

    async def read(
        self,
        interpreter: str,
        question: Mapping[str, Any],
        environ: Mapping[str, str],
        kernel: str = "",
    ) -> dict[str, Any]:
        """Return the program's answer.

        Raises `Refused`: 400 if the interpreter cannot run, 503 if the program cannot be kept.

        ``kernel`` only decides the order of turns.
        """
        key = json.dumps([interpreter, question, environ.get("PATH"), environ.get("PYTHONPATH")])
        known = self._known.get(key)
        if known is not None and known[1] == await asyncio.to_thread(_stamps, known[0]):
            self._known.move_to_end(key)
            return known[0]
        try:
            async with self._turns.one(f"{interpreter}\0{kernel}"):
                answer = await self._ask(interpreter, question, environ)
        except TooManyWaiting:
            problem = f"{MOST_WAITING} sources are waiting to be read; try again later"
            raise Refused(429, "queue_full", problem, retry_after="5") from None
        self._known[key] = (answer, await asyncio.to_thread(_stamps, answer))
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return answer

    async def _ask(
        self, interpreter: str, question: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        cache = str(self._cache) if self._cache else None
        request = json.dumps({**question, "cache": cache}).encode()
        command = [interpreter, await self._program()]
        try:
            return _parse(await _run(command, request, question["cwd"], environ))
        except NotPython as error:
            problem, field = f"{interpreter[:SHOWN_CHARS]} {error}", "interpreter"
        except OSError as error:
            if error.filename == question["cwd"]:
                problem, field = f"{error.strerror}: {question['cwd']}"[:SHOWN_CHARS], "cwd"
            else:
                named = interpreter[:SHOWN_CHARS]
                problem, field = f"{named} cannot be run: {error.strerror}", "interpreter"
        raise Refused(400, "bad_request", f"{field}: {problem}", field=field)

    async def _program(self) -> str:
        try:
            folder = await asyncio.to_thread(self._programs.ready)
        except OSError as error:
            problem = f"the run directory cannot be written: {in_words(error)}"
            raise Refused(503, "disk", problem) from None
        return str(folder / "fingerprint" / "__main__.py")


async def _run(
    command: Sequence[str], request: bytes, cwd: str, environ: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    """Run the program; return its exit code, stdout and stderr, both of limited length."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=dict(environ),
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(_communicate(process, request), TIMEOUT_S)
    except asyncio.TimeoutError:  # an OSError too, from Python 3.11 on
        await _kill(process)
        raise NotPython("does not answer") from None
    except BaseException:
        await _kill(process)
        raise
    return await process.wait(), out, err


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process and all that it has started in its session."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    # The end of the process is never reported while a pipe is full or held open by another process.
    process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001
    await process.wait()


async def _communicate(process: asyncio.subprocess.Process, request: bytes) -> tuple[bytes, bytes]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise NotPython("has no standard streams")
    streams = [
        asyncio.ensure_future(_read(process.stdout, MOST_OUTPUT_BYTES)),
        asyncio.ensure_future(_read(process.stderr, MOST_ERROR_BYTES)),
        asyncio.ensure_future(_write(process.stdin, request)),
    ]
    try:
        out, err, _ = await asyncio.gather(*streams)
        await process.wait()
        return out or b"", err or b""
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def _write(stdin: asyncio.StreamWriter, request: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stdin.write(request)
        await stdin.drain()
    stdin.close()


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    pieces, length = [], 0
    while piece := await stream.read(1 << 16):
        length += len(piece)
        if length > most:
            raise NotPython("prints more than a Python interpreter would")
        pieces.append(piece)
    return b"".join(pieces)


def _parse(result: tuple[int, bytes, bytes]) -> dict[str, Any]:
    code, out, err = result
    if code != 0:
        last = err.decode(errors="replace").strip().rpartition("\n")[2][:SHOWN_CHARS]
        problem = f"cannot read the source: {last}" if last else "cannot read the source"
        raise NotPython(problem)
    try:
        data = json.loads(out)
        from_json(Fingerprint, data, "answer")
    except (ProtocolError, ValueError, RecursionError):
        raise NotPython("does not answer like a Python interpreter") from None
    return dict(data)


def _stamps(answer: Mapping[str, Any]) -> tuple[object, ...]:
    """Return values that change when a file of an answer does, or a searched folder."""
    paths: Sequence[str] = [*answer["files"], *answer["folders"]]
    return tuple(map(_stamp, paths))


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)  # noqa: PTH116 - some hundreds for each submit
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)
