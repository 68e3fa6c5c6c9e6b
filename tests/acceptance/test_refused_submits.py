"""Submits that are repeated or refused, each with the field and the reason."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.kit.real_server import Served


def test_a_repeated_key_is_one_run(server: Served) -> None:
    """The same key and body give the first run again; the same key with another body a 409."""
    body = {"name": "once", "source": "pass", "idempotency_key": "k1"}
    first = server.ask("POST", "/runs", body)
    again = server.ask("POST", "/runs", body)
    assert (first.status, again.status) == (202, 200)
    assert first.json["run_id"] == again.json["run_id"]
    other = server.ask("POST", "/runs", {**body, "source": "1"})
    assert (other.status, other.json["error"]) == (409, "key_reused")
    assert len(server.ask("GET", "/runs").json["runs"]) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"source": "pass"}, "name"),
        ({"name": "a b", "source": "pass"}, "name"),
        ({"name": "../../etc", "source": "pass"}, "name"),
        ({"name": "-rf", "source": "pass"}, "name"),
        ({"name": "a\u0000", "source": "pass"}, "name"),
        ({"name": "x" * 65, "source": "pass"}, "name"),
        ({"name": "<img src=x>", "source": "pass"}, "name"),
        ({"name": "a"}, "source"),
        ({"name": "a", "source": "pass", "argv": ["true"]}, "argv"),
        ({"name": "a", "source": "pass", "episodes": -1}, "episodes"),
        ({"name": "a", "source": "pass", "episodes": "1; rm"}, "episodes"),
        ({"name": "a", "source": "pass", "workers": 0}, "workers"),
        ({"name": "a", "source": "pass", "gpus": -1}, "gpus"),
        ({"name": "a", "source": "pass", "hints": {"vram_bytes": 2 << 50}}, "hints.vram_bytes"),
        ({"name": "a", "source": "pass", "hints": {"vram_bytes": 0}}, "hints.vram_bytes"),
        ({"name": "a", "source": "pass", "cwd": "/nowhere"}, "cwd"),
        ({"name": "a", "source": "pass", "interpreter": "/no/python"}, "interpreter"),
        ({"name": "a", "source": "pass", "inputs": {"names": ["x"]}}, "inputs"),
        ({"name": "a", "source": "def f(:\n  pass"}, "source"),
        ({"name": "a", "source": "%timeit 1"}, "source"),
        ({"name": "a", "source": "pass", "nonsense": 1}, "nonsense"),
        ({"name": "a", "source": "pass", "time_limit_s": -5}, "time_limit_s"),
        ([], "body"),
    ],
)
@pytest.mark.behaviour(137, 138)
def test_bad_input_is_refused_naming_the_field(
    shared_server: Served, body: object, field: str
) -> None:
    """A 400 that names the field and says what to do; nothing is queued or left on the disk."""
    answer = shared_server.ask("POST", "/runs", body)
    assert answer.status == 400, answer.body
    assert field in answer.json["message"]
    assert answer.json["detail"]["field"] in (field, "body")
    assert shared_server.ask("GET", "/runs").json["runs"] == []
    assert shared_server.queue()["queued"] == []
    assert not list(shared_server.places.runs.glob("2*"))


def test_a_body_over_the_limit_is_refused(server: Served) -> None:
    """More than 256 KiB beside the environment is a 413 that says so."""
    answer = server.ask("POST", "/runs", {"name": "big", "source": "#" * (300 << 10)})
    assert (answer.status, answer.json["error"]) == (413, "too_large")
    answer = server.ask("POST", "/runs", raw=b"{ not json")
    assert answer.status == 400
    assert server.queue()["queued"] == []


@pytest.mark.behaviour(4)
@pytest.mark.usefixtures("stand_in")
def test_what_can_never_fit_is_refused_with_both_numbers(server: Served) -> None:
    """More memory or devices than the machine has: refused at once, naming need and machine."""
    hints = {"vram_bytes": 30 << 30}
    answer = server.ask("POST", "/runs", {"name": "huge", "source": "pass", "hints": hints})
    assert answer.status == 400
    assert "24,576 MB" in answer.json["message"]
    assert answer.json["detail"]["limit_bytes"] == 24 << 30
    assert answer.json["detail"]["need_bytes"] >= 30 << 30
    answer = server.ask("POST", "/runs", {"name": "many", "source": "pass", "gpus": 2})
    assert (answer.status, answer.json["detail"]["present"]) == (400, 1)
    ram = {"ram_bytes": 1 << 45}
    answer = server.ask("POST", "/runs", {"name": "ram", "source": "pass", "hints": ram})
    assert answer.status == 400
    assert server.queue()["queued"] == []


def test_strangers_get_nothing(server: Served) -> None:
    """Without the token no path of the API answers anything but a refusal."""
    for method, path in [
        ("GET", "/queue"),
        ("GET", "/runs"),
        ("POST", "/runs"),
        ("POST", "/lock"),
        ("DELETE", "/calibrations?name=x"),
        ("GET", "/nothing"),
    ]:
        assert server.ask(method, path, token="nobody").status in (401, 403), path


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/queue?wiat=25", "wiat"),
        ("/queue?wait=soon", "wait"),
        ("/runs?limit=0", "limit"),
        ("/runs?status=foo", "status"),
        ("/runs?cursor=20200101-000000-abcde", "cursor"),
        ("/estimate?name=x&nonsense=1", "nonsense"),
    ],
)
def test_a_misspelt_query_is_an_error(shared_server: Served, path: str, field: str) -> None:
    """No option of a query is ever ignored: a 400 names it."""
    answer = shared_server.ask("GET", path)
    assert (answer.status, answer.json["detail"]["field"]) == (400, field)


def test_what_has_not_changed_is_not_sent_again(server: Served) -> None:
    """A long poll with the newest ETag ends without an answer when nothing has happened."""
    path = f"/runs/{server.completed('over', 'pass')['run_id']}"
    first = server.ask("GET", path)
    later = server.ask("GET", f"{path}?wait=2.5&etag={quote(first.headers['etag'])}")
    assert (first.status, later.status, later.body) == (200, 304, b"")


def test_an_environment_over_the_limit_is_named(shared_server: Served) -> None:
    """A megabyte of environment is too much, and is not blamed on the interpreter."""
    body = {"name": "a", "source": "pass", "environment": {"BIG": "x" * (2 << 20)}}
    answer = shared_server.ask("POST", "/runs", body)
    assert (answer.status, answer.json["detail"]["field"]) == (413, "environment")
