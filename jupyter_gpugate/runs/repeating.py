"""Runs that are submitted again by their name: the newest source or command, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jupyter_gpugate.core.run_spec import FIELDS, REQUIRED
from jupyter_gpugate.runs.record import Record, Refused

#: Fields that are of one submit; the environment, which may hold keys, is not kept.
_OF_ONE_SUBMIT: Final = frozenset(
    {
        *("idempotency_key", "kernel", "detach", "environment", "inputs"),
        *("group", "group_size", "at_most", "after"),
    }
)
#: Fields whose values are added to those of the earlier run, name by name.
_MERGED: Final = ("parameters", "hints", "chosen")
#: A choice of devices is one choice, in whatever fields.
_CHOICE: Final = ("device", "device_model")


def is_repetition(body: Mapping[str, Any]) -> bool:
    """Return whether a body names a run and says nothing of its source or command."""
    return body.get("source") is None and body.get("argv") is None


def repetition_of(given: Mapping[str, Any], earlier: Record | None) -> dict[str, Any]:
    """Return the body of a run that repeats an earlier one, except for the fields that are given.

    Raises `Refused` naming the part that cannot be repeated.
    """
    if earlier is None:
        problem = f"no run is named {given['name']} yet: give a source, or an argv"
        raise Refused(400, "nothing_to_repeat", f"source: {problem}", field="source")
    spec = earlier.spec
    _refuse_unrepeatable(earlier, given)
    of_spec = {f.name: spec[f.name] for f in FIELDS if spec.get(f.name) is not None}
    if spec.get("keeps_mask"):  # it was left to the gate, which had no device to give
        del of_spec["gpus"]
    for name in _replaced(of_spec, given):
        of_spec.pop(name, None)
    body = {
        **{field.name: field.default for field in FIELDS if field.default is not REQUIRED},
        **{name: value for name, value in of_spec.items() if name not in _OF_ONE_SUBMIT},
        **given,
        **{name: {**(spec.get(name) or {}), **(given.get(name) or {})} for name in _MERGED},
        "memory_irrelevant": _union(spec, given, "memory_irrelevant"),
        "repeats": earlier.run_id,
    }
    _refuse_workers_of_a_program(body, given)
    return body


def _replaced(of_spec: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of the earlier run that a new choice of devices replaces."""
    if given.get("gpus") == 0:
        return _CHOICE
    if not any(given.get(name) for name in _CHOICE):
        return ()
    # A run without a GPU that is given one gets it.
    return _CHOICE if of_spec.get("gpus") else (*_CHOICE, "gpus")


def _union(spec: Mapping[str, Any], given: Mapping[str, Any], name: str) -> list[str]:
    return list(dict.fromkeys([*(spec.get(name) or ()), *(given.get(name) or ())]))


def _refuse_unrepeatable(earlier: Record, given: Mapping[str, Any]) -> None:
    who = f"{earlier.run_id}, the newest run of this name,"
    if earlier.problem or not (earlier.spec.get("source") or earlier.spec.get("argv")):
        problem = f"source: {who} cannot be repeated: {earlier.problem or 'its source is lost'}"
        raise Refused(400, "not_repeatable", problem, field="source", run_id=earlier.run_id)
    staged = (given.get("inputs") or {}).get("names") or ()
    names = [name for name in earlier.spec.get("inputs") or () if name not in staged]
    if names:
        raise Refused(
            400,
            "not_repeatable",
            f"inputs: {who} had copies of {', '.join(names)} from its notebook, which are not kept:"
            " run its cell again",
            field="inputs",
            run_id=earlier.run_id,
            inputs=names,
        )


def _refuse_workers_of_a_program(body: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for name in ("workers", "episodes"):
        if body.get("argv") is not None and given.get(name, 1) != 1:
            problem = f"{body['repeats']} is a program, which has one worker and one episode"
            raise Refused(400, "bad_request", f"{name}: {problem}", field=name)
