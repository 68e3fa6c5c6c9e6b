"""Every call of the API of a real server, with what it refuses."""

from __future__ import annotations

import itertools
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml import GB, StandIn
from tests.kit.real_server import Answer, Served, until


def drained(server: Served, count: int, name: str = "paged") -> list[str]:
    """So many runs that wait, oldest first."""
    server.ask("POST", "/drain", {})
    return [server.submit(name, "pass") for _ in range(count)]


def pages(server: Served, query: str, cursor: str | None = None) -> list[list[str]]:
    """Every page of a list of runs, from a cursor on."""
    found: list[list[str]] = []
    while True:
        place = f"/runs?{query}" + (f"&cursor={cursor}" if cursor else "")
        page = server.ask("GET", place).json
        found.append([row["run_id"] for row in page["runs"]])
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def remove(server: Served, run_id: str) -> None:
    """Cancel a run and delete it."""
    server.ask("POST", f"/runs/{run_id}/cancel")
    assert server.ask("DELETE", f"/runs/{run_id}").status == 200


@pytest.mark.behaviour(18)
def test_pages_stay_where_they_are(server: Served) -> None:
    """Runs that come, and runs that go, even the one where a page ended, shift no later page."""
    ids = drained(server, 6)[::-1]
    assert pages(server, "limit=4") == [ids[:4], ids[4:]]
    assert pages(server, "limit=3&sort=oldest") == [ids[:2:-1], ids[2::-1]]
    first = server.ask("GET", "/runs?limit=2").json
    newer = server.submit("paged", "pass")
    remove(server, ids[1])  # the last one of the first page
    remove(server, ids[3])
    rest = pages(server, "limit=2", first["next_cursor"])
    assert rest == [[ids[2], ids[4]], [ids[5]]]
    assert pages(server, "limit=1")[0][0] == newer


@pytest.mark.behaviour(18)
def test_lists_are_filtered_and_sorted(server: Served) -> None:
    """By name and by state, and a page is full of what was asked for."""
    done = server.completed("done", "pass")["run_id"]
    waiting = drained(server, 3, "first")
    other = server.submit("second", "pass")
    assert pages(server, "name=first&limit=2") == [waiting[:0:-1], waiting[:1]]
    assert pages(server, "status=queued") == [[other, *waiting[::-1]]]
    assert pages(server, "status=ended&name=done") == [[done]]
    assert pages(server, "status=active") == [[]]
    assert pages(server, "name=nobody") == [[]]


def test_a_program_is_not_told_of_workers_that_it_cannot_have(server: Served) -> None:
    """How many workers would fit is said of cells; a program has one."""
    hints = {"ram_bytes": 1 << 28}
    asked: dict[str, Any] = {"name": "one", "gpus": 0, "hints": hints}
    program = server.ask("POST", "/estimate", {**asked, "argv": ["true"]}).json
    assert (program["max_workers"], program["would_start"]) == (None, True)
    assert server.ask("POST", "/estimate", {**asked, "source": "pass"}).json["max_workers"] > 1


def test_a_poll_ends_when_something_happens(server: Served) -> None:
    """With the newest ETag an answer comes once there is a new one, and never the same one again;
    If-None-Match says the same as `etag`.
    """
    server.ask("POST", "/drain", {})
    found = [server.ask("GET", "/queue")]

    def poll() -> None:
        while not found[-1].json["queued"]:
            tag = found[-1].headers["etag"].replace('"', "%22")
            answer = server.ask("GET", f"/queue?wait=60&etag={tag}")
            if answer.status != 200:
                return
            found.append(answer)

    polling = threading.Thread(target=poll)
    polling.start()
    run_id = server.submit("new", "pass")
    polling.join()
    assert [row["run_id"] for row in found[-1].json["queued"]] == [run_id]
    tags = [answer.headers["etag"] for answer in found]
    assert all(earlier != later for earlier, later in itertools.pairwise(tags))
    # Of a run that waits for nothing but the end of a drain the answer does not change by itself.
    path = f"{server.url}/gpugate/api/v1/runs/{run_id}"
    known = server.ask("GET", f"/runs/{run_id}").headers["etag"]
    headers = {"Authorization": f"token {server.token}", "If-None-Match": known}
    with pytest.raises(urllib.error.HTTPError) as same:
        urllib.request.urlopen(urllib.request.Request(path, headers=headers))  # noqa: S310
    with same.value as answer:
        assert answer.code == 304


def conflict(answer: Answer, error: str = "state") -> None:
    """Check that an answer is a 409 of this kind."""
    assert (answer.status, answer.json["error"]) == (409, error), answer.body


@pytest.mark.behaviour(12, 18)
def test_what_comes_too_late_is_a_conflict(server: Served, stand_in: StandIn) -> None:
    """Cancelling or detaching what has ended, deleting what lives, forgetting what is there."""
    over = server.completed("over", "pass", gpus=0)["run_id"]
    conflict(server.ask("POST", f"/runs/{over}/cancel"))
    conflict(server.ask("POST", f"/runs/{over}/detach"))
    server.ask("POST", "/drain", {})
    waits = server.submit("waits", "pass")
    conflict(server.ask("DELETE", f"/runs/{waits}"))
    conflict(server.ask("DELETE", f"/machine?forget={stand_in.uuid(0)}"))
    body = {"name": "keyed", "source": "pass", "idempotency_key": "one"}
    server.ask("POST", "/runs", body)
    conflict(server.ask("POST", "/runs", {**body, "name": "other"}), "key_reused")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/output"),
        ("GET", "/episodes"),
        ("GET", "/story"),
        ("GET", "/export"),
        ("GET", "/card"),
        ("POST", "/cancel"),
        ("POST", "/detach"),
    ],
)
def test_a_run_that_nobody_knows_is_not_found(
    shared_server: Served, method: str, path: str
) -> None:
    """Every call about one run is a 404 in our form where there is none."""
    answer = shared_server.ask(method, f"/runs/20200101-000000-abcde{path}")
    assert (answer.status, answer.json["error"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/runs", "/estimate", "/lock", "/drain"])
def test_every_body_has_a_limit(shared_server: Served, path: str) -> None:
    """More than 256 KiB are a 413 that names the limit, whatever the call."""
    raw = b'{"name": "' + b"x" * (300 << 10) + b'"}'
    answer = shared_server.ask("POST", path, raw=raw)
    assert (answer.status, answer.json["error"]) == (413, "too_large")
    assert answer.json["detail"]["limit"] == 256 << 10


@pytest.mark.behaviour(110)
def test_a_full_queue_says_when_to_come_again(start: Callable[..., Served]) -> None:
    """Beyond what a user may queue, a 429 with Retry-After, which is counted; with room again a
    submit is taken.
    """
    server = start("--GpuGate.max_queued_per_user=2")
    first, _ = drained(server, 2)
    answer = server.ask("POST", "/runs", {"name": "third", "source": "pass"})
    assert (answer.status, answer.json["error"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) > 0
    assert len(server.ask("GET", "/runs").json["runs"]) == 2
    server.ask("POST", f"/runs/{first}/cancel")
    server.submit("third", "pass")
    found = server.figures()
    assert found['gpugate_refused_runs_total{error="queue_full"}'] == 1
    assert found["gpugate_submitted_runs_total"] == 3


@pytest.mark.behaviour(116)
@pytest.mark.parametrize("stops", [False, True], ids=["waits", "stops"])
def test_a_drained_machine_lets_runs_end_or_stops_them(
    shared_server: Served, tmp_path: Path, *, stops: bool
) -> None:
    """No new run starts on it; what runs goes on to its end, or is stopped before the answer when
    that is asked for; back in service, it starts what waits.
    """
    server = shared_server
    release = tmp_path / "release"
    source = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.1)"
    live = server.submit("live", source)
    server.active(live)
    answer = server.ask("POST", "/drain", {"reason": "a new disk", "stop_runs": stops})
    stopped = {"stopped": [live], "not_stopped": {}} if stops else {}
    assert answer.json == {"draining": True, **stopped}
    row = server.run(live)
    assert (row["status"], row["end"]) == (("ended", "cancelled") if stops else ("active", None))
    waits = server.submit("waits", "pass")
    server.waiting(waits, "drain")
    release.touch()
    assert server.ended(live)["end"] == ("cancelled" if stops else "completed")
    until(lambda: server.queue()["running"] == [], "the machine is empty")
    assert server.run(waits)["status"] == "queued"
    server.ask("DELETE", "/drain")
    assert server.ended(waits)["end"] == "completed"


@pytest.mark.behaviour(73)
def test_readings_are_kept_and_logged_while_something_runs(server: Served, tmp_path: Path) -> None:
    """The newest readings can be asked for, from one on; only those with a live run are on disk."""
    until(lambda: server.ask("GET", "/samples").json["last"] >= 3, "some readings of an idle gate")
    logs = server.places.root / "state" / "gpugate" / "samples"
    assert not logs.exists()
    release = tmp_path / "release"
    source = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.1)"
    live = server.submit("live", source)
    server.active(live)
    mark = server.ask("GET", "/samples").json["last"]
    until(lambda: server.ask("GET", "/samples").json["last"] >= mark + 3, "readings of its life")
    later = server.ask("GET", f"/samples?since={mark}").json
    assert [row["seq"] for row in later["samples"]] == list(range(mark + 1, later["last"] + 1))
    for row in later["samples"]:
        assert row["running"] == 1
        assert row["attributed"]["ram"] + row["external"]["ram"] >= row["used_total"]["ram"]
    release.touch()
    server.ended(live)
    (log,) = until(lambda: logs.exists() and list(logs.glob("*.jsonl")), "what was read is on disk")
    until(lambda: server.ask("GET", "/samples").json["samples"][-1]["running"] == 0)
    until(lambda: f'"seq": {later["last"]}' in log.read_text(), "the log is whole")
    size = log.stat().st_size
    mark = server.ask("GET", "/samples").json["last"]
    until(lambda: server.ask("GET", "/samples").json["last"] >= mark + 3, "an idle gate reads on")
    assert log.stat().st_size == size
    assert oct(logs.stat().st_mode & 0o777) == "0o700"
    beyond = server.ask("GET", "/samples?since=999999").json  # of a gate before
    assert len(beyond["samples"]) == beyond["last"]


def test_locks_and_drains_say_what_they_did(server: Served, stand_in: StandIn) -> None:
    """A device is named by its index, its UUID or the beginning of it; another lock replaces it."""
    uuid = stand_in.uuid(0)
    for name in ("0", uuid, uuid[:12]):
        answer = server.ask("POST", "/lock", {"resource": name, "seconds": 60})
        told = {"locked": uuid, "for_s": 60, "name": "GPU 0", "closes": [uuid]}
        assert answer.json == {**told, "opened": [], "at_work": []}
    (lock,) = server.queue()["locks"]
    assert lock["resource"] == uuid
    assert lock["until"] - lock["since"] == pytest.approx(60)
    assert server.ask("POST", "/lock", {}).json["opened"] == ["GPU 0"]
    assert [lock["resource"] for lock in server.queue()["locks"]] == ["machine"]
    told = {"unlocked": "machine", "name": "the machine"}
    assert server.ask("DELETE", "/lock").json == {**told, "was_locked": True}
    assert server.ask("DELETE", "/lock").json == {**told, "was_locked": False}
    assert server.queue()["locks"] == []
    assert server.ask("POST", "/drain", {"reason": "a new driver"}).json == {"draining": True}
    assert server.queue()["draining"] == "a new driver"
    assert server.ask("DELETE", "/drain").json == {"draining": False}
    assert server.queue()["draining"] is None
    wrong = server.ask("POST", "/lock", {"resource": "7"})
    assert (wrong.status, wrong.json["detail"]["field"]) == (400, "resource")
    assert server.queue()["free_bytes"][uuid] == 24 * GB
