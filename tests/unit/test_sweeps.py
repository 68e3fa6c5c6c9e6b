"""The values of a sweep and the runs that they make."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import Any

import pytest

from jupyter_gpugate.client.errors import SubmissionError
from jupyter_gpugate.client.keywords import namespace
from jupyter_gpugate.client.options import PROGRAM_OPTIONS, RUN_OPTIONS
from jupyter_gpugate.client.submission import program
from jupyter_gpugate.client.sweeps import bodies, points, swept


def options(**given: Any) -> Namespace:
    """The options of a command."""
    found = namespace((*RUN_OPTIONS, *PROGRAM_OPTIONS), given)
    found.name = "eval"
    return found


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch=8,16,32", ["8", "16", "32"]),
        ("seed=0..3", ["0", "1", "2", "3"]),
        ("x=-1..1", ["-1", "0", "1"]),
        ("x=0..1,5,a b", ["0", "1", "5", "a b"]),
        ("lr=1e-3, 1e-4", ["1e-3", "1e-4"]),
        ("model=small", ["small"]),
        ("path=../a,../b", ["../a", "../b"]),
    ],
)
def test_a_sweep_lists_values_and_ranges(text: str, values: list[str]) -> None:
    """Both ends of a range are included."""
    assert swept(text) == (text.partition("=")[0], values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch", "must be NAME=VALUES, such as batch=8,16,32 or seed=0..9"),
        ("=1,2", "must be NAME=VALUES"),
        ("batch=", "must be NAME=VALUES"),
        ("batch=8,,16", "has an empty value"),
        ("batch=8,16,8.0", "has the value 8 more than once"),
        ("x=0..3,2", "has the value 2 more than once"),
        ("seed=9..0", "counts down: write 0..9"),
        ("seed=1..100000", "has 100,000 values, the maximum of a sweep is 500"),
    ],
)
def test_wrong_values_are_refused(text: str, says: str) -> None:
    """In one sentence that says what to write instead."""
    with pytest.raises(ArgumentTypeError) as refusal:
        swept(text)
    assert says in str(refusal.value)


def test_several_sweeps_make_every_combination() -> None:
    """In the order of the values, the last one fastest; each submit is one of its own."""
    sweep = {"batch": [8, 16], "model": "a,b"}
    asked = options(sweep=sweep, sweep_free={"seed": range(2)}, at_most=2, after="first")
    found = points(asked)
    assert len(found) == 8
    assert found[1] == {"batch": "8", "model": "a", "seed": "1"}
    body = program(asked, ["eval", "{batch}", "{model}", "{seed}"])
    assert body["memory_irrelevant"] == ["seed"]
    assert (body["at_most"], body["after"]) == (2, ["first"])
    assert not {"at_most", "after"} & set(program(options(), ["eval"]))
    made = list(bodies({**body, "parameters": {"lr": "1"}}, found, "g20260914-101502-kqzfa"))
    assert made[7]["parameters"] == {"lr": "1", "batch": "16", "model": "b", "seed": "1"}
    assert {one["group_size"] for one in made} == {8}
    assert len({one["idempotency_key"] for one in made}) == 8
    assert points(options()) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sweep": {"x": [1]}, "parameters": {"x": 2}}, "--set gives x one value as well"),
        ({"sweep": {"x": [1]}, "sweep_free": {"x": [2]}}, "x is given more than once"),
        ({"sweep": {"x": range(100), "y": range(6)}}, "600 runs are too many, the maximum is 500"),
        ({"at_most": 2}, "--at-most limits the runs of a sweep: add --sweep"),
        ({"sweep": {"x": [1]}, "service": True}, "cannot have --sweep"),
        ({"sweep": {"z": [1]}}, "the command does not contain {z}, so every run would be the same"),
        ({"sweep": {"q": [1]}}, "the command does not contain {q}"),
        ({"sweep": ["x"]}, "must be a dict"),
        ({"sweep": {"x": []}}, "has no values"),
    ],
)
def test_a_sweep_that_contradicts_itself_is_refused(given: dict[str, Any], says: str) -> None:
    """Before anything is submitted."""
    with pytest.raises(SubmissionError) as refusal:
        program(options(**given), ["eval", "{x}", "{y}", "{{q}}"])
    assert says in str(refusal.value)
