"""What is kept of what attempts showed, and what it proves."""

from __future__ import annotations

import dataclasses

import pytest

from jupyter_gpugate.core.evidence import Calibration, Evidence, Observation, Track
from jupyter_gpugate.core.learning.calibration import (
    TRACKS_PER_NAME,
    forget,
    from_observations,
    level_parameters,
    sediment,
)
from jupyter_gpugate.core.requests import Family
from jupyter_gpugate.core.resources import MB, RAM, VRAM
from tests.kit.observations import A100, EDITED, FAMILY, failed, ran, ran_out

NOBODY = Family(owner="bob", name="resnet-val", source_hash="one", gpus=1)


def kept(observations: list[Observation]) -> Track:
    """Sediment observations of one setting and return their only track."""
    (track,) = from_observations(observations).tracks("ada", "resnet-val")
    return track


def evidence(observations: list[Observation]) -> Evidence:
    """Sediment observations of one setting and return what they prove."""
    return kept(observations).evidence


def test_the_last_ten_complete_observations_count() -> None:
    """An eleventh complete observation pushes out the first."""
    peaks = evidence([ran(1000 + k) for k in range(13)]).peaks
    assert peaks == tuple((1000 + k) * MB for k in range(12, 2, -1))


def test_a_run_that_used_nothing_is_an_observation() -> None:
    """A peak of 0 that was read is a peak, not a gap."""
    assert evidence([ran(0), ran(0)]).peaks == (0, 0)


def test_failures_between_complete_runs_do_not_push_them_out() -> None:
    """A hundred failed attempts leave every complete observation where it was."""
    assert evidence([ran(1000), *[failed(5)] * 100]).peaks == (1000 * MB,)


def test_the_greatest_lower_bound_outlives_lesser_ones() -> None:
    """Ten attempts that die at the first import do not erase how far an earlier one came."""
    assert evidence([failed(6000), *[failed(10)] * 10]).bound_bytes == 6000 * MB


@pytest.mark.parametrize(("later", "bound"), [(0, 6000), (9, 6000), (10, 700), (11, 700)])
def test_a_lower_bound_is_gone_after_ten_complete_runs(later: int, bound: int) -> None:
    """A lower bound ages like an outlier, and the next one below it takes its place."""
    seen = evidence([failed(6000), *[ran(1000)] * later, failed(700)])
    assert seen.bound_bytes == bound * MB


def test_out_of_memory_is_remembered_until_the_setting_completes() -> None:
    """Only a complete run ends what running out of memory taught; failing earlier does not."""
    history = [ran(3000), ran_out(4000), ran_out(3500), *[failed(10)] * 20]
    assert evidence(history).oom_bytes == 4000 * MB
    assert evidence([*history, ran(4100)]).oom_bytes == 0


def test_the_least_enforced_cap_outlives_the_window() -> None:
    """A cap that sufficed once is proof for as long as nothing ran out of memory."""
    seen = evidence([ran(3000, cap_mb=3100), *[ran(3000, cap_mb=9000)] * 30])
    assert seen.cap_bytes == 3100 * MB
    assert len(seen.complete) == 10


@pytest.mark.parametrize("between", [0, 5, 30])
def test_running_out_of_memory_voids_the_caps_before_it(between: int) -> None:
    """Of the caps only those since the last out-of-memory end are proof."""
    roomy = [ran(3000, cap_mb=9000)] * between
    seen = evidence([ran(3000, cap_mb=3100), *roomy, ran_out(9000), ran(3000, cap_mb=8000)])
    assert seen.cap_bytes == 8000 * MB


def test_a_cap_that_was_only_advised_proves_nothing() -> None:
    """What a program could have ignored does not show that it sufficed."""
    advised = dataclasses.replace(ran(3000), cap_bytes=3100 * MB)
    assert evidence([advised]).cap_bytes is None


def test_an_enforced_cap_refutes_a_lower_bound_before_it_and_none_after() -> None:
    """An attempt that held more than a later cap did not need it; a later attempt may."""
    capped = ran(4000, cap_mb=4500)
    assert evidence([failed(6000), capped]).bound_bytes == 4500 * MB
    assert evidence([capped, failed(6000)]).bound_bytes == 6000 * MB


def test_what_is_kept_of_one_setting_is_bounded() -> None:
    """However many attempts there were, at most thirty observations say all they said."""
    history = [failed(1)]
    for k in range(50):
        history += [ran(1000, cap_mb=k), failed(900 + k), failed(5000 - k), ran_out(100)]
    assert len(kept(history).observations) == 30


def test_what_is_kept_of_one_name_is_bounded() -> None:
    """A sweep keeps the settings observed last; asking for one again keeps it young."""
    sweep = [ran(1000 + k, parameters={"seed": str(k)}) for k in range(200)]
    again = ran(1, parameters={"seed": "72"})
    seeds = {
        dict(track.setting.parameters)["seed"]
        for track in from_observations([*sweep, again]).tracks("ada", "resnet-val")
    }
    assert seeds == {f"={k}" for k in range(200 - TRACKS_PER_NAME, 200)}
    more = sediment(from_observations([*sweep, again]), ran(1, parameters={"seed": "300"}))
    assert "=72" in {dict(t.setting.parameters)["seed"] for t in more.tracks("ada", "resnet-val")}


def test_adding_shares_all_that_did_not_change() -> None:
    """A new observation costs one track of one name; the rest is the same object as before."""
    others = [ran(5, family=NOBODY), ran(7, family=EDITED), ran(9)]
    before = from_observations(others)
    after = sediment(before, ran(10))
    assert after.names["bob", "resnet-val"] is before.names["bob", "resnet-val"]
    assert after.tracks("ada", "resnet-val")[0] is before.tracks("ada", "resnet-val")[0]
    assert [o.peak_bytes for o in before.observations()] == [5 * MB, 7 * MB, 9 * MB]


def test_what_one_owner_forgets_the_others_keep() -> None:
    """Forgetting takes all sources of one owner's name and nothing else."""
    mine = [ran(1), ran(2, family=EDITED), ran(3, resource=RAM)]
    theirs = ran(4, family=NOBODY)
    left = forget(from_observations([*mine, theirs]), "ada", "resnet-val")
    assert list(left.observations()) == [theirs]
    assert forget(left, "ada", "resnet-val") is left


def test_ram_does_not_know_the_device_model() -> None:
    """Two device models are one setting for RAM and two for their own memory."""
    models = (A100, "H100")
    on_ram = [ran(1, resource=RAM, device_model=model) for model in models]
    on_gpu = [ran(1, resource=VRAM, device_model=model) for model in models]
    assert len(from_observations(on_ram).tracks("ada", "resnet-val")) == 1
    assert len(from_observations(on_gpu).tracks("ada", "resnet-val")) == 2


@pytest.mark.parametrize("peak", [81_921, -1])
def test_an_impossible_reading_is_refused(peak: int) -> None:
    """No run held more than its device has, whatever a transient neighbour made it look like."""
    wrong = dataclasses.replace(ran(peak), device_total_bytes=81_920 * MB)
    assert sediment(Calibration(), wrong) == Calibration()
    assert from_observations([wrong]) == Calibration()


SEEDS = ("1", "2", "3")
LEVEL = {
    "three seeds": ([{"seed": s} for s in SEEDS], [1000, 1010, 1050], ("seed",)),
    "two seeds": ([{"seed": s} for s in SEEDS[:2]], [1000, 1000], ()),
    "more than 5 %": ([{"seed": s} for s in SEEDS], [1000, 1010, 1056], ()),
    "seed and fold vary together": (
        [{"seed": s, "fold": f"{s}0"} for s in SEEDS],
        [1000, 1000, 1000],
        ("fold", "seed"),
    ),
    "a word is never level": ([{"tag": f"t{s}"} for s in SEEDS], [1000, 1000, 1000], ()),
    "a number that was once a word": (
        [{"seed": s} for s in (*SEEDS, "none")],
        [1000, 1000, 1000, 1000],
        (),
    ),
    "batch matters, seed does not": (
        [{"batch": b, "seed": s} for b in ("8", "64") for s in SEEDS],
        [1000, 1010, 1020, 4000, 4010, 4020],
        ("seed",),
    ),
    "zoom matters, seed does not": (
        [{"zoom": z, "seed": s} for z in ("8", "32", "64") for s in SEEDS],
        [1000, 1010, 1020, 2000, 2010, 2020, 4000, 4010, 4020],
        ("seed",),
    ),
    "most seeds at one zoom": (
        [{"zoom": z, "seed": s} for z, s in (("1", "8"), ("2", "9"), *(("64", s) for s in SEEDS))],
        [1000, 2000, 4000, 4010, 4020],
        ("seed",),
    ),
    "seed matters at one batch": (
        [{"batch": b, "seed": s} for b in ("8", "64") for s in SEEDS],
        [1000, 1010, 1020, 4000, 5010, 4020],
        (),
    ),
    "seen with and without": ([{}, {"seed": "1"}, {"seed": "2"}], [1000, 1000, 1000], ("seed",)),
    "two values of a flag": (
        [{"amp": a, "seed": s} for a in ("0", "1") for s in SEEDS],
        [1000, 1001, 1002, 1003, 1004, 1005],
        ("seed",),
    ),
    "all at nothing": ([{"seed": s} for s in SEEDS], [0, 0, 0], ("seed",)),
    "no parameters": ([{}], [1000], ()),
}


@pytest.mark.parametrize(("settings", "peaks", "names"), LEVEL.values(), ids=LEVEL)
def test_numbers_are_level_where_three_values_peak_within_five_per_cent(
    settings: list[dict[str, str]], peaks: list[int], names: tuple[str, ...]
) -> None:
    """Three values of a number, all else equal, within 5 %: it is shown not to matter."""
    seen = [ran(p, parameters=s) for p, s in zip(peaks, settings, strict=True)]
    tracks = from_observations(seen).tracks("ada", "resnet-val")
    assert level_parameters(tracks) == names


def test_a_lower_bound_alone_can_show_that_a_parameter_matters() -> None:
    """A value that never completed and held far more speaks against the others."""
    seeds = [ran(1000, parameters={"seed": s}) for s in SEEDS]
    tracks = from_observations([*seeds, failed(900, parameters={"seed": "4"})])
    assert level_parameters(tracks.tracks("ada", "resnet-val")) == ("seed",)
    tracks = from_observations([*seeds, failed(1100, parameters={"seed": "4"})])
    assert level_parameters(tracks.tracks("ada", "resnet-val")) == ()


def test_a_lower_bound_says_nothing_where_the_need_is_known() -> None:
    """A value that has completed is judged by its peaks, however far a failed attempt came."""
    seeds = [ran(1000, parameters={"seed": s}) for s in SEEDS]
    failure = failed(2000, parameters={"seed": SEEDS[0]})
    tracks = from_observations([failure, *seeds]).tracks("ada", "resnet-val")
    assert level_parameters(tracks) == ("seed",)


@pytest.mark.parametrize(("later", "names"), [(9, ()), (10, ("seed",))])
def test_relevance_is_judged_by_the_ten_settings_seen_last(
    later: int, names: tuple[str, ...]
) -> None:
    """One odd seed speaks for as long as ten seeds after it have not been seen."""
    odd = ran(2000, parameters={"seed": "99"})
    seeds = [ran(1000 + k, parameters={"seed": str(k)}) for k in range(later)]
    tracks = from_observations([odd, *seeds]).tracks("ada", "resnet-val")
    assert level_parameters(tracks) == names


def test_the_source_is_part_of_what_an_observation_is_about() -> None:
    """An edited source begins with nothing, and the older one keeps what it had."""
    tracks = from_observations([ran(1), ran(2, family=EDITED)]).tracks("ada", "resnet-val")
    assert [(t.family, t.evidence.peaks) for t in tracks] == [
        (FAMILY, (1 * MB,)),
        (EDITED, (2 * MB,)),
    ]
