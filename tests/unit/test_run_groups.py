"""Which runs a submit has to wait for, as the run side resolves them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from jupyter_gpugate.runs.groups import Groups
from jupyter_gpugate.runs.record import Record, Records, Refused, RunRow, row_of

GROUP = "g20260914-101502-kqzfa"


class Rows:
    """Records of which a test says the rows."""

    def __init__(self, **rows: RunRow) -> None:
        self.rows = rows

    def in_group(self, group: str) -> list[RunRow]:
        return [row for row in self.rows.values() if row.group == group]

    def get(self, run_id: str) -> Record | None:
        return cast("Record", self) if run_id in self.rows else None

    def row(self) -> RunRow:
        (row,) = self.rows.values()
        return row


def row(run_id: str, status: str, end: str | None = None, **more: Any) -> RunRow:
    """A run in a list."""
    summary = {"name": "eval", "status": status, "end": end, "submitted": 1.0, **more}
    return row_of(run_id, summary, more.get("host", ""))


def awaited(*words: str, **rows: RunRow) -> list[str]:
    """The runs that a run after these has to wait for."""
    return Groups(cast("Records", Rows(**rows))).awaited({"after": words})


def test_a_run_waits_for_the_unfinished_runs_alone() -> None:
    """Of a group, those that have not ended; each once."""
    members = {
        "a": row("a", "ended", "completed", group=GROUP),
        "b": row("b", "active", group=GROUP),
        "c": row("c", "queued", group=GROUP),
    }
    assert awaited(GROUP, **members) == ["b", "c"]
    assert awaited("a", a=row("a", "ended", "completed")) == []
    assert awaited("b", "b", b=row("b", "queued")) == ["b"]


@pytest.mark.parametrize(
    ("found", "status", "says"),
    [
        (row("a", "ended", "oom"), 409, "after: a ran out of memory: submit that one again first"),
        (row("a", "ended", "cancelled"), 409, "a was cancelled"),
        (row("a", "active", host="ada-2"), 409, "a belongs to another machine, ada-2: submit this"),
        (row("b", "active"), 400, "there is no run and no group a"),
    ],
)
def test_what_cannot_complete_any_more_is_refused(found: RunRow, status: int, says: str) -> None:
    """At the submit, naming the run and why."""
    with pytest.raises(Refused) as refusal:
        awaited("a", **{found.run_id: found})
    assert says in str(refusal.value)
    assert (refusal.value.status, refusal.value.detail["field"]) == (status, "after")
