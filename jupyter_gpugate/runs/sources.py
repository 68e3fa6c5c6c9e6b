"""Asks `source.py`, under the run's own interpreter, what a run's source is."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_gpugate.runs.record import Refused

SOURCE_FILE = Path(__file__).with_name("source.py")
TIMEOUT_S = 60.0
REMEMBERED = 256


class SourceReader:
    """Reads sources; an answer stands as long as no file behind it has changed."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[dict[str, Any], tuple[object, ...]]] = OrderedDict()

    async def read(
        self, interpreter: str, question: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """What ``source.py`` says; `Refused` (400) where the interpreter cannot be run."""
        key = json.dumps([interpreter, question, environ.get("PATH"), environ.get("PYTHONPATH")])
        known = self._known.get(key)
        if known is not None and known[1] == _stamps(known[0], question):
            self._known.move_to_end(key)
            return known[0]
        answer = await self._ask(interpreter, question, environ)
        self._known[key] = (answer, _stamps(answer, question))
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return answer

    async def _ask(
        self, interpreter: str, question: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        try:
            process = await asyncio.create_subprocess_exec(
                interpreter,
                str(SOURCE_FILE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=question["cwd"],
                env=dict(environ),
            )
            out, err = await asyncio.wait_for(
                process.communicate(json.dumps(question).encode()), TIMEOUT_S
            )
        except asyncio.TimeoutError:  # an OSError too, from Python 3.11 on
            process.kill()
            raise Refused(
                400,
                "bad_request",
                f"interpreter: {interpreter} does not answer",
                field="interpreter",
                value=interpreter,
            ) from None
        except OSError as error:
            raise Refused(
                400,
                "bad_request",
                f"interpreter: {interpreter} cannot be run: {error.strerror}",
                field="interpreter",
                value=interpreter,
            ) from None
        if process.returncode != 0:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise Refused(
                400,
                "bad_request",
                f"source: cannot be read by {interpreter}: {last}",
                field="source",
            )
        return dict(json.loads(out))


def _stamps(answer: Mapping[str, Any], question: Mapping[str, Any]) -> tuple[object, ...]:
    """What changes when a file behind an answer does, or when one might have come into its way."""
    return tuple(_stamp(path) for path in (*answer["files"], *_folders(question)))


def _folders(question: Mapping[str, Any]) -> Sequence[str]:
    return [question["cwd"], *(question.get("path") or [])]


def _stamp(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
