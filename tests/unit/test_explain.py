"""Reasons in plain words: one sentence, numbers that add up, names that people know."""

from __future__ import annotations

import re

import pytest

from jupyter_gpugate.core.decisions import Check, Reason
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.naming import megabytes, resource_words
from jupyter_gpugate.core.resources import GB, MACHINE, MB, RAM
from jupyter_gpugate.core.samples import Device, KernelProcess, ProcessKey
from tests.kit.core_builders import GPU, NOW, board, gate, process, sample

FIT = {
    "need_bytes": 10 * GB + 1,
    "free_bytes": 12 * GB + 5,
    "floor_bytes": 256 * MB,
    "reserved_bytes": 3 * GB + 7,
    "earmarked_bytes": 0,
    "room_bytes": 12 * GB + 5 - 256 * MB - 3 * GB - 7,
    "alone_bytes": 20 * GB,
    "total_bytes": 24 * GB,
}
WORDS = [
    (
        Reason(Check.PARKED),
        "parked: the server that submitted it is not responding; it keeps its place",
    ),
    (
        Reason(Check.LOCK, MACHINE, who=("bob",)),
        "this machine is locked for interactive use by bob (%gpu_release unlocks it)",
    ),
    (
        Reason(Check.LOCK, GPU, who=("bob",)),
        "GPU 0 (NVIDIA L4) is locked for interactive use by bob (%gpu_release unlocks it)",
    ),
    (Reason(Check.DRAIN, who=("upgrade",)), "your gate starts no new runs (upgrade)"),
    (
        Reason(Check.EXCLUSIVE, GPU, who=("r1", "r2")),
        "GPU 0 (NVIDIA L4) is in exclusive use: waits for r1, r2",
    ),
    (
        Reason(Check.LOADING, GPU, who=("r1",)),
        "a service is loading on GPU 0 (NVIDIA L4): waits until r1 is ready or stopped",
    ),
    (
        Reason(Check.LIMITS, GPU, {"running": 8, "limit": 8}),
        "GPU 0 (NVIDIA L4) has 8 of your runs, the maximum is 8",
    ),
    (
        Reason(Check.LIMITS, None, {"running": 2, "limit": 2}),
        "2 of your runs are active, the maximum is 2",
    ),
    (
        Reason(Check.MISSING, GPU),
        "GPU 0 (NVIDIA L4) is missing: it was found earlier and is gone",
    ),
    (
        Reason(Check.MISSING, GPU, who=("GPU is lost",)),
        "GPU 0 (NVIDIA L4) is missing: it was found earlier and is gone (GPU is lost)",
    ),
    (
        Reason(Check.MISSING, None, {"wanted": 2, "present": 1}),
        "asks for 2 GPUs of one model, this machine has 1",
    ),
    (
        Reason(Check.STALE, RAM, {"age_ms": 4900}),
        "there is no current reading of RAM: the last one is 5 s old; active runs go on",
    ),
    (
        Reason(Check.STALE, GPU),
        "there is no current reading of GPU 0 (NVIDIA L4); active runs go on",
    ),
    (
        Reason(Check.UNMEASURED, GPU, who=("Not Supported",)),
        "GPU 0 (NVIDIA L4) cannot be measured (Not Supported)",
    ),
    (
        Reason(Check.UNMEASURED, GPU, {"usable_bytes": GB}),
        "GPU 0 (NVIDIA L4) cannot be measured, and the need of this run is unknown: give a hint",
    ),
    (
        Reason(Check.WATCH_SLOT, GPU, who=("r1",)),
        "GPU 0 (NVIDIA L4) takes one unmeasured run at a time: waits until r1 is measured",
    ),
    (
        Reason(Check.OVERRUN, RAM, who=("r1",)),
        "a run uses more of RAM than was reserved for it: waits for r1",
    ),
    (
        Reason(Check.FIT, GPU, FIT),
        (
            "needs 10,241 MB of GPU 0 (NVIDIA L4); 8,959 MB usable: 12,288 MB free, less 256 MB "
            "kept back, less 3,073 MB promised to runs that may still use it"
        ),
    ),
    (
        Reason(Check.AFTER, None, {"unfinished": 1}, who=("r1",)),
        "starts only after r1 has completed",
    ),
    (
        Reason(Check.GROUP, None, {"running": 2, "limit": 2}, who=("r1", "r2")),
        "its group runs at most 2 at a time: waits for r1, r2",
    ),
    (
        Reason(Check.JOURNAL),
        "it could start, but the gate cannot write its journal; no run starts until it can",
    ),
]


@pytest.mark.parametrize(("reason", "words"), WORDS, ids=lambda value: str(value)[:40])
def test_each_reason_in_words(reason: Reason, words: str) -> None:
    """One sentence that says what it waits for."""
    assert explain(gate(), reason) == words


def test_every_check_has_words() -> None:
    """No check is without a sentence."""
    told = {reason.check for reason, _ in WORDS} | {Check.EXTERNAL_HOLDS}
    assert told == set(Check)


@pytest.mark.parametrize("earmarked", [0, GB + 3], ids=["alone", "behind a head"])
def test_the_numbers_of_a_sentence_add_up(earmarked: int) -> None:
    """Room is what the sentence's own numbers make it, and less than the need, to the MB."""
    numbers = {**FIT, "earmarked_bytes": earmarked}
    need, room, free, *less = numbers_in(explain(gate(), Reason(Check.FIT, GPU, numbers)))
    assert room == free - sum(less)
    assert need > room


def test_the_declared_ledger_has_words_of_its_own() -> None:
    """Nothing is free or reserved where nothing is measured."""
    numbers = {
        "need_bytes": 5 * GB,
        "usable_bytes": 20 * GB,
        "declared_bytes": 16 * GB,
        "earmarked_bytes": 0,
        "room_bytes": 4 * GB,
    }
    words = explain(gate(), Reason(Check.FIT, GPU, numbers))
    assert words == (
        "needs 5,120 MB of GPU 0 (NVIDIA L4); 4,096 MB usable: 20,480 MB declared usable, less "
        "16,384 MB declared for runs"
    )


def test_room_below_nothing_is_shown_as_such() -> None:
    """More can be promised than there is: the sentence does not hide it."""
    numbers = {**FIT, "free_bytes": GB}
    _, room, *_ = numbers_in(explain(gate(), Reason(Check.FIT, GPU, numbers)))
    assert room == 1024 - 256 - 3073


def numbers_in(words: str) -> list[int]:
    """All amounts of a sentence, in MB."""
    return [int(n.replace(",", "")) for n in re.findall(r"(-?[\d,]+) MB", words)]


def test_others_are_named_by_what_they_hold() -> None:
    """Notebooks by name, the three largest processes by pid, the rest in one number."""
    held = {20: 5, 30: 4, 40: 3, 50: 2, 60: 1}
    kernel = KernelProcess(ProcessKey(20, 2), "train.ipynb", "ada")
    seen = sample(
        free={GPU: 24 * GB - 15 * GB},
        lists={GPU: [(pid, gb * GB) for pid, gb in held.items()]},
        processes=[process(ProcessKey(pid, pid // 10), MB) for pid in held],
        kernels=(kernel,),
    )
    state, _ = apply_sample(gate(), seen, NOW)
    words = explain(state, Reason(Check.EXTERNAL_HOLDS, GPU, FIT))
    assert words == (
        "needs 10,241 MB of GPU 0 (NVIDIA L4); only 20,480 MB would be usable after every run has"
        " ended; used by others: train.ipynb 5,120 MB, pid 30 4,096 MB, pid 40 3,072 MB,"
        " pid 50 2,048 MB, others 1,024 MB"
    )


def test_what_a_process_holds_is_not_called_nothing_where_it_cannot_be_read() -> None:
    """Who holds an amount that the driver does not tell is part of the rest."""
    seen = sample(
        free={GPU: 18 * GB},
        lists={GPU: [(30, 4 * GB), (40, None)]},
        processes=[process(ProcessKey(pid, pid // 10), MB) for pid in (30, 40)],
    )
    state, _ = apply_sample(gate(), seen, NOW)
    words = explain(state, Reason(Check.EXTERNAL_HOLDS, GPU, FIT))
    assert words.endswith("used by others: pid 30 4,096 MB, others 2,048 MB")


def test_where_nobody_can_be_named_that_is_said() -> None:
    """A device that lists nobody does not become a device that nobody uses."""
    seen = sample(free={GPU: 9 * GB}, lists={GPU: None})
    state, _ = apply_sample(gate(), seen, NOW)
    assert explain(state, Reason(Check.EXTERNAL_HOLDS, GPU, FIT)).endswith(
        "cannot be identified here"
    )


def test_resources_have_names() -> None:
    """RAM, a GPU by index and model, a slice as such, an unknown device by its UUID."""
    part = Device("MIG-1", "1g.10gb", 10 * GB, 3, parent=GPU)
    state = gate(boards=[board(), part])
    assert resource_words(state, RAM) == "RAM"
    assert resource_words(state, "MIG-1") == "MIG slice 3 of GPU 0 (1g.10gb)"
    assert resource_words(state, "GPU-77") == "device GPU-77"
    assert megabytes(2049 * MB) == "2,049 MB"
