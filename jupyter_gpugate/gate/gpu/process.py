"""One life of the GPU reader's child process, as its parent sees it: questions out, lines in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from jupyter_gpugate.core.codec import from_json, to_json
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.gate.gpu.child import SIGN_OF_LIFE, Answer
from jupyter_gpugate.proc import RUN_MODULE

COMMAND = (sys.executable, "-c", RUN_MODULE, "jupyter_gpugate.gate.gpu.child")
#: Time for what lies in the pipe already, when this process was stopped or busy past a deadline.
GRACE_S = 0.05
LAST_WORDS_S = 1.0
LAST_WORDS_BYTES = 400
LONGEST_LINE_BYTES = 1 << 24


class NoAnswerError(Exception):
    """The child ended without an answer."""


class ReaderProcess:
    """A child, at most one question open at a time; ``started_at`` is boot time in seconds.

    ``known`` are the devices that earlier children saw: by them it names one that is lost.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, started_at: float, known: Iterable[Device] = ()
    ) -> None:
        self.started_at = started_at
        self.has_answered = False
        self._known = list(known)
        self._heard_at = 0.0  # a sign of life, on the loop's clock
        self._process = process
        self._input = cast(asyncio.StreamWriter, process.stdin)
        self._output = cast(asyncio.StreamReader, process.stdout)
        self._messages = cast(asyncio.StreamReader, process.stderr)
        self._asked = 0
        self._line: asyncio.Task[bytes] | None = None
        self._errors = b""
        self._listening = asyncio.create_task(self._keep_last_words())

    @classmethod
    async def start(cls, now: float, known: Iterable[Device] = ()) -> ReaderProcess:
        """Start a child that imports as this process does; raise `OSError` when none starts."""
        # Its own session: an interrupt from a terminal is not meant for it.
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE_BYTES,
            cwd="/",
            env={**os.environ, "PYTHONPATH": import_path()},
            start_new_session=True,
        )
        return cls(process, now, known)

    @property
    def is_gone(self) -> bool:
        return self._process.returncode is not None

    async def answered_within(self, deadline_s: float) -> bool:
        """Ask, unless a question is open; wait for its answer (or the end).

        So long at most without a sign of life: a driver that returns from each call is slow, and
        not stuck.
        """
        if self._line is None:
            self._line = asyncio.create_task(self._ask())
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            heard = max(begun, self._heard_at)
            for patience in (heard + deadline_s - clock(), GRACE_S):
                done, _ = await asyncio.wait({self._line}, timeout=max(0.0, patience))
                if done:
                    return True
            if self._heard_at <= heard:
                return False

    def answer(self) -> Answer:
        """Return the answer.

        Raises `NoAnswerError` if the child ended instead, `ValueError` for an invalid answer.
        """
        line, self._line = self._line, None
        text = line.result() if line is not None else b""
        if not text.endswith(b"\n"):
            raise NoAnswerError
        try:
            answer = from_json(Answer, json.loads(text), "answer")
        except RecursionError as error:
            raise ValueError(str(error)) from None
        if answer.read != self._asked:
            raise ValueError(f"question {self._asked} was answered as {answer.read}")
        self.has_answered = True
        return answer

    async def last_words(self) -> str:
        """Describe the end of a child, with the end of its output."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), LAST_WORDS_S)
        await asyncio.wait({self._listening}, timeout=LAST_WORDS_S)
        printed = " ".join(self._errors.decode(errors="replace").split())
        return f"ended by {_name(self._process.returncode)}" + (f": {printed}" if printed else "")

    def kill(self) -> None:
        """Kill the child; it is gone once the driver releases it."""
        for task in (self._line, self._listening):
            if task is not None:
                task.cancel()
        self._input.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Wait until the child is gone, and close its pipes."""
        await self._process.wait()
        # They may be open still: the end of a process is reported before that of its output.
        self._process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001
        await asyncio.sleep(0)

    async def _ask(self) -> bytes:
        self._asked += 1
        question = {"read": self._asked, **({"known": self._known} if self._asked == 1 else {})}
        # A child that is gone shows at the other pipe.
        with contextlib.suppress(ConnectionError):
            self._input.write(json.dumps(to_json(question)).encode() + b"\n")
            await self._input.drain()
        while (line := await self._output.readline()) == SIGN_OF_LIFE:
            self._heard_at = asyncio.get_running_loop().time()
        return line

    async def _keep_last_words(self) -> None:
        while chunk := await self._messages.read(4096):
            self._errors = (self._errors + chunk)[-LAST_WORDS_BYTES:]


def import_path() -> str:
    """Return where this process imports from, its working directory ("") by name."""
    entries: Sequence[object] = sys.path  # which people fill with paths and bytes, too
    kept = [entry for entry in entries if isinstance(entry, str) and "\0" not in entry]
    return os.pathsep.join(str(Path(entry).absolute()) for entry in kept)


def _name(status: int | None) -> str:
    if status is None:
        return "closing its output"
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"
