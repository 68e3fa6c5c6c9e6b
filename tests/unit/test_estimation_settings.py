"""Needs across settings: parameters, devices, out-of-memory ends, caps and allocators."""

from __future__ import annotations

import pytest

from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.learning.calibration import from_observations
from jupyter_gpugate.core.learning.estimation import (
    estimate,
)
from jupyter_gpugate.core.requests import Hints
from jupyter_gpugate.core.resources import (
    MB,
    RAM,
    VRAM,
)
from tests.kit.estimates import mb, term
from tests.kit.observations import A100, FAMILY, failed, ran, ran_out, with_setting

OTHERWISE = {
    "device model": ({"device_model": "H100"}, "another device model (A100-SXM4-80GB)"),
    "runtime": ({"runtime": "torch 2.5 driver 550"}, "another runtime"),
    "episodes": ({"episodes": 7}, "another number of episodes"),
}


@pytest.mark.parametrize(("change", "words"), OTHERWISE.values(), ids=OTHERWISE)
def test_in_other_circumstances_the_familys_greatest_counts(
    change: dict[str, object], words: str
) -> None:
    """Anything else of the setting changed: the family's greatest peak with 10 % margin."""
    history = [*[ran(2000)] * 5, *[ran(1000, workers=2)] * 5]
    found = term(history, with_setting(**change))
    assert (found.need_bytes, found.origin, found.n) == (mb(2264), Origin.SCALED, 5)
    assert words in found.note


def test_other_circumstances_are_brought_to_the_number_of_workers() -> None:
    """With another batch size and twice the workers, the greatest is scaled up first."""
    found = term([ran(2000)], with_setting(workers=2, episodes=5))
    assert found.need_bytes == mb(4000 + 400 + 64)
    assert "scaled up from 1 worker" in found.note


def test_the_device_model_counts_for_gpu_memory_only() -> None:
    """RAM measured beside another device is measured."""
    history = [ran(2000, resource=RAM, device_model=A100)]
    found = term(history, with_setting(device_model="H100"), resource=RAM)
    assert found.origin is Origin.MEASURED


def test_without_a_device_model_the_one_that_needed_most_speaks() -> None:
    """Who asks for no device in particular is told the greatest need seen on any."""
    history = [ran(2000, device_model=A100), ran(3000, device_model="H100")]
    found = term(history, with_setting(device_model=None))
    assert (found.need_bytes, found.origin) == (mb(3364), Origin.MEASURED)


def test_a_hundred_seeds_are_one_eval() -> None:
    """After three seeds within 5 % the seed is ignored, which the estimate says."""
    history = [ran(2000 + k % 7, parameters={"seed": str(k)}, at=k) for k in range(100)]
    asked = with_setting(parameters=(("seed", "120"),))
    assert term(history[:2], asked).origin is None
    found = estimate(from_observations(history), FAMILY, asked, Hints(), [VRAM])
    assert found.level_parameters == ("seed",)
    assert found.term(VRAM).note == "level over seed 0, 1, 2, 3, ..., 99"
    assert (found.term(VRAM).origin, found.term(VRAM).n) == (Origin.FITTED, 10)
    assert found.total_bytes(VRAM) == pytest.approx(mb(2006 + 60.18 + 64), abs=1)


def test_a_setting_that_needed_more_speaks_for_itself() -> None:
    """An old seed that needed more keeps its own need although seeds are level."""
    odd = ran(4000, parameters={"seed": "30"})
    history = [odd, *[ran(2000, parameters={"seed": str(k)}, at=k) for k in range(20)]]
    assert term(history, odd.setting).peak_bytes == mb(4000)
    assert term(history, with_setting(parameters=(("seed", "21"),))).peak_bytes == mb(2000)


def test_a_failed_seed_speaks_for_itself_longer_than_for_others() -> None:
    """Ten other seeds later a lower bound is gone for them, and stays for its own seed."""
    odd = ran(2000, parameters={"seed": "30"})
    leak = failed(3000, parameters={"seed": "30"}, at=1)
    history = [odd, leak, *[ran(2000, parameters={"seed": str(k)}, at=2 + k) for k in range(9)]]
    fresh = with_setting(parameters=(("seed", "12"),))
    assert term(history, fresh).need_bytes == mb(3000)
    history.append(ran(2000, parameters={"seed": "9"}, at=20))
    assert term(history, fresh).need_bytes == mb(2124)
    assert term(history, odd.setting).need_bytes == mb(3000)


def test_out_of_memory_raises_the_need_until_the_setting_completes() -> None:
    """1.5 times what it ran out at, on every rung with a number, and only until it completes."""
    assert term([ran(3000), ran_out(4000)]).need_bytes == mb(6000)
    assert term([ran_out(4000)], hint=mb(2000)).need_bytes == mb(6000)
    assert term([ran(3000), ran_out(1000)]).need_bytes == mb(3364)
    done = term([ran(3000), ran_out(4000), ran(4100)])
    assert done.need_bytes == pytest.approx(mb(4100 + 287 + 64), abs=1)


def test_out_of_memory_again_raises_again_within_the_device() -> None:
    """Each time 1.5 times more, up to all there is."""
    needs = [
        term([ran(3000), *map(ran_out, history)], total=mb(10_000)).need_bytes
        for history in ([4000], [4000, 6000], [4000, 6000, 9000])
    ]
    assert needs == [mb(6000), mb(9000), mb(10_000)]


def test_out_of_memory_of_one_setting_is_not_that_of_another() -> None:
    """A batch that is too large says nothing about the small one."""
    history = [ran(3000), ran_out(4000, parameters={"batch": "512"})]
    assert term(history).need_bytes == mb(3364)
    large = with_setting(parameters=(("batch", "512"),))
    assert term(history, large, hint=mb(2000)).need_bytes == mb(6000)


def test_a_margin_never_asks_for_more_than_there_is() -> None:
    """What completed on the device needs no more than the device."""
    assert term([ran(78_000)], total=mb(80_000)).need_bytes == mb(80_000)
    assert term([ran(82_000)], total=mb(80_000)).need_bytes == mb(90_264)


def test_a_cap_that_sufficed_bounds_the_need() -> None:
    """Completed under an enforced cap: no more than the cap, no less than the greatest peak."""
    capped = term([ran(4000, cap_mb=4200)])
    assert capped.need_bytes == mb(4200)
    assert capped.note == "an enforced cap of 4,200 MB sufficed"
    assert term([ran(4500), ran(4000, cap_mb=4200)]).need_bytes == mb(4500)
    void = term([ran(4000, cap_mb=4200), ran_out(4200), ran(4300, cap_mb=6300)])
    assert void.need_bytes == pytest.approx(mb(4300 + 301 + 64), abs=1)


@pytest.mark.parametrize("charge", [2050, 1950])
def test_a_program_that_fills_its_charge_needs_its_peak(charge: int) -> None:
    """A peak within 3 % of the charge shows what was given: no margin on top."""
    found = term([ran(2000, charge_mb=charge)])
    assert found.need_bytes == mb(2000)
    assert found.note == "fills all memory that it is given: the peak itself"


@pytest.mark.parametrize("peak", [1500, 1930, 2100])
def test_who_left_or_exceeded_what_it_was_given_does_not_fill_it(peak: int) -> None:
    """One run of another peak shows that a charge was met by chance."""
    found = term([ran(2000, charge_mb=2010), ran(peak, charge_mb=2000)])
    greatest = max(2000, peak)
    assert found.need_bytes == mb(greatest * 1.07 + 64)


def test_programs_that_fill_whatever_they_are_given_are_known_by_all_of_their_runs() -> None:
    """A run whose charge is not known says nothing."""
    found = term([ran(1000), ran(1500, charge_mb=1510), ran(2000, charge_mb=2010)])
    assert found.need_bytes == mb(2000)


def test_a_steady_run_is_not_taken_for_one_that_fills_its_charge() -> None:
    """However large, a peak does not fill the charge that was made of it, nor does its noise."""
    charge = term([ran(75_000)] * 3).need_bytes
    assert charge is not None
    steady = [*[ran(75_000)] * 2, ran(75_000, charge_mb=charge / MB)]
    assert term(steady).need_bytes == charge
    noisy = [ran(10_000, charge_mb=11_064), ran(10_000, charge_mb=10_764)]
    found = term([*noisy, ran(10_100, charge_mb=10_364)])
    assert found.need_bytes == pytest.approx(mb(10_100 + 303 + 64), abs=1)
