"""Values of parameters are known by their digests alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.private import digest_of, is_digest, scrubbed, without_values
from jupyter_gpugate.core.requests import Setting

PAIRS = st.lists(st.tuples(st.text(), st.text()), max_size=4)


@given(PAIRS)
def test_a_setting_without_values_is_itself_from_then_on(pairs: list[tuple[str, str]]) -> None:
    """Names stay in their order, every value is a digest, and a second time changes nothing."""
    setting = Setting(workers=2, parameters=tuple(pairs), episodes=3, runtime="torch 2")
    private = without_values(setting)
    assert [name for name, _ in private.parameters] == [name for name, _ in pairs]
    assert all(is_digest(value) for _, value in private.parameters)
    assert without_values(private) == private
    assert (private.workers, private.episodes, private.runtime) == (2, 3, "torch 2")
    assert scrubbed([{"setting": to_json(setting)}]) == [{"setting": to_json(private)}]


@given(st.text(), st.text(), st.text(), st.text())
def test_values_that_differ_have_digests_that_differ(a: str, b: str, c: str, d: str) -> None:
    """The same value of another parameter has another one."""
    if "\0" not in a + c:
        assert (digest_of(a, b) == digest_of(c, d)) == ((a, b) == (c, d))


def test_what_is_no_setting_stays_as_it_is() -> None:
    """Other fields of the same name, and what only looks like pairs, are left alone."""
    for data in ({"parameters": [["a", "b"]]}, {"workers": 1, "parameters": [["a", 1], "b"]}, 1):
        assert scrubbed(data) == data
