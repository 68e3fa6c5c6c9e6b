"""What a run is said to need, in megabytes that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.core.estimates import Estimate, EstimateTerm, Origin
from jupyter_gpugate.core.evidence import Calibration, Observation
from jupyter_gpugate.core.learning.calibration import from_observations, sediment
from jupyter_gpugate.core.learning.estimation import (
    estimate,
    max_workers,
    need_from_hint,
    provisional_charge,
)
from jupyter_gpugate.core.memory.settling import overrun_charge, settled_charge
from jupyter_gpugate.core.requests import Family, Hints
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
    HolderKind,
)
from tests.kit.estimates import mb, term
from tests.kit.observations import EDITED, FAMILY, SETTING, failed, ran, ran_out, with_setting

MEASURED = {
    # Greatest peak x (1 + share) + 64 MB on a GPU.
    "one run: 2,049 + 204.9 + 64": (VRAM, [2049], 2317.9),
    "two runs: 2,049 + 143.43 + 64": (VRAM, [2000, 2049], 2256.43),
    "seven steady runs: 2,049 + 61.47 + 64": (VRAM, [2040, *[2049] * 6], 2174.47),
    # The deviation of 1,800, 1,900, 2,000 is 100: twice that is 10.526 % of the mean 1,900.
    "scattered: at most 2,000 + 200 + 64": (VRAM, [1800, 1900, 2000], 2264),
    # The deviation of 1,960, 2,000, 2,040 is 40: twice that is 4 % of the mean 2,000.
    "two deviations: 2,040 + 81.6 + 64": (VRAM, [1960, 2000, 2040], 2185.6),
    "used nothing: 0 + 0 + 64": (VRAM, [0, 0, 0], 64),
    # RAM: the share, 256 MB or 5 %, whichever is most.
    "RAM, one run: 3,515 + 351.5": (RAM, [3515], 3866.5),
    "RAM, steady: 3,515 + 256": (RAM, [3515] * 3, 3771),
    "RAM, large: 20,000 + 5 %": (RAM, [20_000] * 3, 21_000),
}


@pytest.mark.parametrize(("resource", "peaks", "need"), MEASURED.values(), ids=MEASURED)
def test_a_measured_need_is_the_greatest_peak_and_a_margin(
    resource: str, peaks: list[int], need: float
) -> None:
    """10 % of margin after one run, 7 % after two, then two deviations within 3 and 10 %."""
    found = term([ran(p, resource=resource) for p in peaks], resource=resource)
    assert found.need_bytes == pytest.approx(mb(need), abs=1)
    assert (found.origin, found.n) == (Origin.MEASURED, len(peaks))
    assert found.peak_bytes == mb(max(peaks))
    assert found.need_bytes == found.peak_bytes + found.margin_bytes


@pytest.mark.parametrize(("after", "peak"), [(9, 6000), (10, 2000)])
def test_an_outlier_is_gone_after_ten_runs(after: int, peak: int) -> None:
    """One odd run weighs for ten runs, then no more."""
    assert term([ran(6000), *[ran(2000)] * after]).peak_bytes == mb(peak)


def test_nothing_known_is_null_and_never_a_guess() -> None:
    """Without a run and without a hint there is no number, and the total is null."""
    found = estimate(Calibration(), FAMILY, SETTING, Hints(ram_bytes=mb(1000)), [VRAM, RAM])
    assert found.term(VRAM).need_bytes is None
    assert found.term(VRAM).origin is None
    assert found.total_bytes(VRAM) is None
    assert found.total_bytes(RAM) == mb(1256)
    assert found.gaps() == ("vram:run",)


def test_a_lower_bound_alone_is_no_need() -> None:
    """Attempts that did not complete set nothing; they say how far the run came."""
    found = term([failed(3000), ran_out(5000)])
    assert found.need_bytes is None
    assert found.lower_bound_bytes == mb(5000)


def test_a_lower_bound_raises_a_need_and_never_lowers_it() -> None:
    """What a failed attempt held, the next one must be allowed to hold."""
    assert term([ran(2000), failed(1000)]).need_bytes == mb(2264)
    raised = term([ran(2000), failed(3000)])
    assert raised.need_bytes == mb(3000)
    assert raised.note == "an attempt that did not complete held 3,000 MB"


def test_what_fewer_workers_held_more_must_be_allowed_to_hold() -> None:
    """A lower bound seen with two workers holds for four, and says nothing about one."""
    history = [ran(1000, workers=1), failed(9000, workers=2)]
    assert term(history, with_setting(workers=4)).need_bytes == mb(9000)
    assert term(history, with_setting(workers=1)).need_bytes == mb(1164)
    assert term([failed(9000)], with_setting(workers=2), hint=mb(1000)).need_bytes == mb(9000)


HINTS = {
    # The same formula with the author's number as the one peak.
    "GPU: 2,000 + 200 + 64": (VRAM, 2000, 2264),
    "RAM: 2,000 + 256": (RAM, 2000, 2256),
    "RAM: 4,000 + 400": (RAM, 4000, 4400),
}


@pytest.mark.parametrize(("resource", "hint", "need"), HINTS.values(), ids=HINTS)
def test_a_hint_is_the_same_formula_with_the_authors_number(
    resource: str, hint: int, need: int
) -> None:
    """A hint counts like one observed peak, on a GPU and in RAM."""
    found = term([], resource=resource, hint=mb(hint))
    assert found.need_bytes == need_from_hint(resource, mb(hint)) == mb(need)
    assert (found.origin, found.n) == (Origin.HINT, 0)


def test_a_hint_survives_an_edit_and_a_measurement_replaces_it() -> None:
    """The author's number holds for every source, until a source has been measured."""
    history = [ran(26_000)]
    measured = term(history, hint=mb(59_000))
    assert (measured.origin, measured.need_bytes) == (Origin.MEASURED, mb(28_664))
    edited = term(history, family=EDITED, hint=mb(59_000))
    assert (edited.origin, edited.need_bytes) == (Origin.HINT, mb(64_964))


def test_the_ladder_from_hint_to_measured() -> None:
    """Each thing learned takes the place of a worse one: hint, scaled, fitted, measured."""
    asked = with_setting(workers=4)
    history: list[Observation] = []
    origins = [term(history, asked, hint=mb(9000)).origin]
    for workers, peak in ((1, 1000), (2, 1500), (4, 2500)):
        history.append(ran(peak, workers=workers))
        origins.append(term(history, asked, hint=mb(9000)).origin)
    assert origins == [Origin.HINT, Origin.SCALED, Origin.FITTED, Origin.MEASURED]


def test_an_edited_cell_knows_only_what_its_older_sources_needed() -> None:
    """An edit retires every statistic; what remains is a prior, the greatest of older needs."""
    found = term([ran(2000), ran(1000, workers=2), failed(9000)], family=EDITED)
    assert (found.need_bytes, found.n) == (None, 0)
    assert found.prior_bytes == mb(9000)
    assert term([ran(2000)], family=EDITED).prior_bytes == mb(2264)
    assert term([ran(2000), ran(1000, family=EDITED)]).prior_bytes == mb(1164)
    assert term([ran(2000)]).prior_bytes is None


def test_an_edit_undone_finds_its_measurements_again() -> None:
    """The first source comes back with its own numbers."""
    history = [ran(2000), ran(7000, family=EDITED)]
    assert term(history).need_bytes == mb(2264)


def test_a_sum_with_a_gap_is_not_known_and_its_known_part_is() -> None:
    """Per resource: what is known is told beside what is not, and nothing stands for a gap."""
    needs = ((VRAM, 5 * GB), (VRAM, None), (RAM, 3 * GB), (RAM, GB))
    found = Estimate(tuple(EstimateTerm(r, HolderKind.RUN, need) for r, need in needs))
    assert (found.total_bytes(VRAM), found.known_bytes(VRAM)) == (None, 5 * GB)
    assert (found.total_bytes(RAM), found.known_bytes(RAM)) == (4 * GB, 4 * GB)
    assert found.gaps() == ("vram:run",)


def test_owners_learn_nothing_from_each_other() -> None:
    """The same name and the same source under another owner is another eval."""
    bobs = Family(owner="bob", name=FAMILY.name, source_hash=FAMILY.source_hash, gpus=1)
    found = term([ran(70_000, family=bobs), failed(70_000, family=bobs)])
    assert (found.need_bytes, found.prior_bytes, found.lower_bound_bytes) == (None, None, 0)


def test_fitted_lies_on_the_line_through_the_measured_numbers_of_workers() -> None:
    """1,000, 1,500 and 2,500 MB at 1, 2 and 4 workers: 500 MB each, and 500 for all."""
    history = [ran(1000, workers=1), ran(1500, workers=2), ran(2500, workers=4)]
    between = term(history, with_setting(workers=3))
    assert between.peak_bytes == pytest.approx(mb(2000), abs=1)
    assert between.need_bytes == pytest.approx(mb(2000 + 200 + 64), abs=2)
    assert (between.origin, between.n) == (Origin.FITTED, 3)
    assert between.note == "fitted over workers 1, 2, 4"
    beyond = term([*history, *history, *history], with_setting(workers=8))
    assert beyond.need_bytes == pytest.approx(mb(4500 + 1125 + 64), abs=2)
    steady = term([*history, *history, *history], with_setting(workers=3))
    assert steady.need_bytes == between.need_bytes


def test_a_fit_never_slopes_downwards() -> None:
    """More workers are never said to need less than fewer did."""
    found = term([ran(3000, workers=1), ran(2000, workers=2)], with_setting(workers=4))
    assert (found.origin, found.peak_bytes) == (Origin.FITTED, mb(2500))
    assert found.need_bytes == mb(3364)


def test_below_the_least_number_of_workers_its_need_counts() -> None:
    """No line leads below what was measured."""
    history = [ran(1000, workers=4), ran(8000, workers=8)]
    found = term(history, with_setting(workers=2))
    assert (found.origin, found.need_bytes) == (Origin.FITTED, mb(1164))
    assert found.note == "the need of workers 4, the least that was run"


def test_beyond_twice_the_most_workers_the_need_is_scaled() -> None:
    """In proportion to the most that was measured, and no less than the line leads to."""
    found = term([ran(1000, workers=1), ran(2000, workers=2)], with_setting(workers=5))
    assert (found.origin, found.need_bytes) == (Origin.SCALED, mb(5000 + 1250 + 64))
    flat = term([ran(1000, workers=1), ran(1000, workers=2)], with_setting(workers=5))
    assert (flat.origin, flat.need_bytes) == (Origin.SCALED, mb(2500 + 250 + 64))


def test_between_two_measured_numbers_of_workers_the_need_lies_between_theirs() -> None:
    """A line that misses its points does not overrule what was measured on either side."""
    history = [ran(p, workers=w) for w, p in ((1, 1000), (2, 3000), (4, 3100), (8, 3200))]
    needs = [term(history, with_setting(workers=w)).need_bytes for w in range(1, 9)]
    assert needs == sorted(n for n in needs if n is not None)
    assert needs[2] == mb(3050 + 305 + 64)


@pytest.mark.parametrize(
    ("workers", "need", "note"),
    [
        # Upwards 1,000 MB a worker, with a full margin; downwards the measured need itself.
        (4, 4000 + 400 + 64, "scaled up from 2 workers"),
        (1, 2000 + 60 + 64, "the need of 2 workers"),
    ],
)
def test_one_number_of_workers_is_scaled(workers: int, need: int, note: str) -> None:
    """From one measured count: upwards in proportion, downwards what it needed itself."""
    found = term([ran(2000, workers=2)] * 3, with_setting(workers=workers))
    assert (found.need_bytes, found.origin) == (mb(need), Origin.SCALED)
    assert (found.n, found.note) == (3, note)


def _charge(found: EstimateTerm) -> int:
    """The need, or what other settings needed."""
    return found.need_bytes or found.prior_bytes or 0


FILLERS = {
    "all of an advised charge": (1.0, False),
    "99 % of an advised charge": (0.99, False),
    "all of an enforced cap": (1.0, True),
    "95 % of an enforced cap": (0.95, True),
}


@pytest.mark.parametrize(("share", "enforced"), FILLERS.values(), ids=FILLERS)
@pytest.mark.parametrize("seeds", [False, True], ids=["one setting", "a seed each"])
def test_an_allocator_that_fills_what_it_is_given_does_not_creep(
    share: float, enforced: bool, seeds: bool
) -> None:
    """Over thirty runs, each charged what the last ones showed, the need stays where it was."""
    calibration, charge, needs = Calibration(), 20_000 * MB, []
    for k in range(30):
        parameters = {"seed": str(k)} if seeds else {}
        fields: dict[str, Any] = {"charge_mb": charge / MB, "parameters": parameters, "at": k}
        if enforced:
            fields["cap_mb"] = charge / MB
        seen = ran(share * charge / MB, **fields)
        calibration = sediment(calibration, seen)
        asked = with_setting(parameters=(("seed", str(k + 1)),) if seeds else ())
        charge = _charge(estimate(calibration, FAMILY, asked, Hints(), [VRAM]).term(VRAM))
        needs.append(charge)
    assert max(needs) <= 20_000 * MB
    assert min(needs) >= 0.9 * 20_000 * MB


@pytest.mark.parametrize(
    ("room", "workers"),
    [
        # 500 MB for all and 500 a worker, measured at 1, 2, 4; beyond 4 with 25 % + 64 MB.
        ({VRAM: 5689 * MB + 2}, 8),
        ({VRAM: 5688 * MB}, 7),
        ({VRAM: 500 * MB}, 0),
        ({VRAM: 1000 * GB}, 64),
        # RAM was measured with 2 workers at 4,000 MB: 4,400 + 200 a worker, or 4,400 below.
        ({VRAM: 1000 * GB, RAM: 6600 * MB}, 3),
        ({RAM: 4000 * MB, VRAM: 1000 * GB}, 0),
        ({}, None),
    ],
)
def test_most_workers_fit_every_measurable_room(room: dict[str, int], workers: int | None) -> None:
    """The greatest number of workers, at most 64, whose need fits each resource there is."""
    history = [ran(1000, workers=1), ran(1500, workers=2), ran(2500, workers=4)]
    history.append(ran(4000, workers=2, resource=RAM))
    assert max_workers(from_observations(history), FAMILY, SETTING, Hints(), room) == workers


@pytest.mark.parametrize("room", [{RAM: 0, VRAM: GB}, {VRAM: GB, RAM: 0}])
def test_most_workers_is_null_where_a_resource_is_unknown(room: dict[str, int]) -> None:
    """One resource without a number makes the answer null, whatever the others say."""
    known = from_observations([ran(1000, resource=RAM)])
    assert max_workers(known, FAMILY, SETTING, Hints(), room) is None


def test_a_hint_grows_with_the_workers_it_was_not_given_for() -> None:
    """The author's number holds for the workers asked for, and in proportion beyond."""
    asked = with_setting(workers=2)
    hints = Hints(vram_bytes=mb(2000))
    room = {VRAM: mb(4000 + 400 + 64)}
    assert max_workers(Calibration(), FAMILY, asked, hints, room) == 4
    assert max_workers(Calibration(), FAMILY, asked, hints, {VRAM: mb(2264)}) == 2
    assert max_workers(Calibration(), FAMILY, asked, hints, {VRAM: mb(2263)}) == 0


PROVISIONAL = {
    # prior, bound, share, fits alone, fits now, shrink -> charge; in GB.
    "half the device": (None, 0, 40, 79, 70, False, 40),
    "twice the prior": (5, 0, 40, 79, 70, False, 10),
    "1.5 times the bound": (None, 30, 40, 79, 70, False, 45),
    "the bound beats the prior": (5, 8, 40, 79, 70, False, 12),
    "no more than fits alone": (None, 60, 40, 79, 70, False, 79),
    "it insists on its charge at first": (None, 0, 40, 79, 3, False, 40),
    "then what fits now will do": (None, 0, 40, 79, 3, True, 3),
    "not below 1 GB": (None, 0, 40, 79, 0.2, True, 1),
    "not below the prior": (5, 0, 40, 79, 3, True, 5),
    "not below 1.5 times the bound": (None, 4, 40, 79, 3, True, 6),
    "room does not make it grow": (None, 0, 40, 79, 70, True, 40),
    "a prior of next to nothing": (0.0625, 0, 40, 79, 70, False, 1),
    "others hold the device": (None, 0, 40, 0.1, 0.1, False, 1),
    "others hold more than the device": (None, 0, 40, -1, -1, True, 1),
    "a small device": (None, 0, 0.5, 0.9, 0.9, False, 0.5),
    "a small device with a prior": (2, 0, 0.5, 0.9, 0.9, False, 0.9),
    "a prior too large for the device": (10, 0, 4, 7.5, 7.5, True, 7.5),
}


@pytest.mark.parametrize("case", PROVISIONAL.values(), ids=PROVISIONAL)
def test_an_unknown_run_is_charged_provisionally(
    case: tuple[float | None, float, float, float, float, bool, float],
) -> None:
    """Twice the prior or a share, at least 1.5 times the bound, within what can ever fit."""
    prior, bound, share, alone, now, shrink, charge = case
    found = provisional_charge(
        prior_bytes=None if prior is None else int(prior * GB),
        lower_bound_bytes=int(bound * GB),
        share_bytes=int(share * GB),
        fits_alone_bytes=int(alone * GB),
        fits_now_bytes=int(now * GB),
        shrink=shrink,
    )
    assert found == int(charge * GB)


def test_a_settled_run_is_charged_its_peak_and_a_quarter_and_never_more_than_before() -> None:
    """1.25 x 2,000 + 256 = 2,756 MB, or the charge it had."""
    assert settled_charge(mb(2000), mb(20_000)) == mb(2756)
    assert settled_charge(mb(2000), mb(2100)) == mb(2100)


def test_an_overrun_is_charged_a_quarter_more_than_it_holds() -> None:
    """1.25 x 2,000 = 2,500 MB."""
    assert overrun_charge(mb(2000)) == mb(2500)
