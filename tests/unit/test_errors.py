"""What a user of the gate may catch travels between processes and reads as one line."""

from __future__ import annotations

import copy
import pickle

import pytest

from jupyter_gpugate.client.errors import (
    GateError,
    GateUnreachable,
    RunCancelled,
    RunDetached,
    RunFailed,
)
from jupyter_gpugate.notebook.run import raise_for_end

STATE = {
    "run_id": "20261129-143600-abcde",
    "name": "a",
    "status": "ended",
    "end": "failed",
    "error": {"ename": "ValueError", "evalue": "first\nsecond", "traceback": ["one", "two"]},
}


@pytest.mark.parametrize("kind", [RunFailed, RunCancelled, RunDetached])
def test_an_end_travels_with_its_run(kind: type[RunFailed]) -> None:
    """A pickled or copied exception is the same one, with its state, its run id and its notes."""
    raised = kind("it is over", STATE)
    raised.__notes__ = ["a note"]
    for same in (pickle.loads(pickle.dumps(raised)), copy.copy(raised)):  # noqa: S301 - our own
        assert type(same) is kind
        assert str(same) == "it is over"
        assert same.run_id == "20261129-143600-abcde"
        assert vars(same) == vars(raised)


@pytest.mark.parametrize("kind", [GateError, GateUnreachable])
def test_a_refusal_travels_with_its_reason(kind: type[GateError]) -> None:
    """Code and status of the gate's answer are not lost on the way to another process."""
    same = pickle.loads(pickle.dumps(kind("no", code="state", status=409)))  # noqa: S301 - our own
    assert (type(same), str(same), same.code, same.status) == (kind, "no", "state", 409)


def test_a_failed_run_says_in_one_line_what_it_failed_of() -> None:
    """However many lines the exception of the run has, the first one is enough to know it."""
    with pytest.raises(RunFailed) as caught:
        raise_for_end(STATE)
    assert str(caught.value).count("\n") == 0
    assert str(caught.value).endswith(": ValueError: first")
    assert caught.value.evalue == "first\nsecond"
