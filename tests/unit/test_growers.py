"""Who grew while a run was at work, and when that is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpugate.core.explaining.explain import growth_words
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.memory.growers import who_grew
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.core.shares import Rise, Who
from jupyter_gpugate.core.state import GateState
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

OTHER = ProcessKey(70, 7)
LATER = ProcessKey(71, 900)


def seen(at: float, run: int, *others: tuple[ProcessKey, int]) -> Any:
    """A sample in which the run and others hold so much of the device."""
    tree = [process(key_of("run")), process(key_of("run", 1), parent=key_of("run").pid)]
    rows = [(key_of("run", 1).pid, run), *((key.pid, held) for key, held in others)]
    table = [*tree, *(process(key, uid=1001) for key, _ in others)]
    used = sum(held or 0 for _, held in rows)
    return sample(at, free={GPU: 24 * GB - used}, lists={GPU: rows}, processes=table)


def live(before: int = GB) -> GateState:
    """A run of 15 GB that was granted beside somebody who held this much."""
    state, _ = apply_sample(gate(request(vram=15 * GB)), seen(NOW - 1, 0, (OTHER, before)), NOW - 1)
    state = start(state, charges={"ram": GB, GPU: 15 * GB})
    return apply(state, [beat(state)])


def ended(state: GateState, *samples: Any, **fields: Any) -> tuple[GateState, Any]:
    """The state after these samples and the run's failure, and the newest sample."""
    for one in samples:
        state, _ = apply_sample(state, one, one.ram.taken_at)
    failed = finish(state, outcome=fields.pop("outcome", AttemptOutcome.FAILED), **fields)
    return apply(state, [failed]), samples[-1]


def test_a_grower_is_told_by_how_much_it_grew_since_the_grant() -> None:
    """What somebody held before is not what the run was deprived of."""
    state, newest = ended(live(), seen(NOW + 1, 5 * GB, (OTHER, 13 * GB)))
    (grown,) = who_grew(state, newest, "run").values()
    assert grown == (Rise(Who("process", "", *OTHER), 12 * GB, 1001),)
    words = growth_words(state, GPU, grown, lambda one: f"pid {one.who.pid}")
    assert words == (
        "GPU 0 (NVIDIA L4) ran short during the run, while others grew: pid 70 by 12,288 MB"
    )


def test_the_greatest_growth_counts_though_it_has_gone_since() -> None:
    """A grower that died of the same lack before the run's end is told all the same."""
    state, newest = ended(
        live(),
        seen(NOW + 1, 5 * GB, (OTHER, GB), (LATER, 12 * GB)),
        seen(NOW + 2, 5 * GB, (OTHER, GB)),
    )
    (grown,) = who_grew(state, newest, "run").values()
    assert [one.who.pid for one in grown] == [LATER.pid]


def test_growth_between_the_last_sample_and_the_end_is_told() -> None:
    """The sample that an end calls for shows what took the run's room, with the run gone."""
    state, _ = ended(live(), seen(NOW + 1, 5 * GB, (OTHER, GB)))
    after = sample(
        NOW + 2,
        free={GPU: 24 * GB - 14 * GB},
        lists={GPU: [(OTHER.pid, 14 * GB)]},
        processes=[process(OTHER, uid=1001)],
    )
    state, _ = apply_sample(state, after, NOW + 2)
    (grown,) = who_grew(state, after, "run").values()
    assert grown[0].rise_bytes == 13 * GB


@pytest.mark.parametrize(
    ("last", "fields"),
    [
        (seen(NOW + 1, 5 * GB, (OTHER, 9 * GB)), {}),  # 10 GB are left for the 10 to come
        (seen(NOW + 1, 15 * GB, (OTHER, GB + 60 * MB)), {}),
        (
            seen(NOW + 1, 5 * GB, (OTHER, 13 * GB)),
            {"outcome": AttemptOutcome.OOM, "oom_resource": "vram", "oom_evidence": "own_cap"},
        ),
        (seen(NOW + 1, 5 * GB, (OTHER, 13 * GB)), {"outcome": AttemptOutcome.COMPLETED}),
    ],
    ids=["there was room", "it is little", "its own cap", "it completed"],
)
def test_nobody_is_blamed_without_cause(last: Any, fields: dict[str, Any]) -> None:
    """Growth is told where what the run was promised was taken, and where it failed for that."""
    state, newest = ended(live(), last, **fields)
    assert who_grew(state, newest, "run") == {}


def test_a_full_device_by_evidence_needs_no_arithmetic() -> None:
    """Where the framework says that the device was full, whoever grew there is told."""
    full = {"outcome": AttemptOutcome.OOM, "oom_resource": "vram", "oom_evidence": "device_full"}
    state, newest = ended(live(), seen(NOW + 1, 5 * GB, (OTHER, 9 * GB)), **full)
    assert [one.rise_bytes for one in who_grew(state, newest, "run")[GPU]] == [8 * GB]


def test_a_gate_that_has_just_started_blames_nobody_for_what_it_first_sees() -> None:
    """What was there at the first sample after a restart did not grow in its sight."""
    state = start(gate(request(vram=15 * GB)), charges={"ram": GB, GPU: 15 * GB})
    state = apply(state, [beat(state)])
    state, newest = ended(state, seen(NOW + 1, 5 * GB, (OTHER, 13 * GB)))
    assert who_grew(state, newest, "run") == {}
    assert who_grew(replace(state, ended={}), newest, "run") == {}
