"""Values of parameters as the gate knows them: numbers as they are, words by their digests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.parameters import (
    digest_of,
    is_shown,
    number_of,
    scrubbed,
    shown,
    without_words,
)
from jupyter_gpugate.core.requests import Setting

PAIRS = st.lists(st.tuples(st.text(), st.text()), max_size=4)


@given(PAIRS)
def test_a_setting_without_words_is_itself_from_then_on(pairs: list[tuple[str, str]]) -> None:
    """Names stay in their order, every word is a digest, and a second time changes nothing."""
    setting = Setting(workers=2, parameters=tuple(pairs), episodes=3, runtime="torch 2")
    private = without_words(setting)
    assert [name for name, _ in private.parameters] == [name for name, _ in pairs]
    assert all(is_shown(value) for _, value in private.parameters)
    assert without_words(private) == private
    assert (private.workers, private.episodes, private.runtime) == (2, 3, "torch 2")
    assert scrubbed([{"setting": to_json(setting)}]) == [{"setting": to_json(private)}]


@given(st.text(), st.text(), st.text(), st.text())
def test_words_that_differ_have_digests_that_differ(a: str, b: str, c: str, d: str) -> None:
    """The same word as the value of another parameter has another one."""
    if "\0" not in a + c:
        assert (digest_of(a, b) == digest_of(c, d)) == ((a, b) == (c, d))


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), ("8.0", 8), ("-3", -3), (".5", 0.5), ("1e-4", 0.0001), ("+2", 2), ("1E3", 1000)],
)
def test_a_number_is_known_by_its_amount(text: str, number: float) -> None:
    """However it is written; the name of its parameter does not matter."""
    assert number_of(shown("batch", text)) == number
    assert shown("batch", text) == shown("seed", repr(float(number)))


@pytest.mark.parametrize(
    "text",
    ["", "large", "8GB", "1,000", "nan", "inf", "1e999", "0x10", "1_000", "٣", "True", "8 ", "#f"],
)
def test_everything_else_is_a_word(text: str) -> None:
    """No byte of it reaches the gate."""
    value = shown("model", text)
    assert value == digest_of("model", text)
    assert number_of(value) is None


@pytest.mark.parametrize("value", ["=1.2.3", "=1e999", "=1.", "==1.2.3", "=", "=x"])
def test_what_only_looks_like_a_number_of_the_gate_is_a_word(value: str) -> None:
    """An older sender's text is digested, and never read as a number."""
    assert number_of(value) is None
    (pair,) = without_words(Setting(workers=1, parameters=(("torch", value),))).parameters
    assert pair == ("torch", digest_of("torch", value))


def test_a_long_number_is_a_word() -> None:
    """It may be a key."""
    assert number_of(shown("key", "1234567890123456")) is None


def test_what_is_no_setting_stays_as_it_is() -> None:
    """Other fields of the same name, and what only looks like pairs, are left alone."""
    for data in ({"parameters": [["a", "b"]]}, {"workers": 1, "parameters": [["a", 1], "b"]}, 1):
        assert scrubbed(data) == data
