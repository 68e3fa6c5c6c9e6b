"""What holds of calibration and estimates for every history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpugate.core.estimates import EstimateTerm, Origin
from jupyter_gpugate.core.evidence import Observation, weigh
from jupyter_gpugate.core.learning.calibration import from_observations, sediment
from jupyter_gpugate.core.learning.estimation import estimate, max_workers, provisional_charge
from jupyter_gpugate.core.memory.settling import settled_charge
from jupyter_gpugate.core.requests import Family, Hints
from jupyter_gpugate.core.resources import (
    GB,
    MB,
    RAM,
    VRAM,
)
from tests.kit.observations import EDITED, FAMILY, failed, ran, ran_out, with_setting

BOB = Family(owner="bob", name=FAMILY.name, source_hash="one", gpus=1)
sizes = st.integers(0, 60_000)
workers = st.sampled_from([1, 2, 3, 4, 8])
resources = st.sampled_from([RAM, VRAM])
circumstances = st.fixed_dictionaries(
    {
        "resource": resources,
        "workers": workers,
        "family": st.sampled_from([FAMILY, EDITED, BOB]),
        "device_model": st.sampled_from(["A100", "H100"]),
        "episodes": st.sampled_from([1, 100]),
        "parameters": st.dictionaries(st.sampled_from("ab"), st.sampled_from("123"), max_size=2),
    }
)


def attempts(fields: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Observation]:
    """Draw attempts of every kind of end, in the circumstances that ``fields`` draws."""
    return st.one_of(
        st.builds(lambda p, f: ran(p, **f), sizes, fields),
        st.builds(lambda p, f: failed(p, **f), sizes, fields),
        st.builds(lambda p, f: ran_out(p, **f), sizes, fields),
        st.builds(lambda p, c, f: ran(p, charge_mb=p + c, **f), sizes, st.integers(0, 99), fields),
        st.builds(lambda p, c, f: ran(p, cap_mb=p + c, **f), sizes, st.integers(0, 99), fields),
    )


anywhere = st.lists(attempts(circumstances), max_size=40)
one_setting = st.lists(attempts(st.just({})), min_size=1, max_size=60)
by_workers = st.lists(attempts(st.fixed_dictionaries({"workers": workers})), max_size=40)


def vram(observations: list[Observation], **setting: Any) -> EstimateTerm:
    """Estimate GPU memory in the usual setting, changed where asked."""
    known = from_observations(observations)
    found = estimate(known, FAMILY, with_setting(**setting), Hints(), [VRAM])
    return found.term(VRAM)


@given(anywhere)
def test_what_is_kept_builds_the_same_calibration_again(history: list[Observation]) -> None:
    """A calibration written down and read back is the same calibration."""
    calibration = from_observations(history)
    assert from_observations(calibration.observations()) == calibration


@given(anywhere)
def test_one_by_one_is_the_same_as_all_at_once(history: list[Observation]) -> None:
    """Sedimenting after each attempt and reading them all at a restart agree."""
    calibration = from_observations([])
    for observation in history:
        calibration = sediment(calibration, observation)
    assert calibration == from_observations(history)


@given(one_setting)
def test_what_is_dropped_would_have_changed_nothing(history: list[Observation]) -> None:
    """The few observations kept prove exactly what the whole history proves."""
    (track,) = from_observations(history).tracks("ada", "resnet-val")
    assert track.evidence == weigh(history)
    assert len(track.observations) <= 30


@given(anywhere, circumstances)
def test_an_estimate_adds_up(history: list[Observation], asked: dict[str, Any]) -> None:
    """A need is its peak and its margin, the margin is never negative, and 0 is never a need."""
    setting = ran(0, **asked).setting
    resource = str(asked["resource"])
    found = estimate(from_observations(history), FAMILY, setting, Hints(), [resource])
    term = found.term(resource)
    if term.need_bytes is None:
        assert (term.origin, term.peak_bytes, term.n) == (None, None, 0)
    else:
        assert term.need_bytes == (term.peak_bytes or 0) + term.margin_bytes
        assert term.margin_bytes >= 0
        assert term.n > 0


values = st.sampled_from(["1", "2", "3", "6", "9", "small", "large"])
parameters = st.dictionaries(st.sampled_from(["batch", "model", "seed"]), values, max_size=3)
swept = st.lists(
    attempts(st.fixed_dictionaries({"parameters": parameters, "workers": workers})), max_size=40
)


@given(swept, parameters, workers)
def test_measured_is_said_of_nothing_that_nobody_ran(
    history: list[Observation], asked: dict[str, str], count: int
) -> None:
    """Only a run that completed with these very values and workers makes a number measured."""
    setting = with_setting(parameters=tuple(sorted(asked.items())), workers=count)
    found = estimate(from_observations(history), FAMILY, setting, Hints(), [VRAM]).term(VRAM)
    ran_so = any(seen.complete and seen.setting == setting for seen in history)
    assert (found.origin is Origin.MEASURED) == ran_so


@given(swept, parameters, workers)
def test_a_word_that_was_never_run_has_no_number(
    history: list[Observation], asked: dict[str, str], count: int
) -> None:
    """No history of other words makes one; what was learned becomes a prior and a reason."""
    setting = with_setting(
        parameters=tuple(sorted({**asked, "model": "new"}.items())), workers=count
    )
    found = estimate(from_observations(history), FAMILY, setting, Hints(), [VRAM]).term(VRAM)
    assert found.need_bytes is None
    if any(seen.complete for seen in history):
        assert found.prior_bytes is not None
        assert "model" in found.unknown_parameters
        assert "this model" in found.note


@given(st.dictionaries(st.integers(0, 64), sizes, min_size=2, max_size=6), st.integers(-5, 200))
def test_a_number_has_a_need_within_reach_and_none_beyond(
    measured: dict[int, int], at: int
) -> None:
    """As far as twice the greatest value; and where peaks grow, the estimated ones never fall."""
    peaks = sorted(measured.values())
    history = [
        ran(p, parameters={"batch": str(v)}) for v, p in zip(sorted(measured), peaks, strict=True)
    ]
    low, high = (vram(history, parameters=(("batch", str(v)),)) for v in (at, at + 1))
    for value, found in ((at, low), (at + 1, high)):
        assert (found.need_bytes is not None) == (value <= 2 * max(measured))
    if low.peak_bytes is not None and high.peak_bytes is not None:
        assert low.peak_bytes * 0.95 <= high.peak_bytes  # level values differ by 5 % at most


@given(one_setting)
def test_a_need_is_never_below_the_greatest_of_the_last_ten_peaks(
    history: list[Observation],
) -> None:
    """Caps, outliers and saturation never bring a need below what completed runs held."""
    peaks = [observation.peak_bytes for observation in history if observation.complete][-10:]
    need = vram(history).need_bytes
    assert need is None if not peaks else need is not None and need >= max(peaks)


@given(by_workers, workers, sizes, st.booleans())
def test_a_failed_attempt_never_lowers_an_estimate_nor_makes_one(
    history: list[Observation], count: int, size: int, out_of_memory: bool
) -> None:
    """Whatever did not complete can only raise a need that is there."""
    end = ran_out if out_of_memory else failed
    before = vram(history, workers=count)
    after = vram([*history, end(size, workers=count)], workers=count)
    if before.need_bytes is None:
        assert after.need_bytes is None
    else:
        assert after.need_bytes is not None
        assert after.need_bytes >= before.need_bytes


@given(st.dictionaries(st.integers(1, 64), sizes, min_size=1, max_size=6))
def test_more_workers_never_need_less(measured: dict[int, int]) -> None:
    """Where measured peaks grow with the workers, so does every estimate between and beyond."""
    peaks = sorted(measured.values())
    history = [ran(p, workers=w) for w, p in zip(sorted(measured), peaks, strict=True)]
    needs = [vram(history, workers=w).need_bytes or 0 for w in range(1, 65)]
    assert needs == sorted(needs)
    elsewhere = [vram(history, workers=w, episodes=7).need_bytes or 0 for w in range(1, 65)]
    assert elsewhere == sorted(elsewhere)


@given(by_workers, st.integers(0, 200_000))
def test_the_most_workers_that_fit_fit(history: list[Observation], room_mb: int) -> None:
    """The count named fits, and none above it does."""
    known = from_observations(history)
    room = room_mb * MB
    most = max_workers(known, FAMILY, with_setting(), Hints(), {VRAM: room})
    counts = {1, 2, 3, 4, 5, 8, 9, 64, most or 1, min((most or 0) + 1, 64)}
    needs = {w: vram(history, workers=w).need_bytes for w in counts}
    if most is None:
        assert set(needs.values()) == {None}
    else:
        fitting = [w for w, need in needs.items() if need is not None and need <= room]
        assert most == max(fitting, default=0)


@given(anywhere, anywhere)
def test_nothing_crosses_from_one_owner_to_another(
    mine: list[Observation], theirs: list[Observation]
) -> None:
    """What another owner's runs showed changes no number of mine, in whatever order they came."""
    theirs = [replace(observation, family=BOB) for observation in theirs]
    mine = [observation for observation in mine if observation.family.owner == "ada"]
    mixed = from_observations([*theirs, *mine, *theirs])
    alone = from_observations(mine)
    setting = with_setting()
    both = [RAM, VRAM]
    assert estimate(mixed, FAMILY, setting, Hints(), both) == estimate(
        alone, FAMILY, setting, Hints(), both
    )


@given(anywhere, sizes, resources)
def test_a_measurement_always_beats_the_hint(
    history: list[Observation], hint: int, resource: str
) -> None:
    """The author's number is used where nothing completed, and nowhere else."""
    known = from_observations(history)
    hints = Hints(hint * MB, hint * MB)
    with_hint = estimate(known, FAMILY, with_setting(), hints, [resource]).term(resource)
    without = estimate(known, FAMILY, with_setting(), Hints(), [resource]).term(resource)
    if without.need_bytes is None:
        assert with_hint.origin is Origin.HINT
    else:
        assert with_hint == without


@given(
    st.none() | st.integers(0, 200 * GB),
    st.tuples(st.integers(0, 200 * GB), st.integers(0, 100 * GB)),
    st.tuples(st.integers(-GB, 200 * GB), st.integers(-GB, 200 * GB)),
)
def test_a_provisional_charge_is_never_nothing_and_only_shrinks(
    prior: int | None, floors: tuple[int, int], room: tuple[int, int]
) -> None:
    """It is above 0, above what fits alone only by a sensible least, and waiting lowers it."""
    first, later = (
        provisional_charge(
            prior_bytes=prior,
            lower_bound_bytes=floors[0],
            share_bytes=floors[1],
            fits_alone_bytes=max(room),
            fits_now_bytes=min(room),
            shrink=shrink,
        )
        for shrink in (False, True)
    )
    assert 0 < later <= first <= max(*room, GB)


@given(st.integers(0, 100 * GB), st.integers(1, 100 * GB))
def test_settling_never_raises_a_charge_nor_cuts_into_the_peak(peak: int, charge: int) -> None:
    """A settled charge covers what was held, as far as the charge did before."""
    settled = settled_charge(peak, charge)
    assert settled <= charge
    assert settled >= min(peak, charge)
