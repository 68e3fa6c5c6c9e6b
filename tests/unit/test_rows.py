"""Events as rows: what comes back is what went in, on this boot's clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.gate.journal import rows
from jupyter_gpugate.gate.journal.rows import Written, on_this_boot
from tests.kit.journal_events import BOOT, requested

BEFORE = "boot-before"
LONG_BEFORE = "boot-long-before"


def verdict(at: float) -> ev.Event:
    """Make an event of which only the time matters."""
    return ev.VerdictChanged(at, "run", "fit")


def test_times_of_this_boot_stay() -> None:
    """A restart of the gate alone moves no time, whatever the wall clock did meanwhile."""
    written = [Written(1e9, BOOT, verdict(10.0)), Written(5.0, BOOT, verdict(20.0))]

    assert on_this_boot(written, BOOT, 30.0, 77.0) == [verdict(10.0), verdict(20.0)]


def test_times_of_another_boot_are_as_long_ago_as_the_wall_clock_says() -> None:
    """What was requested an hour before, by the wall clock, has waited an hour."""
    written = [Written(5000.0, BEFORE, verdict(90_000.0))]

    assert on_this_boot(written, BOOT, 60.0, 8600.0) == [verdict(60.0 - 3600.0)]


def test_nothing_lies_in_the_future() -> None:
    """A wall clock that was set back does not put an event after now."""
    written = [Written(9000.0, BEFORE, verdict(90_000.0))]

    assert on_this_boot(written, BOOT, 60.0, 1000.0) == [verdict(60.0)]


def test_an_earlier_boot_ends_before_this_one_begins() -> None:
    """Events stay in their order across boots although the wall clock was set back between."""
    written = [
        Written(9000.0, LONG_BEFORE, verdict(70.0)),
        Written(8000.0, BEFORE, verdict(50.0)),
        Written(1000.0, BOOT, verdict(5.0)),
    ]

    assert on_this_boot(written, BOOT, 60.0, 1055.0) == [verdict(5.0), verdict(5.0), verdict(5.0)]


def test_a_locks_end_moves_with_its_beginning() -> None:
    """A lock of another boot lasts as long as it was taken for."""
    lock = ev.Locked(100.0, "GPU-aaaa", "ada", 7300.0, ProcessKey(5, 6))

    (moved,) = on_this_boot([Written(5000.0, BEFORE, lock)], BOOT, 50.0, 5010.0)

    assert moved == ev.Locked(40.0, "GPU-aaaa", "ada", 7240.0, ProcessKey(5, 6))


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9)), max_size=4), max_size=4),
    st.floats(0, 1e6),
    st.floats(0, 1e9),
)
def test_order_and_gaps_survive_every_clock(
    boots: list[list[tuple[float, float]]], now: float, wall: float
) -> None:
    """No wall clock puts an event after now, a boot after the next, or a boot's events apart."""
    names = [f"boot-{number}" for number, _ in enumerate(boots)]
    written = [
        Written(set_to, name, verdict(at))
        for name, entries in zip(names, boots, strict=True)
        for at, set_to in sorted(entries)
    ]

    moved = on_this_boot(written, "this", now, wall)

    assert all(event.at <= now + 1e-3 for event in moved)
    for i, (before, after) in enumerate(pairwise(moved)):
        assert before.at <= after.at + 1e-3
        if written[i].boot_id == written[i + 1].boot_id:
            gap = written[i + 1].event.at - written[i].event.at
            assert after.at - before.at == pytest.approx(gap, abs=1e-3)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("requested", "{"),
        ("requested", "[]"),
        ("requested", '{"at": 1.0}'),
        ("withdrawn", '{"at": 1.0, "run_id": "r", "end": "eaten"}'),
        ("never_heard_of", "{}"),
    ],
)
def test_a_row_that_is_no_event_says_so(kind: str, data: str) -> None:
    """Whatever stands in a row, reading it gives an event or a `ValueError`."""
    with pytest.raises(ValueError):  # noqa: PT011 - which one differs
        rows.decoded(kind, data)


def test_text_of_any_sort_comes_back() -> None:
    """Names that are no valid Unicode survive the way through the journal."""
    event = ev.Locked(1.0, "GPU-\udcff\n\x00", "\N{SNOWMAN}", 2.0)

    assert rows.decoded(event.kind, rows.encoded(event)) == event


def test_what_is_about_a_run_names_it() -> None:
    """Requests, grants and observations are found by the run they are about."""
    assert rows.run_of(requested("run-a")) == "run-a"
    assert rows.run_of(ev.DrainChanged(1.0, True)) is None
