"""Calls of the client to its gate: refusals, lost answers, long submits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.client import connection as clients
from jupyter_gpugate.client.connection import connect
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.places import SOCKET_VARIABLE
from tests.kit.gate_stand_in import PATIENCE_S, GateStandIn, gate_at

RUN = "20261129-143600-abcde"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this user's runtime folder an empty one, and no other place one of theirs."""
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(places, "spare_runtime_folder", lambda: tmp_path / "in-tmp")
    monkeypatch.setattr(places, "state_folders", lambda _environ: [tmp_path / "state"])
    return tmp_path


@pytest.fixture
def gate(runtime: Path) -> Iterator[GateStandIn]:
    """Serve in this user's runtime folder."""
    with gate_at(runtime / "gpugate" / "gpugate.sock") as gate:
        yield gate


# -- asking -----------------------------------------------------------------------------------


def test_a_refusal_keeps_the_gates_words_and_numbers(gate: GateStandIn) -> None:
    """What the gate says about a bad request reaches the caller whole; a person does not get the
    name of a field of the HTTP interface.
    """
    detail = {"field": "hints.ram_bytes", "limit_bytes": 24}
    body = {"error": "bad_input", "message": "hints.ram_bytes: needs more", "detail": detail}
    gate.refusals[("POST", "/runs")] = (400, body)
    with pytest.raises(GateError) as refusal:
        connect(start=False).submit({"name": "x"})
    assert refusal.value.message == "hints.ram_bytes: needs more"
    assert str(refusal.value) == "needs more"
    assert (refusal.value.code, refusal.value.status) == ("bad_input", 400)
    assert refusal.value.detail == detail


def test_a_gate_in_trouble_says_so_at_once(gate: GateStandIn) -> None:
    """A full disk is told to the user, not retried in silence."""
    body = {"error": "disk", "message": "the disk is full", "detail": {}}
    gate.refusals[("POST", "/runs")] = (503, body)
    with pytest.raises(GateUnreachable, match="the disk is full"):
        connect(start=False).submit({"name": "x"})
    assert len(gate.bodies("/runs")) == 1


def test_a_submit_whose_answer_was_lost_queues_one_run(gate: GateStandIn) -> None:
    """The repeated request carries the same key, so that the run is there once."""
    cut = threading.Event()

    def lose_the_first(_body: object) -> dict[str, str]:
        if not cut.is_set():
            cut.set()
            gate.refusals[("POST", "/runs")] = (0, None)
        return {}

    gate.on_submit = lose_the_first

    def mend() -> None:
        gate.wait_for(lambda: len(gate.bodies("/runs")) > 1)
        gate.refusals.clear()

    mended = threading.Thread(target=mend)
    gate.refusals[("POST", "/runs")] = (0, None)
    mended.start()
    answer = connect(start=False).submit({"name": "x", "idempotency_key": "k"})
    mended.join()
    assert list(gate.runs) == [answer["run_id"]]
    assert {body["idempotency_key"] for body in gate.bodies("/runs")} == {"k"}


def test_a_submit_that_takes_long_is_told_how_far_it_is(gate: GateStandIn) -> None:
    """It is asked for again under its key until it is a run."""
    told: list[str] = []
    reading = (202, {"run_id": None, "status": "reading"})
    gate.refusals[("POST", "/runs")] = reading

    def go_on(status: str) -> None:
        told.append(status)
        gate.refusals.clear()

    answer = connect(start=False).submit({"name": "x", "idempotency_key": "k"}, report=go_on)
    assert (told, list(gate.runs)) == (["reading"], [answer["run_id"]])
    assert len(gate.bodies("/runs")) >= 2


def test_a_gate_that_falls_silent_while_it_reads_is_told_as_such(
    gate: GateStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is left with a bare time-out: what was being done is said first."""
    monkeypatch.setattr(clients, "_PATIENCE_S", 0.0)
    gate.refusals[("POST", "/runs")] = (202, {"run_id": None, "status": "reading"})

    def fall_silent(_status: str) -> None:
        gate.refusals[("POST", "/runs")] = (0, None)

    with pytest.raises(GateUnreachable, match=r"still reading your sources \(\d+ s\)"):
        connect(start=False).submit({"name": "x", "idempotency_key": "k"}, report=fall_silent)


def test_an_unchanged_run_is_not_sent_again(gate: GateStandIn) -> None:
    """A look with the tag of what is known comes back empty until something has changed."""
    gate.put(RUN, status="queued")
    client = connect(start=False)
    first = client.run(RUN)
    assert first.body is not None
    assert client.run(RUN, wait_s=0.01, etag=first.etag).body is None
    gate.put(RUN, status="active")
    changed = client.run(RUN, wait_s=PATIENCE_S, etag=first.etag)
    assert changed.body is not None
    assert changed.body["status"] == "active"


def test_an_id_is_data_in_the_address(gate: GateStandIn) -> None:
    """Whatever is passed for an id names one run and cannot reach another route."""
    with pytest.raises(GateError, match="there is no run"):
        connect(start=False).run("../queue?x=1")
    assert gate.asked[-1].path == "/runs/../queue?x=1"


def test_a_closed_client_asks_no_more(gate: GateStandIn) -> None:
    """After close nothing is sent."""
    client = connect(start=False)
    client.close()
    with pytest.raises(GateUnreachable, match="closed"):
        client.queue()
    assert gate.asked == []


def test_a_gate_that_went_away_is_unreachable(gate: GateStandIn) -> None:
    """A closed socket is an answer of its own kind: the request may be repeated."""
    client = connect(start=False)
    gate.close()
    with pytest.raises(GateUnreachable, match=r"no gate (answers|in)"):
        client.queue()


def test_pauses_between_tries_grow_to_five_seconds() -> None:
    """A gate that comes back is not met by a storm."""
    pauses = clients.Pauses()
    taken = [pauses.next() for _ in range(7)]
    assert taken == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
