"""What is wrong is said in one form, names its field, and repeats nothing that may be a secret."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest

from tests.kit.real_server import Answer, Served

CANARY = "canary-4f1d"
CELL = {"name": "x", "source": "1", "gpus": 0}
HUGE = 10**400


class _Line(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def directly(server: Served, path: str, body: bytes) -> Answer:
    """Post to the gate's own socket."""
    line = _Line(str(server.places.socket))
    try:
        line.request("POST", path, body)
        response = line.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        line.close()


def refused(answer: Answer, *statuses: int) -> Any:
    """What a refusal says, in the form that all of them have."""
    assert answer.status in statuses, answer.body
    told = answer.json
    assert set(told) == {"error", "message", "detail"}
    return told


@pytest.mark.parametrize(
    "wrong",
    [
        {"environment": {"KEY": [CANARY]}},
        {"environment": {"KEY": f"{CANARY}\0"}},
        {"environment": {f"KEY={CANARY}": "x"}},
        {"environment": [CANARY]},
        {"environment": f"KEY={CANARY}"},
        {"environment": {"KEY": {"deep": CANARY}}},
        {"environ": {"KEY": CANARY}},
        {"parameters": {"key": [CANARY]}},
        {"parameters": {f"key {CANARY}": "x"}},
        {"parameters": f"key={CANARY}"},
        {"memory_irrelevant": CANARY},
        {"source": [CANARY]},
        {"source": None, "argv": [["run", CANARY]]},
        {"source": None, "argv": f"run --key {CANARY}"},
        {"path": [f"/{CANARY}\0"]},
        {"idempotency_key": CANARY * 50},
        {"kernel": CANARY},
        {"kernel": {"pid": CANARY, "start_ticks": 1, "boot_id": "x"}},
        {"inputs": {"staged": [CANARY]}},
        {"name": {"KEY": CANARY}},
        {"hints": {"ram_bytes": [CANARY]}},
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("path", ["/runs", "/estimate"])
def test_no_error_repeats_what_may_be_a_secret(
    shared_server: Served, path: str, wrong: dict[str, Any]
) -> None:
    """The field is named, and what is wrong with it; its value is the caller's own business."""
    answer = shared_server.ask("POST", path, {**CELL, **wrong})
    told = refused(answer, 400)
    assert CANARY.encode() not in answer.body
    assert told["detail"]["field"].partition(".")[0] in {*wrong, "body"}


def test_a_number_that_is_wrong_is_repeated(shared_server: Served) -> None:
    """What cannot be a secret helps to find the mistake."""
    told = refused(shared_server.ask("POST", "/runs", {**CELL, "episodes": -3}), 400)
    assert told["detail"] == {"field": "episodes", "value": "-3"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cwd": "/" + "x" * 300}, "cwd"),
        ({"cwd": "/x" * 3000}, "cwd"),
        ({"interpreter": "/bin/true"}, "interpreter"),
        ({"interpreter": "/bin/cat"}, "interpreter"),
        ({"interpreter": "/" + "x" * 5000}, "interpreter"),
        ({"interpreter": "/etc/passwd"}, "interpreter"),
        ({"interpreter": "/"}, "interpreter"),
        ({"episodes": HUGE}, "episodes"),
        ({"hints": {"ram_bytes": HUGE}}, "hints.ram_bytes"),
        ({"max_wait_s": HUGE}, "max_wait_s"),
        ({"source": "def"}, "source"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_read_or_run_is_the_callers_mistake(
    shared_server: Served, fields: dict[str, Any], field: str
) -> None:
    """However odd a value is, its field is named, and nothing is queued."""
    told = refused(shared_server.ask("POST", "/runs", {**CELL, **fields}), 400)
    assert told["detail"]["field"] == field
    assert len(told["message"]) < 1000


BEAT = {"run_id": "none", "fence": 1}
REQUEST = {
    "run_id": "20260101-000000-aaaaa",
    "family": {"owner": "x", "name": "x", "source_hash": "h", "gpus": 0},
    "setting": {"workers": 1},
}


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("heartbeat", b"[" * 200_000),
        ("heartbeat", b'{"run_id":' * 50_000),
        ("heartbeat", b"\xff\xfe"),
        ("heartbeat", b"{"),
        ("heartbeat", b"null"),
        ("heartbeat", b"[]"),
        ("heartbeat", {**BEAT, "report": {"ram_held_bytes": HUGE}}),
        ("heartbeat", {**BEAT, "report": {"ram_age_s": -HUGE}}),
        ("heartbeat", {**BEAT, "report": {"ram_age_s": float("nan")}}),
        ("heartbeat", {**BEAT, "report": {"ram_age_s": float("inf")}}),
        ("heartbeat", {**BEAT, "tree": [[HUGE, 1]]}),
        ("heartbeat", {**BEAT, "phase": []}),
        ("heartbeat", {**BEAT, "phase": {}}),
        ("heartbeat", {**BEAT, CANARY * 100: 1}),
        ("finished", {**BEAT, "end": {"outcome": "completed", "duration_s": HUGE}}),
        ("request", {"request": {**REQUEST, "run_id": "../.."}, "run_side": "x"}),
        ("request", {"request": {**REQUEST, "run_id": "x" * 100_000}, "run_side": "x"}),
        ("request", {"request": {**REQUEST, "run_id": "\ud800"}, "run_side": "x"}),
        ("request", {"request": {**REQUEST, "run_id": ""}, "run_side": "x"}),
        ("request", {"request": {**REQUEST, "max_wait_s": HUGE}, "run_side": "x"}),
        ("request", {"request": {**REQUEST, "hints": {"ram_bytes": -HUGE}}, "run_side": "x"}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_lease_message_that_is_none_is_refused(
    shared_server: Served, message: str, body: Any
) -> None:
    """Deep, huge, or no number at all: it is the sender's mistake, and the gate goes on."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = refused(directly(shared_server, f"/lease/v1/{message}", data), 400)
    assert len(told["message"]) < 1000
    assert shared_server.ask("GET", "/machine").status == 200


@pytest.mark.parametrize("size", [(1 << 18) + 100, 6 << 20, 40 << 20])
def test_a_body_that_is_too_large_is_told_so(shared_server: Served, size: int) -> None:
    """At the socket and through the server, whatever its size: 413, and the limit."""
    body = json.dumps({**CELL, "source": "#" * size}).encode()
    for answer in (
        shared_server.ask("POST", "/runs", raw=body),
        directly(shared_server, "/gpugate/api/v1/runs", body),
    ):
        told = refused(answer, 413)
        assert told["error"] == "too_large"
        assert told["detail"]["field"] == "body"
        assert told["detail"]["limit"] < size


def test_a_lease_message_that_is_too_large_is_told_so(shared_server: Served) -> None:
    """The other protocol of the same socket answers alike."""
    answer = directly(shared_server, "/lease/v1/heartbeat", b" " * (6 << 20))
    assert refused(answer, 413)["error"] == "too_large"


def test_arguments_and_values_are_the_runs_own(server: Served) -> None:
    """The gate knows words by digests alone; only the list of the user's own runs shows them, and
    with the run's directory they are gone.
    """
    kept = server.submit("kept", "print(params)", gpus=0, parameters={"key": CANARY})
    body = {"name": "program", "argv": ["echo", "--key", CANARY], "gpus": 0}
    runs = [kept, server.ask("POST", "/runs", body).json["run_id"]]
    for run_id in runs:
        assert server.ended(run_id)["end"] == "completed"
        assert CANARY in server.output(run_id)
        assert CANARY.encode() not in server.ask("GET", f"/runs/{run_id}/story").body
    for path in ("/calibrations", "/queue?inputs=1", "/transitions", "/samples"):
        assert CANARY.encode() not in server.ask("GET", path).body
    learned = server.ask("GET", "/calibrations").json["calibrations"]["kept"]
    assert [name for name, _ in learned[0]["setting"]["parameters"]] == ["key"]
    for run_id in runs:
        assert server.ask("DELETE", f"/runs/{run_id}").status == 200
    server.stop()
    places = (server.places.root / name for name in ("state", "data", "home"))
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert any(file.name == "gate.sqlite" for file in files)
    assert [file for file in files if CANARY.encode() in file.read_bytes()] == []
