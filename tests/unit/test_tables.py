"""What a person is told of the queue, of an estimate and of a cancel, in text."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.faces import doctor, tables, words

MB = 1 << 20
DEVICE = {"uuid": "GPU-1", "model": "NVIDIA L4", "index": 0}


def queue(**snapshot: Any) -> str:
    """The queue as a terminal shows it."""
    return tables.queue({"now": 1000.0, "devices": [DEVICE], **snapshot})["text/plain"]


def estimate(**answer: Any) -> str:
    """An estimate as a terminal shows it."""
    return tables.estimate(answer)["text/plain"]


def test_memory_is_told_apart_by_who_holds_it() -> None:
    """RAM and each GPU: what is free, what of it can be given, and whose the rest is."""
    shares = {"used_total": 9 * MB, "external": MB, "kernels": {"a": MB, "b": 2 * MB}}
    shown = queue(
        free_bytes={"ram": 50 * MB},
        room_bytes={"ram": 40 * MB},
        attribution={"resources": {"ram": {**shares, "runs": {"r": 2 * MB, "s": 3 * MB}}}},
    )
    assert "  RAM    50 MB  40 MB   9 MB  5 MB  3 MB       1 MB" in shown
    assert "GPU 0  " in shown


def test_what_an_ended_run_has_not_given_back_is_told() -> None:
    """Per resource, and not where nothing is left."""
    left = {"run_id": "r-1", "resource": "GPU-1", "held_bytes": 300 * MB}
    shown = queue(lingering=[left, {**left, "run_id": "r-2", "held_bytes": 0}])
    assert "ended, memory still being released" in shown
    assert "r-1  GPU 0 300 MB" in shown
    assert "r-2" not in shown
    assert "ended, memory still being released" not in queue(lingering=[])


def test_of_others_the_ten_largest_are_told() -> None:
    """The largest first; what no process accounts for says so, and is nobody's."""
    rows = [
        {"resource": "ram", "pid": 500 + n, "held_bytes": n * MB, "user": "bob", "command": "x"}
        for n in range(12)
    ]
    nobody = {"resource": "GPU-1", "pid": 0, "held_bytes": 99 * MB, "note": "unlisted"}
    lines = queue(external=[*rows, nobody]).splitlines()
    held = lines[lines.index("used by others (largest first)") + 2 :]
    assert len(held) == 10
    assert (
        " ".join(held[0].split())
        == "99 MB GPU 0 system memory, or processes that are not visible here"
    )
    assert " ".join(held[1].split()) == "11 MB RAM 511 bob x"


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        ({"journal_fault": "the disk is full"}, "the journal cannot be written: the disk is full"),
        ({"sample_fault": "no sense"}, "the newest measurement cannot be used: no sense"),
        ({"draining": "upgrade"}, "this gate starts no new runs: upgrade"),
        ({"devices": [{**DEVICE, "message": "GPU 0 is missing"}]}, "GPU 0 is missing"),
        (
            {"readers": [{"name": "gpu", "fault": {"code": "timeout", "text": "no answer"}}]},
            "the gpu reader: no answer",
        ),
    ],
)
def test_each_trouble_is_told(snapshot: dict[str, Any], words: str) -> None:
    """Whatever keeps runs from starting stands below the tables, in its own words."""
    assert words in queue(**snapshot).splitlines()
    assert words not in queue()


def test_an_estimate_says_what_it_is_of_and_what_would_come_of_it() -> None:
    """The sum, what was shown not to matter, how many workers fit, and whether it would start."""
    shown = estimate(
        name="digits",
        total_bytes={"ram": 5 * MB, "vram": None},
        level_parameters=["seed"],
        max_workers=3,
        would_start=False,
        reasons=[{"message": "no room"}],
    )
    assert shown.splitlines() == [
        "digits",
        "  no run of this name was measured yet",
        "total: RAM 5 MB; VRAM unknown",
        "no effect on the memory needed: seed",
        "up to 3 workers fit now",
        "it would wait: no room",
    ]
    assert "1 worker fits now" in estimate(max_workers=1)
    assert "it would start now" in estimate(would_start=True)
    assert estimate() == "estimate\n  no run of this name was measured yet"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"cancelled": False, "end": "completed"}, "r had completed before it could be cancelled"),
        ({"cancelled": True, "means": "withdrawn"}, "r is cancelled: it had not started"),
        (
            {"cancelled": True, "means": "term", "ms": 12, "survivors": []},
            "r is cancelled: stopped cleanly (0.01 s)",
        ),
        (
            {"cancelled": True, "end": "completed", "means": "term", "ms": 12},
            "r is stopped: cleanly (0.01 s)",
        ),
        (
            {"cancelled": True, "means": "term + kill", "ms": 10412, "survivors": [[7, 70], 8]},
            (
                "r is cancelled: stopped by force, after it ignored the request to stop (10.41 s); "
                "still running: 7, 8"
            ),
        ),
    ],
)
def test_a_cancel_says_what_it_came_to(answer: dict[str, Any], words: str) -> None:
    """Too late, before the start, or by which means, and who is still there."""
    assert tables.cancelled("r", answer) == words


def test_the_queue_says_whose_gate_it_is_of() -> None:
    """Who looks at several gates sees which one answers; a name is text, also on a page."""
    assert queue(owner="ada <b>").splitlines()[0] == "the gate of ada <b>"
    assert "the gate of ada &lt;b&gt;" in tables.queue({"owner": "ada <b>"})["text/html"]


def test_runs_of_other_machines_are_listed_by_their_machine() -> None:
    """Who shares a home sees what runs elsewhere, and is not told that nothing does."""
    row = {"run_id": "20260102-030405-abcde", "name": "eval", "machine": "node8"}
    told = tables.queue({"other_machines": [{**row, "status": "active"}]})["text/plain"]
    assert "on other machines" in told
    assert "node8" in told
    assert words.standing({**row, "status": "active"}) == "on another machine (node8)"
    assert "on another machine" not in words.standing({**row, "status": "ended", "end": "lost"})


def test_doctor_says_whose_runs_a_gate_starts() -> None:
    """A gate of one user is not taken for one of the machine."""
    told = doctor.machine({"reach": "user", "readers": [], "devices": []})["text/plain"]
    assert "this gate starts only your runs" in told
    ignored = {"readers": [], "ignored_settings": ["usable_vram_mb: no device here has it"]}
    assert "A setting has no effect: usable_vram_mb" in doctor.machine(ignored)["text/plain"]
