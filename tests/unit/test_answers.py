"""What an ETag stands for."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.server.http.polls import essence_of

MB = 1 << 20


def snapshot(**changes: Any) -> dict[str, Any]:
    """A snapshot of one waiting run."""
    reason = {"kind": "fit", "resource": "ram", "message": "room is 7 MB", "numbers": {"n": 7}}
    queued = [{"run_id": "a", "position": 1, "waited_s": 3.0, "reasons": [reason]}]
    memory = {"ram": {"used_total": 1600 * MB, "runs": {}}}
    return {"tick": 1, "now": 10.0, "queued": queued, "attribution": memory, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"tick": 2, "now": 11.0},
        {"attribution": {"ram": {"used_total": 1601 * MB, "runs": {}}}},
        {"free_bytes": {"ram": 5}},
    ],
)
def test_clocks_and_jitter_make_no_new_answer(changes: dict[str, Any]) -> None:
    """Ticks, ages, what is free at the moment and a megabyte more or less are no news."""
    assert essence_of(snapshot(**changes)) == essence_of(snapshot())


@pytest.mark.parametrize(
    "changes",
    [
        {"queued": []},
        {"draining": "upgrade"},
        {"attribution": {"ram": {"used_total": 1600 * MB, "runs": {"a": 0}}}},
        {"attribution": {"ram": {"used_total": 1900 * MB, "runs": {}}}},
    ],
)
def test_whatever_happens_makes_one(changes: dict[str, Any]) -> None:
    """A run that moves, a holder that comes, memory that is taken: all are news."""
    assert essence_of(snapshot(**changes)) != essence_of(snapshot())
