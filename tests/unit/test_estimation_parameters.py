"""What a run is said to need with parameters that differ from those of earlier runs."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.core.estimates import Estimate, EstimateTerm, Origin
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.resources import RAM
from tests.kit.estimates import mb, term
from tests.kit.observations import failed, ran, ran_out, with_setting

GB = 1000  # in MB, for sums by hand


def swept(name: str, peaks: dict[str, float], **fields: Any) -> list[Observation]:
    """One run with each value of a parameter."""
    return [ran(p, parameters={name: value}, **fields) for value, p in peaks.items()]


def asked(history: list[Observation], hint: int | None = None, **values: str) -> EstimateTerm:
    """The estimate of a run with these parameters."""
    setting = with_setting(parameters=tuple(sorted(values.items())))
    return term(history, setting, hint=None if hint is None else mb(hint))


BATCHES = swept("batch", {"8": 3 * GB, "16": 5 * GB, "32": 9 * GB})


@pytest.mark.parametrize(
    ("batch", "peak", "need"),
    [
        ("4", 3000, 3000 * 1.1 + 64),  # the need of the least
        ("24", 7000, 7000 * 1.1 + 64),
        ("48", 13_000, 13_000 * 1.25 + 64),
        ("64", 17_000, 17_000 * 1.25 + 64),
    ],
)
def test_a_number_is_fitted_within_reach(batch: str, peak: float, need: float) -> None:
    """From the least value down, on the line between, and up to twice the greatest."""
    found = asked(BATCHES, batch=batch)
    assert found.origin is Origin.FITTED
    assert found.peak_bytes == pytest.approx(mb(peak), abs=2)
    assert found.need_bytes == pytest.approx(mb(need), abs=3)


def test_a_number_out_of_reach_has_no_need_but_a_prior() -> None:
    """It is what the line leads to; the estimate says so."""
    found = asked(BATCHES, batch="128")
    assert (found.need_bytes, found.origin, found.unknown_parameters) == (None, None, ("batch",))
    assert found.prior_bytes == pytest.approx(mb(33_000 * 1.25 + 64), abs=3)
    assert found.note == (
        "never run with batch = 128, more than twice the greatest value that was run (32); "
        "the line leads to 41,314 MB there"
    )


def test_one_value_makes_no_line() -> None:
    """The next value is watched, and what the first one needed is its prior."""
    found = asked(BATCHES[:1], batch="16")
    assert (found.need_bytes, found.prior_bytes) == (None, mb(3364))
    assert found.note == "never run with batch = 16; others needed up to 3,364 MB"


def test_a_line_that_bends_upwards_is_followed() -> None:
    """Between two values the need is no less than their chord, beyond it goes on bending."""
    squares = swept("length", {"1": 100, "2": 400, "4": 1600, "8": 6400})
    for value in (3, 5, 6, 7, 9, 12, 16):
        found = asked(squares, length=str(value))
        assert found.need_bytes is not None
        assert found.need_bytes >= mb(100 * value * value)


def test_between_two_values_the_need_lies_between_theirs() -> None:
    """However odd the line, and never less than a smaller value needed."""
    history = swept("shards", {"1": 16 * GB, "2": 8 * GB, "4": 4 * GB})
    assert asked(history, shards="3").need_bytes == mb(16 * GB * 1.1 + 64)
    assert asked(history, shards="8").need_bytes == mb(16 * GB * 1.1 + 64)


def test_a_word_that_was_never_run_has_no_number() -> None:
    """Whatever other words needed: theirs is the prior, and the estimate says so."""
    history = swept("model", {"small": 2 * GB, "medium": 4 * GB})
    found = asked(history, model="large")
    assert (found.need_bytes, found.prior_bytes) == (None, mb(4464))
    assert found.note == "never run with this model; others needed up to 4,464 MB"
    assert not found.is_prior_close


def test_an_authors_hint_counts_where_a_value_was_never_run() -> None:
    """2.3 GB of another model do not overrule it, nor do batches within another reach."""
    history = swept("model", {"small": 2 * GB})
    found = asked(history, hint=16 * GB, model="large")
    assert (found.origin, found.need_bytes) == (Origin.HINT, mb(17_664))
    assert asked(BATCHES, hint=16 * GB, batch="128").origin is Origin.HINT
    assert asked(BATCHES, hint=16 * GB, batch="64").origin is Origin.FITTED


def test_values_that_the_gate_does_not_know_are_put_into_the_note() -> None:
    """Each once, whatever it contains, and whichever name begins another one."""
    history = [ran(2 * GB, parameters={"model": "small", "model_size": "s", "size": "s"})]
    asked_for = {"model": "this size", "model_size": "x" * 50, "size": "l"}
    found = Estimate((asked(history, None, **asked_for),)).with_values(asked_for).terms[0]
    assert found.note.startswith(
        f"never run with model = this size, model_size = {'x' * 40}..., size = l; others"
    )
    assert Estimate((asked(history, model="b"),)).with_values({}).terms[0].note.count("this model")


@pytest.mark.parametrize(
    ("peaks", "is_close"),
    [
        ([1000, 1010, 1020, 1030, 1050], True),
        ([1000, 1010, 1020, 1030], False),
        ([1000, 1010, 1020, 1030, 1060], False),
    ],
)
def test_many_words_that_needed_the_same_make_a_close_prior(
    peaks: list[float], is_close: bool
) -> None:
    """Five words within 5 %: the watch run is charged what they needed, and not twice."""
    history = swept("prompt", {f"p{k}": peak for k, peak in enumerate(peaks)})
    found = asked(history, prompt="new")
    assert (found.need_bytes, found.is_prior_close) == (None, is_close)


def test_a_level_number_needs_what_the_others_needed() -> None:
    """Three or more values within 5 %; up to twice the greatest, and the estimate says so."""
    history = swept("seed", {"0": 2000, "1": 2010, "2": 2020})
    found = asked(history, seed="3")
    assert (found.origin, found.n, found.peak_bytes) == (Origin.FITTED, 3, mb(2020))
    assert found.note == "level over seed 0, 1, 2"
    assert asked(history, seed="5").need_bytes is None


def test_a_level_number_beside_one_that_matters() -> None:
    """Seeds are level at each batch; the line over batches takes all of them."""
    history = [
        ran(p + int(seed), parameters={"batch": batch, "seed": seed})
        for batch, p in (("8", 3000), ("16", 5000))
        for seed in ("0", "1", "2")
    ]
    found = asked(history, batch="24", seed="4")
    assert (found.origin, found.n) == (Origin.FITTED, 6)
    assert found.peak_bytes == pytest.approx(mb(7002), abs=2)
    assert asked(history, batch="16", seed="4").note == "level over seed 0, 1, 2"


def test_two_numbers_that_both_matter_are_fitted_one_at_a_time() -> None:
    """A line needs settings that are otherwise equal; a new combination has none."""
    history = [
        ran(p, parameters={"batch": b, "length": n})
        for b, n, p in (("8", "1", 1000), ("16", "1", 2000), ("8", "2", 2500))
    ]
    assert asked(history, batch="12", length="1").origin is Origin.FITTED
    corner = asked(history, batch="16", length="2")
    assert corner.need_bytes is None
    assert corner.note.startswith("never run with these values together: batch, length")


def test_a_setting_that_ran_out_of_memory_is_above_its_line() -> None:
    """1.5 times what it ran out at; greater values need at least what it held."""
    history = [*BATCHES, ran_out(12 * GB, parameters={"batch": "24"})]
    assert asked(history, batch="24").need_bytes == mb(18 * GB)
    assert asked(history, batch="28").need_bytes == mb(12 * GB)
    assert asked(history, batch="12").need_bytes == pytest.approx(mb(4464), abs=2)


def test_a_failed_attempt_never_makes_a_word_known() -> None:
    """It only raises what the next attempt is charged."""
    history = [*swept("model", {"small": 2 * GB}), failed(9 * GB, parameters={"model": "large"})]
    found = asked(history, model="large")
    assert (found.need_bytes, found.lower_bound_bytes) == (None, mb(9 * GB))


def test_a_word_measured_on_another_device_is_scaled_from_there() -> None:
    """It was run: another model of GPU, runtime or number of episodes changes how, not whether."""
    history = swept("model", {"small": 2 * GB, "large": 9 * GB}, device_model="H100")
    found = asked(history, model="large")
    assert (found.origin, found.need_bytes) == (Origin.SCALED, mb(9964))
    assert asked(history, model="huge").need_bytes is None


def test_programs_that_fill_what_they_are_given_do_not_grow_along_a_sweep() -> None:
    """A line over amounts that were enough asks for no more."""
    history = [
        ran(19_000, cap_mb=20_000, charge_mb=20_000, parameters={"seed": str(seed)})
        for seed in range(2)
    ]
    assert asked(history, seed="2").need_bytes == mb(20_000)


def test_each_resource_has_its_own_reach() -> None:
    """RAM that was measured stands beside GPU memory that was not."""
    history = [*BATCHES, ran(1000, resource=RAM, parameters={"batch": "128"})]
    setting = with_setting(parameters=(("batch", "128"),))
    assert term(history, setting, resource=RAM).origin is Origin.MEASURED
    assert term(history, setting).need_bytes is None
