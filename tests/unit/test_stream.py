"""The output of a run, passed on as it is written."""

from __future__ import annotations

import threading
from typing import Any

from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.stream import OutputStream


class Outputs(Client):
    """A gate that has the output of two attempts, one after the other."""

    def __init__(self) -> None:
        self.attempt, self.texts = 1, {1: "first", 2: "second, and more"}
        self.read_all = threading.Event()

    def output(self, run_id: str, start: int = 0) -> dict[str, Any]:
        """Return the output of the newest attempt from a byte on."""
        assert run_id == "r"
        text = self.texts[self.attempt][start:]
        if not text:
            self.read_all.set()
        return {"next": start + len(text), "text": text, "attempt": self.attempt}


def test_the_output_of_another_attempt_follows_from_its_beginning() -> None:
    """Where the first attempt's output ended says nothing of the second's."""
    gate, written = Outputs(), list[str]()
    stream = OutputStream(gate, "r", written.append)
    assert gate.read_all.wait(60)
    gate.attempt = 2
    stream.close(to_the_end=True)
    assert "".join(written) == "firstsecond, and more"


def test_a_stream_may_begin_within_the_output() -> None:
    """What was printed before is not printed again."""
    gate, written = Outputs(), list[str]()
    stream = OutputStream(gate, "r", written.append, start=3)
    assert gate.read_all.wait(60)
    stream.close(to_the_end=True)
    assert written == ["st"]
