"""The body of a run that repeats an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.run_spec import FIELDS, REQUIRED
from jupyter_gpugate.runs.life import Life
from jupyter_gpugate.runs.record import Record, Refused
from jupyter_gpugate.runs.repeating import is_repetition, repetition_of
from jupyter_gpugate.runs.requests import request_of

SPEC = {
    **{field.name: field.default for field in FIELDS if field.default is not REQUIRED},
    "run_id": "20261201-105904-abcde",
    "name": "eval",
    "kind": "cell",
    "source": "pass",
    "source_hash": "h",
    "submitted": 0.0,
    "gpus": 1,
    "interpreter": "/py",
    "cwd": "/work",
}


def earlier(**spec: Any) -> Record:
    """A run that was submitted with this spec."""
    whole = {**SPEC, **spec}
    return Record(SPEC["run_id"], Path("/runs/x"), whole, {}, request_of(whole, "ada"), Life())


def test_only_a_name_without_code_is_a_repetition() -> None:
    """A source or a command is a run of its own, an empty source too."""
    assert is_repetition({"name": "a", "gpus": 0})
    assert not is_repetition({"name": "a", "source": ""})
    assert not is_repetition({"name": "a", "argv": ["true"]})


def test_every_option_is_repeated_and_every_given_one_counts() -> None:
    """Names of parameters, hints and chosen amounts are merged; the rest is replaced."""
    old = earlier(
        parameters={"batch": "8", "seed": "1"},
        memory_irrelevant=["seed"],
        hints={"ram_bytes": 5},
        workers=2,
        outputs=["y"],
        max_wait_s=9.0,
        exclusive=True,
    )
    given = {"parameters": {"seed": "2", "new": "3"}, "hints": {"vram_bytes": 7}, "workers": 1}
    body = repetition_of({"name": "eval", "memory_irrelevant": ["new"], **given}, old)
    assert body["parameters"] == {"batch": "8", "seed": "2", "new": "3"}
    assert body["memory_irrelevant"] == ["seed", "new"]
    assert body["hints"] == {"ram_bytes": 5, "vram_bytes": 7}
    assert (body["workers"], body["outputs"], body["exclusive"]) == (1, ["y"], True)
    assert (body["source"], body["interpreter"], body["cwd"]) == ("pass", "/py", "/work")
    assert (body["max_wait_s"], body["repeats"]) == (9.0, SPEC["run_id"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel", {"pid": 7, "start_ticks": 1, "boot_id": "b", "notebook": ""}),
        ("idempotency_key", "once"),
        ("detach", True),
        ("group", "sweep"),
        ("after", ["20261201-105900-aaaaa"]),
    ],
)
def test_what_belongs_to_one_submit_is_not_repeated(field: str, value: Any) -> None:
    """The process that waited, its key and its group are those of the earlier run alone."""
    body = repetition_of({"name": "eval"}, earlier(**{field: value}))
    assert body.get(field) != value
    assert repetition_of({"name": "eval", field: value}, earlier())[field] == value


def test_devices_that_were_left_to_the_gate_are_left_to_it_again() -> None:
    """Without a managed device the mask of the environment stays as it is."""
    assert repetition_of({"name": "eval"}, earlier(gpus=0, keeps_mask=True))["gpus"] is None
    assert repetition_of({"name": "eval"}, earlier(gpus=0))["gpus"] == 0
    assert repetition_of({"name": "eval", "gpus": 2}, earlier(keeps_mask=True))["gpus"] == 2


def test_inputs_may_be_given_anew() -> None:
    """Those of the earlier run are gone; each must be there."""
    old = earlier(inputs=["x", "y"])
    staged = {"names": ["x", "y"], "staged": "/s"}
    assert repetition_of({"name": "eval", "inputs": staged}, old)["inputs"] == staged
    with pytest.raises(Refused, match="had copies of y from its notebook"):
        repetition_of({"name": "eval", "inputs": {"names": ["x"], "staged": "/s"}}, old)


def test_a_run_whose_record_is_damaged_is_not_repeated() -> None:
    """The message has the reason."""
    old = earlier()
    old.problem = "its spec.json cannot be read: is empty"
    with pytest.raises(Refused, match=r"cannot be repeated: its spec\.json cannot be read"):
        repetition_of({"name": "eval"}, old)
