"""Every value of the core goes through JSON and comes back, and a wrong field is named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpugate.core.codec import LARGEST, ProtocolError, from_json, to_json
from jupyter_gpugate.core.events import EVENT_TYPES
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.leases import Lingering, RunLease
from jupyter_gpugate.core.messages import MESSAGES
from jupyter_gpugate.core.queued import Queued
from jupyter_gpugate.core.requests import Grant, Request
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import Traits

ANSWERS = dict.fromkeys(kind.answer for kind in MESSAGES)
KINDS = [
    *EVENT_TYPES.values(),
    *MESSAGES,
    *ANSWERS,
    Grant,
    Lingering,
    Observation,
    Queued,
    Request,
    RunLease,
    Traits,
]
#: Numbers that a message may hold; the limit itself has no exact float.
INTEGERS = st.integers(-LARGEST, LARGEST)
FLOATS = st.floats(-LARGEST / 2, LARGEST / 2, allow_nan=False)
#: What no field of a message may be.
WRONG: tuple[Any, ...] = ({"no": ["such"]}, ["nothing", {"like": "it"}, None, 7.5])


@pytest.fixture(autouse=True, scope="module")
def numbers_within_the_limit() -> Iterator[None]:
    """Draw the numbers of every message from those that it may hold."""
    st.register_type_strategy(int, INTEGERS)
    st.register_type_strategy(float, FLOATS)
    yield
    st.register_type_strategy(int, st.integers())
    st.register_type_strategy(float, st.floats())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_a_value_comes_back_from_json_as_it_was(kind: type, data: st.DataObject) -> None:
    """Written and read again it is the same value, of the same kind, field by field."""
    value = data.draw(st.from_type(kind))
    text = json.dumps(to_json(value))
    back: object = from_json(kind, json.loads(text))
    assert type(back) is kind
    assert json.dumps(to_json(back)) == text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_a_field_that_is_wrong_is_named(kind: type, data: st.DataObject) -> None:
    """Whichever field of a message is spoilt, the error says which one it was."""
    message = json.loads(json.dumps(to_json(data.draw(st.from_type(kind)))))
    name = data.draw(st.sampled_from(sorted(message)))
    message[name] = data.draw(st.sampled_from(WRONG))
    with pytest.raises(ProtocolError) as caught:
        from_json(kind, message)
    assert caught.value.field.split("[")[0].split(".")[:2] == ["message", name]
    assert caught.value.problem


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_a_field_too_many_is_named(kind: type, data: st.DataObject) -> None:
    """A misspelt option is an error and never ignored."""
    message = to_json(data.draw(st.from_type(kind)))
    with pytest.raises(ProtocolError, match=r"message\.misspelt: is not a field"):
        from_json(kind, {**message, "misspelt": 1})


@pytest.mark.parametrize(
    "number",
    [math.nan, math.inf, -math.inf, 10**400, LARGEST + 1],
    ids=["not a number", "infinite", "minus infinity", "400 digits", "one too large"],
)
def test_a_number_beyond_the_limit_is_refused(number: float) -> None:
    """A number that nothing on a machine can have is an error that names its field."""
    message = to_json(Traits())
    with pytest.raises(ProtocolError, match=r"message\.head_after_s: is not a number"):
        from_json(Traits, {**message, "head_after_s": number})


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_no_data_whatever_is_taken_for_a_message(value: object) -> None:
    """What is no object is refused as a whole, in words."""
    with pytest.raises(ProtocolError, match="message: must be an object"):
        from_json(Sample, value)
