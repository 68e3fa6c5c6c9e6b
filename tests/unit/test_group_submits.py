"""The submits of a group: refused, cut off or cancelled in the middle."""

from __future__ import annotations

from typing import Any, cast

import pytest

from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError, GateUnreachable, Interrupted
from jupyter_gpugate.client.groups import SubmittedGroup, Sweep, submit_group
from jupyter_gpugate.client.waiting import Interrupts, Patience
from jupyter_gpugate.terminal.sweeping import GroupProgress

BODY = {"name": "sweep", "source": "params"}
POINTS = [{"batch": str(n)} for n in (8, 16, 32, 64)]


class Gate:
    """The calls of a client that submits a group; it answers as a test says."""

    def __init__(self, *answers: Exception | str) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.cancelled: list[str] = []

    def submit(self, body: dict[str, Any], **_how: Any) -> dict[str, Any]:
        self.bodies.append(body)
        answer = self.answers.pop(0) if self.answers else f"run-{len(self.bodies)}"
        if isinstance(answer, Exception):
            raise answer
        return {"run_id": answer, "status": "queued"}

    def cancel_group(self, group: str) -> dict[str, Any]:
        self.cancelled.append(group)
        return {"group": group, "runs": {}, "refused": {}}

    def runs(self, _most: int, **_asked: str) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        """End nothing: no call of this client waits."""


def submitted(gate: Gate, interrupts: Interrupts | None = None) -> SubmittedGroup:
    """Submit the group."""
    patience = Patience(interactive=False)
    return submit_group(
        cast("Client", gate), Sweep(BODY, POINTS), interrupts or Interrupts(), patience
    )


def test_every_run_of_a_group_is_a_submit_of_its_own() -> None:
    """They share the group, and differ in their parameters and keys."""
    gate = Gate()
    found = submitted(gate)
    assert found.run_ids == ["run-1", "run-2", "run-3", "run-4"]
    assert [body["parameters"] for body in gate.bodies] == POINTS
    assert {body["group"] for body in gate.bodies} == {found.group}
    assert {body["group_size"] for body in gate.bodies} == {4}
    assert len({body["idempotency_key"] for body in gate.bodies}) == 4


def test_if_one_is_refused_those_before_it_are_cancelled() -> None:
    """The error names its parameters, and keeps the gate's code and numbers."""
    refusal = GateError("needs 30 GB", code="impossible", status=400, detail={"field": "name"})
    gate = Gate("a", "b", refusal)
    with pytest.raises(GateError) as refused:
        submitted(gate)
    told = "batch=32: needs 30 GB; the 2 runs that were queued before it are cancelled"
    assert str(refused.value) == told
    assert (refused.value.code, refused.value.status) == ("impossible", 400)
    assert gate.cancelled == [gate.bodies[0]["group"]]
    first = Gate(refusal)
    with pytest.raises(GateError, match=r"^batch=8: needs 30 GB$"):
        submitted(first)
    assert first.cancelled == []


def test_if_the_gate_is_gone_the_error_says_how_far_it_came() -> None:
    """Nothing is cancelled: the runs are of the group, and go on."""
    gate = Gate("a", "b", GateUnreachable("the gate does not answer", status=503))
    with pytest.raises(GateUnreachable) as error:
        submitted(gate)
    group = gate.bodies[0]["group"]
    assert str(error.value) == (
        f"the gate does not answer; 2 of 4 runs were submitted, as group {group}"
    )
    assert gate.cancelled == []


def test_an_interrupt_that_cancels_ends_the_submits() -> None:
    """The rest is not submitted; before the first, nothing is."""
    interrupts = Interrupts()
    gate = Gate()
    submit = gate.submit

    def interrupted(body: dict[str, Any], **how: Any) -> dict[str, Any]:
        interrupts.count = len(gate.bodies)
        return submit(body, **how)

    gate.submit = interrupted  # type: ignore[method-assign]
    found = submitted(gate, interrupts)
    assert (len(found.run_ids), found.size) == (2, 4)
    early = Interrupts()
    early.count = 1
    with pytest.raises(Interrupted, match="nothing was queued yet"):
        submitted(Gate(), early)


def test_a_terminal_says_of_a_long_submit_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And every change of the numbers of runs afterwards, at once and once."""
    now = 0.0
    progress = GroupProgress(clock=lambda: now)
    for submitted_runs in range(10):
        now += 1
        progress.show({"group": "g1"}, f"submitted {submitted_runs} of 10 runs")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"g1 submitted {n} of 10 runs" for n in (4, 9)]
    for counts in ({"queued": 2}, {"queued": 2}, {"completed": 2}):
        progress.show({"group": "g1", "name": "sweep", "counts": counts}, "")
    assert capsys.readouterr().err.splitlines() == [
        "g1 sweep · 2 runs: 2 waiting",
        "g1 sweep · 2 runs: 2 completed",
    ]
