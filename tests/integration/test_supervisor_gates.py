"""A supervisor whose gate is away, restarts, never answers, or asks for a stop."""

from __future__ import annotations

import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.messages import Refusal, Verdict
from jupyter_gpugate.runs.outcome import stop_in
from tests.integration.supervisor_process import (
    PATIENCE_S,
    Make,
    python,
    until,
)

#: A stop of no kind that programs know.
UPDATE = Stop(StopKind.ENDED, "gate", "the machine is to be updated")


def test_a_gate_that_is_away_never_stops_a_run(make: Make, tmp_path: Path) -> None:
    """The run goes on and ends on the disk; the next gate hears of it."""
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('on')"
    attempt = make(argv=python(waits)).start()
    attempt.gate.wait_for("heartbeat")
    attempt.gate.close()
    attempt.gate.path.unlink()
    with socket.socket(socket.AF_UNIX) as dying:
        dying.settimeout(PATIENCE_S)
        dying.bind(str(attempt.gate.path))
        dying.listen()
        for _ in range(2):  # beats that find a gate, but no answer
            dying.accept()[0].close()
    go.touch()
    until((attempt.path / "_DONE").exists, "the record")
    assert attempt.output() == "on\n"
    assert not attempt.gate.all("finished")
    attempt.gate.open()
    assert attempt.end()["outcome"] == "completed"
    assert attempt.gate.all("finished")[0]["end"]["outcome"] == "completed"


def test_beats_go_on_with_a_gate_that_has_restarted(make: Make) -> None:
    """A gate that comes back at the same path hears the next beat, without a new start."""
    attempt = make(argv=["sleep", "600"]).start()
    attempt.gate.wait_for("heartbeat")
    attempt.gate.close()
    attempt.gate.messages.clear()
    attempt.gate.open()
    attempt.gate.wait_for("heartbeat", lambda beat: beat["phase"] == "running")
    assert not attempt.gate.all("started")
    attempt.stop("cancelled")
    attempt.end()


def test_a_gate_that_never_answers_holds_up_nothing(make: Make) -> None:
    """A gate that takes the connection and stays silent delays neither the run nor its record."""
    attempt = make(argv=python("import time; time.sleep(0.5); print('done')"))
    attempt.start()
    attempt.gate.wait_for("started")
    attempt.gate.close()
    attempt.gate.path.unlink()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(attempt.gate.path))
        mute.listen(64)
        until((attempt.path / "_DONE").exists, "the record")
    assert attempt.output() == "done\n"
    assert attempt.outcome()["end"]["outcome"] == "completed"


def test_a_supervisor_whose_record_stands_leaves_when_told(make: Make) -> None:
    """While only the gate's answer is missing, a SIGTERM ends the wait."""
    attempt = make(argv=python(""))
    attempt.gate.replies["finished"] = (500, {})
    attempt.start()
    attempt.gate.wait_for("finished")
    until((attempt.path / "_DONE").exists, "the record")
    attempt.stop(None)
    assert attempt.end()["outcome"] == "completed"


def test_an_end_is_told_until_it_is_recorded(make: Make) -> None:
    """A gate that fails to record an end hears it again."""
    attempt = make(argv=python(""))
    attempt.gate.replies["finished"] = (500, {})
    attempt.start()
    until(lambda: len(attempt.gate.all("finished")) > 1, "a second try")
    attempt.gate.replies["finished"] = (200, {"recorded": True})
    attempt.end()


def test_a_fence_that_is_over_stops_the_tree(make: Make) -> None:
    """A beat answered by 409 ends the run, and the gate is not told of an end it refuses."""
    attempt = make(argv=["sleep", "600"])
    attempt.gate.replies["heartbeat"] = (409, to_json(Refusal("fence", "this lease is over")))
    end = attempt.start().end()
    assert (end["outcome"], end["reason"]) == ("lost", "fenced")
    assert attempt.tagged() == []
    assert not attempt.gate.all("finished")


@pytest.mark.parametrize(
    ("answer", "stop"),
    [
        (to_json(Verdict.to_stop(Stop.of(StopKind.EVICTED))), Stop.of(StopKind.EVICTED)),
        (to_json(Verdict.to_stop(UPDATE)), UPDATE),
        ({"verdict": "stop", "reason": "evicted"}, Stop.of(StopKind.EVICTED)),
    ],
    ids=["a kind", "in words", "by a former gate"],
)
def test_a_gate_may_say_stop_in_a_beat(make: Make, answer: dict[str, Any], stop: Stop) -> None:
    """The stop in the answer is recorded as it is, and its reason becomes the end's."""
    attempt = make(argv=["sleep", "600"])
    attempt.gate.replies["heartbeat"] = (200, answer)
    end = attempt.start().end()
    outcome = "evicted" if stop.kind is StopKind.EVICTED else "failed"
    assert (end["outcome"], end["reason"]) == (outcome, stop.reason)
    assert stop_in(attempt.outcome()) == stop


def says(file: Path, content: object) -> bool:
    """Whether a file, which may not be there yet, has this content."""
    return file.exists() and bool(json.loads(file.read_text()) == content)


def test_a_cap_that_a_beat_brings_is_shared_out_among_the_workers(
    make: Make, tmp_path: Path
) -> None:
    """The newest cap of the run is in a file, each worker's share of it; the first one is not."""
    release = tmp_path / "release"
    wait = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.01)"
    attempt = make(argv=python(wait), workers=2, caps={"GPU-1": 8000}, devices=["GPU-1"])
    shares = attempt.path / "caps.json"
    attempt.gate.replies["heartbeat"] = (
        200,
        to_json(Verdict(next_in=0.2, caps={"GPU-1": 8000})),
    )
    attempt.start()
    until(lambda: len(attempt.gate.all("heartbeat")) > 2, "some beats")
    assert not shares.exists()
    for cap in (6000, 7000):
        reply = to_json(Verdict(next_in=0.2, caps={"GPU-1": cap}))
        attempt.gate.replies["heartbeat"] = (200, reply)
        until(partial(says, shares, {"GPU-1": cap // 2}), "each one's half")
    release.touch()
    assert attempt.end()["outcome"] == "completed"
