"""Values of parameters that an older version wrote into a journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.parameters import without_words
from jupyter_gpugate.core.requests import Setting
from jupyter_gpugate.gate.journal import scrub as scrubbing
from jupyter_gpugate.gate.journal.journal import Journal, JournalError
from tests.kit.journal_events import opened, requested, sedimented

CANARY = "canary-4f1d"
SETTING = Setting(workers=2, parameters=(("argv", f"--key\0{CANARY}"), ("color", "#fff")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal as older versions wrote it: values stand in it, more than fit in one step."""
    file = tmp_path / "state" / "gate.sqlite"
    journal = opened(file)
    asked = [with_values(requested(f"run{n}")) for n in range(3)]
    journal.append([*asked, with_values(sedimented(run_id="run0"))], durable=True)
    journal.close()
    assert in_files(file)
    return file


def with_values(event: Any) -> ev.Event:
    """The same event as an older version wrote it."""
    if isinstance(event, ev.Requested):
        return replace(event, request=replace(event.request, setting=SETTING))
    return ev.Sedimented(event.at, replace(event.observation, setting=SETTING))


def in_files(path: Path) -> list[str]:
    """The files of a journal in which the value stands."""
    return [f.name for f in path.parent.iterdir() if CANARY.encode() in f.read_bytes()]


def settings_of(journal: Journal) -> Iterator[Setting]:
    """The settings of all requests, then of what was learned."""
    yield from (e.request.setting for e in journal.replay() if isinstance(e, ev.Requested))
    yield from (observation.setting for observation in journal.observations())


@pytest.mark.parametrize("at_once", [1, 2, 500])
def test_old_values_leave_the_file_and_what_was_learned_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """After the next start each setting is known by its digests, and no byte of a value is left."""
    monkeypatch.setattr(scrubbing, "_AT_ONCE", at_once)
    journal = opened(path)
    assert list(settings_of(journal)) == [without_words(SETTING)] * 4
    assert in_files(path) == []
    journal.close()
    before = path.read_bytes()
    opened(path).close()
    assert path.read_bytes() == before


def test_a_row_that_cannot_be_read_stops_nothing(path: Path) -> None:
    """The others lose their values all the same."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE events SET data = '{\"parameters\":[[' WHERE run_id = 'run1'")
    database.close()
    journal = opened(path)
    assert list(settings_of(journal)) == [without_words(SETTING)] * 3
    journal.close()
    assert in_files(path) == []


def test_a_journal_that_cannot_be_rewritten_tells_no_values(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in it stays there until it can be, and nobody is told of it."""

    def fails(_file: object) -> int:
        raise JournalError("the disk is full")

    monkeypatch.setattr("jupyter_gpugate.gate.journal.journal.scrub", fails)
    journal = opened(path)
    assert list(settings_of(journal)) == [without_words(SETTING)] * 4
    journal.close()
