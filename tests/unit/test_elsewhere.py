"""Work that a daemon or a server does for a run teaches nothing about the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.flow.tick import Happened, run_tick
from jupyter_gpugate.core.learning.calibration import from_observations
from jupyter_gpugate.core.learning.needs import estimate_on
from jupyter_gpugate.core.learning.observations import sedimented
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
)
from jupyter_gpugate.core.samples import ProcessKey
from tests.kit.core_builders import (
    GPU,
    NOW,
    beat,
    finish,
    gate,
    key_of,
    process,
    request,
    sample,
    start,
)

if TYPE_CHECKING:
    from jupyter_gpugate.core.evidence import Observation
    from jupyter_gpugate.core.samples import Process, Sample
    from jupyter_gpugate.core.state import GateState

#: Younger than the run, and older than it.
YOUNG, OLD = ProcessKey(40_000, 1 << 40), ProcessKey(50, 5)
OWN = key_of("run", 1)


def live() -> GateState:
    """A live run."""
    state = start(gate(request()), charges={RAM: GB, GPU: GB})
    return apply(state, [beat(state)])


def seen(at: float, own: int = 20, ram: dict[ProcessKey, int] | None = None, **gpu: Any) -> Sample:
    """A sample of the run's worker and of others, in MB."""
    others = [process(key, mb * MB) for key, mb in (ram or {}).items()]
    tree: list[Process] = [process(key_of("run")), process(OWN, own * MB, key_of("run").pid)]
    lists = {GPU: [(key.pid, mb * MB) for key, mb in gpu.get("lists", {}).items()]}
    used = sum(gpu.get("lists", {}).values()) * MB
    alive = tree if gpu.get("alive", True) else []
    return sample(
        at,
        processes=(process(ProcessKey(1, 0)), *alive, *others),
        lists=lists,
        free={GPU: 24 * GB - used},
    )


def taught(during: list[dict[str, Any]], last: dict[str, Any]) -> dict[str, Observation]:
    """What a run teaches that saw these samples, a second apart, and this one after its end."""
    state = live()
    for second, one in enumerate(during, start=1):
        state, events = apply_sample(state, seen(NOW + second, **one), NOW + second)
        state = apply(state, events)
    end = NOW + len(during) + 0.5
    event = finish(state, at=end, ram_bytes=20 * MB)
    after = seen(end + 0.1, alive=False, **last)
    lessons = sedimented(state, event, 77.0, after)
    return {lesson.observation.resource: lesson.observation for lesson in lessons}


#: A container and a server, as the samples of a run show them.
CONTAINER: list[dict[str, Any]] = [
    {},
    {"ram": {YOUNG: 300}},
    {"ram": {YOUNG: 600}},
    {"ram": {YOUNG: 580}},
]
SERVER: list[dict[str, Any]] = [{"ram": {OLD: 400}}, {"ram": {OLD: 900}}, {"ram": {OLD: 1400}}]


@pytest.mark.parametrize(
    ("during", "last", "risen"),
    [
        (CONTAINER, {}, 600),
        (SERVER, {"ram": {OLD: 450}}, 950),
        ([{}, {"ram": {YOUNG: 600}}, {}], {}, 600),  # it ended a moment before its client
    ],
    ids=["a container", "a server that was there", "gone before the client"],
)
def test_what_rose_and_fell_with_a_run_elsewhere_makes_it_teach_nothing(
    during: list[dict[str, Any]], last: dict[str, Any], risen: int
) -> None:
    """It held next to nothing itself: its peak is no measurement of what it needs."""
    lesson = taught(during, last)[RAM]
    assert (lesson.complete, lesson.elsewhere_bytes) == (False, risen * MB)


@pytest.mark.parametrize(
    ("during", "last"),
    [
        ([{}, {"ram": {YOUNG: 600}}], {"ram": {YOUNG: 600}}),
        (SERVER, {"ram": {OLD: 1400}}),
        ([{"ram": {OLD: 900}}] * 3, {}),
        ([{}, {"ram": {YOUNG: 200}}], {}),
        ([{"own": 185}, {"own": 185, "ram": {YOUNG: 600}}], {}),
        ([{}, {"ram": {YOUNG: 600}}, *[{}] * 8], {}),
    ],
    ids=[
        "a neighbour that stays",
        "a server that keeps it",
        "a neighbour that was there before and went",
        "little",
        "a run that held much itself",
        "a neighbour long before the end",
    ],
)
def test_other_neighbours_leave_a_measurement_whole(
    during: list[dict[str, Any]], last: dict[str, Any]
) -> None:
    """Only what has both come and gone with the run, and was far more than its own, is a doubt."""
    lesson = taught(during, last)[RAM]
    assert (lesson.complete, lesson.elsewhere_bytes) == (True, None)


def test_the_same_holds_on_a_device() -> None:
    """A run that holds nothing of its GPU while a container fills it and goes has shown nothing."""
    ram = {YOUNG: 70}
    lessons = taught([{"ram": ram}, {"ram": ram, "lists": {YOUNG: 9000}}], {})
    assert (lessons[VRAM].complete, lessons[VRAM].elsewhere_bytes) == (False, 9000 * MB)
    assert lessons[RAM].complete


def test_an_estimate_says_why_nothing_is_known() -> None:
    """Nothing was measured, and the note names what was seen instead; the end keeps it too."""
    state = live()
    for second, one in enumerate(CONTAINER, start=1):
        state, events = apply_sample(state, seen(NOW + second, **one), NOW + second)
        state = apply(state, events)
    end = NOW + 5
    event = finish(state, at=end, ram_bytes=20 * MB)
    after = seen(end + 0.1, alive=False)
    tick = run_tick(
        state, Happened((event,), after, end + 0.2, measured=True, wall=77.0), Decisions()
    )
    state = tick.written()
    term = estimate_on(state.calibration, request(vram=None, ram=None), None, "").term(RAM)
    assert term.need_bytes is None
    assert "600 MB outside of it rose and fell" in term.note
    assert state.ended["run"].elsewhere == {RAM: 600 * MB}


def test_a_later_measurement_ends_the_doubt() -> None:
    """Once an attempt was measured whole, that is what is known."""
    lesson = taught(CONTAINER, {})[RAM]
    whole = replace(lesson, complete=True, elsewhere_bytes=None, peak_bytes=500 * MB)
    calibration = from_observations([lesson, whole])
    term = estimate_on(calibration, request(vram=None, ram=None), None, "").term(RAM)
    assert (term.peak_bytes, "elsewhere" in term.note) == (500 * MB, False)
