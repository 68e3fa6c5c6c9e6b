"""Lists of runs, and one run whole, as a terminal shows them."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from jupyter_gpugate.faces import runs, words

MB = 1 << 20
NOW = 1_796_122_831.0
ENDED = {"status": "ended", "end": "completed", "submitted": NOW - 60, "duration_s": 5.0}
RUN = {**ENDED, "run_id": "20261201-105904-abcde", "name": "eval", "directory": "/runs/x"}


def line(run: dict[str, Any], live: dict[str, Any] | None = None) -> str:
    """The one run of a list."""
    shown = runs.table([{**RUN, **run}], {str(RUN["run_id"]): live or {}}, NOW)
    return shown.splitlines()[1]


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        ({}, "completed"),
        ({"end": "failed", "reason": "exit 7"}, "failed (exit 7)"),
        ({"end": "failed", "reason": "time_limit"}, "failed (time limit)"),
        ({"end": "expired", "reason": "max_wait: needs 9 MB"}, "expired  "),
        ({"end": "oom"}, "out of memory"),
        ({"end": "lost", "reason": "its supervisor was killed"}, "lost  "),
        ({"duration_s": 725.0}, "12 min"),
        ({"peaks": {"ram": 70 * MB}}, "RAM 70 MB"),
        ({"peaks": {"ram": MB, "GPU-1": 2 * MB, "GPU-2": MB}}, "RAM 1 MB, VRAM 3 MB"),
        ({"parameters": {"batch": "8", "note": "two words"}}, "eval batch=8 note='two words'"),
        ({"command": "/usr/bin/python eval.py --lr 1"}, "eval  python eval.py --lr 1"),
        ({"parameters": {"x": "\x1b[31m\n"}}, "eval x=' [31m '"),
    ],
)
def test_a_run_in_a_list(run: dict[str, Any], shown: str) -> None:
    """Its end in a few words, how long it took, what it held, and how it differs from others."""
    assert shown in line(run)


def test_an_unfinished_run_has_its_present_state() -> None:
    """Its phase or its place in the queue, and how long it has been running."""
    live = {"phase": "running", "started_s": 725.0, "peaks": {"ram": MB}}
    shown = line({"status": "active", "end": None, "duration_s": None}, live)
    assert "running" in shown
    assert "12 min so far" in shown
    assert "waiting, number 3 " in line({"status": "queued", "duration_s": None}, {"position": 3})


def test_times_are_local_and_as_short_as_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today a time, this year a day and a time, before that a day."""
    monkeypatch.setitem(os.environ, "TZ", "UTC-2")
    time.tzset()
    try:
        noon = time.mktime((2026, 12, 1, 12, 0, 0, 0, 0, -1))
        assert runs.moment(noon - 3600, noon) == "11:00:00"
        assert runs.moment(noon - 13 * 3600, noon) == "Nov 30 23:00"
        assert runs.moment(noon - 300 * 86400, noon) == "2026-02-04"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_whole_run_has_every_attempt_with_its_peak_and_its_charge() -> None:
    """Each attempt says how it ended and what it held of its charge; then come files and output."""
    first = {"attempt": 1, "outcome": "oom", "duration_s": 5.0, "peaks": {"ram": 7 * MB}}
    first["charges"] = {"ram": 9 * MB, "GPU-1": 3 * MB}
    second = {"attempt": 2, "outcome": None, "charges": {"ram": 12 * MB}, "peaks": {}}
    devices = [{"uuid": "GPU-1", "index": 0, "model": "L4"}]
    state = {**RUN, "parameters": {"batch": "8"}, "repeats": "r-0", "devices": devices}
    state["group"] = "g1"
    state["output_tail"] = "".join(f"line {n}\n" for n in range(30))
    lines = runs.whole(state, [first, second], NOW).splitlines()
    assert lines[0] == f"eval batch=8 · completed · {RUN['run_id']}"
    for words_ in (
        "parameters  batch=8",
        "group       g1: `jupyter gpugate show g1` shows all its runs",
        "repeats     r-0",
        "1: out of memory after 5 s; peak RAM 7 of 9 MB, GPU 0 ? of 3 MB reserved",
        "2: under way; peak RAM ? of 12 MB reserved",
        "files       /runs/x",
        f"output      the last 10 lines; all of it: jupyter gpugate logs {RUN['run_id']}",
    ):
        assert any(words_ in one for one in lines), words_
    assert lines[-10:] == [f"    | line {n}" for n in range(20, 30)]


def test_a_long_command_keeps_both_its_ends() -> None:
    """The program and the last arguments tell runs apart; the path of the program does not."""
    command = f"/opt/env/bin/python -m {'x' * 99} --seed 1"
    named = words.named({"name": "eval", "command": command})
    assert named.startswith("eval  python -m")
    assert named.endswith("--seed 1")
    assert len(named) <= 64 + 60 + 40
