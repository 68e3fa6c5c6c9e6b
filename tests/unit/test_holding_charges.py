"""Charges of live runs: settling after a watched start, and overruns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import GB, MB, RAM
from jupyter_gpugate.core.state import GateState, Traits
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
)
from tests.kit.held import after, live, seen, usage


def watched(episodes: int = 100, **fields: Any) -> GateState:
    """A live run that nothing was known of, charged 12 GB."""
    state = live(charge=12 * GB, episodes=episodes, **fields)
    lease = state.leases["run"]
    basis = dict.fromkeys(lease.charges, Basis.WATCH)
    return replace(state, leases={"run": replace(lease, terms=replace(lease.terms, basis=basis))})


def settles(state: GateState, *moments: tuple[float, int, int]) -> list[float]:
    """When the GPU's charge settles, given (seconds, bytes held, episodes done)."""
    found = []
    for at, held, episodes in moments:
        state = apply(state, [beat(state, at=NOW + at, episode=episodes)])
        one = seen(NOW + at, held)
        state, events = apply_sample(state, one, NOW + at)
        state = apply(state, events)
        if any(isinstance(e, ev.Recharged) and GPU in e.charges for e in events):
            found.append(at)
    return found


def test_a_watched_run_settles_after_a_whole_episode_and_a_minute_without_a_rise() -> None:
    """Two more episodes than at its first use: the one under way then was no whole one."""
    steady = [(10 * n, 2 * GB, n // 3) for n in range(1, 15)]
    assert settles(watched(), *steady) == [70]  # 60 s after the first use at 10
    slow = [(10 * n, 2 * GB, n // 12) for n in range(1, 40)]
    assert settles(watched(), *slow)[0] == 240  # the second whole episode


def test_a_rising_peak_puts_settling_off() -> None:
    """The minute counts from the last rise, and from the longest episode if that is longer."""
    rising = [(10 * n, min(n, 9) * GB // 2, n // 3) for n in range(1, 40)]
    assert settles(watched(), *rising) == [150]
    late = [(10 * n, (1 if n < 24 else 2) * GB, n // 12) for n in range(1, 60)]
    assert settles(watched(), *late) == [360]  # an episode lasts 120 s; the last rise is at 240


def test_three_whole_episodes_settle_a_run_that_has_stopped_growing() -> None:
    """Of the three the last two must not have raised the peak, nor the last ten seconds."""
    quick = [(n, 2 * GB, n) for n in range(1, 30)]
    assert settles(watched(), *quick) == [11]
    slower = [(n, 2 * GB, n // 8) for n in range(1, 60)]
    assert settles(watched(), *slower) == [32]  # one under way at the first use, and three more
    late = [(n, (1 if n < 26 else 2) * GB, n // 8) for n in range(1, 60)]
    assert settles(watched(), *late) == [48]  # one under way at the rise, and two more
    shared = [(n, 2 * GB, n // 2) for n in range(1, 60)]
    assert settles(watched(workers=4), *shared) == [14]  # each worker had one under way


def test_zero_use_never_settles() -> None:
    """A run that has not begun to use the GPU has shown nothing."""
    assert settles(watched(), *[(10 * n, 0, n) for n in range(1, 100)]) == []


def test_without_episodes_settling_takes_ten_minutes() -> None:
    """A program that counts nothing is left alone until its peak has stood for long."""
    assert settles(watched(episodes=1), *[(10 * n, GB, 0) for n in range(1, 90)]) == [610]


def test_without_episodes_ram_settles_after_two_minutes() -> None:
    """RAM that a program needs later can be taken from caches; a GPU has none to give."""
    state = live(episodes=1)
    lease = state.leases["run"]
    terms = replace(lease.terms, basis=dict.fromkeys(lease.charges, Basis.WATCH))
    state = replace(state, leases={"run": replace(lease, terms=terms)})
    found = []
    for second in range(10, 200, 10):
        state = apply(state, [beat(state, at=NOW + second, ram=GB)])
        state, events = apply_sample(state, seen(NOW + second, GB, GB), NOW + second)
        state = apply(state, events)
        recharged = [e for e in events if isinstance(e, ev.Recharged) and RAM in e.charges]
        found += [second for _ in recharged]
    assert found == [130]
    assert state.leases["run"].charges[RAM] == int(1.25 * GB) + 256 * MB


def test_a_settled_charge_only_falls() -> None:
    """1.25 times the peak and 256 MB, never above the charge it has."""
    state = watched(episodes=1, traits=Traits(settle_unmoved_s=5))
    state = after(state, seen(NOW + 1, 2 * GB), seen(NOW + 7, 2 * GB))
    assert state.leases["run"].charges[GPU] == int(2.5 * GB) + 256 * MB
    assert state.leases["run"].terms.caps[GPU] == 12 * GB
    full = watched(episodes=1, traits=Traits(settle_unmoved_s=5))
    full = after(full, seen(NOW + 1, 11 * GB), seen(NOW + 7, 11 * GB))
    assert full.leases["run"].charges[GPU] == 12 * GB


def test_an_overrun_settles_like_a_watched_run() -> None:
    """Counted from the overrun, whatever rung it was admitted by."""
    state = live(charge=GB, episodes=1, traits=Traits(settle_unmoved_s=5))
    state = after(state, seen(NOW + 1, 4 * GB))
    assert usage(state).overrun_at == NOW + 1
    state = after(state, seen(NOW + 3, 4 * GB), seen(NOW + 7, 4 * GB))
    assert usage(state).overrun_at is None
    assert state.leases["run"].charges[GPU] == 5 * GB
