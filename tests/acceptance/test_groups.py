"""Groups of runs, and runs that start after others, through HTTP."""

from __future__ import annotations

import secrets
import string
from pathlib import Path
from typing import Any

import pytest

from tests.kit.controlled_runs import drained, waits_for
from tests.kit.real_server import Served, until

HINTS = {"ram_bytes": 64 << 20}


def new_group() -> str:
    """An id as clients make them."""
    return f"g20260914-101502-{''.join(secrets.choice(string.ascii_lowercase) for _ in range(5))}"


def submit(server: Served, source: str = "pass", **fields: Any) -> str:
    """Submit a small run without a GPU."""
    return server.submit("sweep", source, gpus=0, hints=HINTS, **fields)


def group_of(server: Served, group: str) -> dict[str, Any]:
    """The group as the API tells it."""
    answer = server.ask("GET", f"/groups/{group}")
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.json
    return told


def refused(server: Served, **fields: Any) -> tuple[int, str, str]:
    """The status of a refused submit, the field that it names, and its sentence."""
    body = {"name": "sweep", "source": "pass", "gpus": 0, **fields}
    answer = server.ask("POST", "/runs", body)
    return answer.status, str(answer.json["detail"].get("field")), answer.json["message"]


def active(told: dict[str, Any]) -> list[str]:
    """The parameters of the runs of a group that are active."""
    return [row["parameters"]["n"] for row in told["runs"] if row["status"] == "active"]


@pytest.mark.behaviour(173)
def test_a_group_runs_so_many_at_a_time_and_is_cancelled_as_one(
    server: Served, tmp_path: Path
) -> None:
    """Those that wait say for whom; one call shows all, and one call stops all."""
    group, end = new_group(), tmp_path / "end"
    shared = {"group": group, "group_size": 4, "at_most": 2}
    runs = [
        submit(server, f"print('row {n}')\n{waits_for(end)}", parameters={"n": str(n)}, **shared)
        for n in range(4)
    ]
    other = submit(server, "print('not in the group')")
    assert server.ended(other)["end"] == "completed"
    until(lambda: active(group_of(server, group)) == ["0", "1"], "two are active")
    waiting = server.waiting(runs[3], "group")
    words = f"its group runs at most 2 at a time: waits for {runs[0]}, {runs[1]}"
    assert waiting["reasons"][0]["message"] == words
    assert {row["group"] for row in server.queue()["queued"]} == {group}
    until(lambda: group_of(server, group)["runs"][0]["last_line"] == "row 0", "its output is shown")
    told = group_of(server, group)
    assert (told["status"], told["size"], told["at_most"]) == ("active", 4, 2)
    assert told["counts"] == {"active": 2, "queued": 2}
    listed = server.ask("GET", f"/runs?group={group}&sort=oldest").json["runs"]
    assert [row["run_id"] for row in listed] == runs
    stopped = server.ask("POST", f"/groups/{group}/cancel")
    assert stopped.status == 200
    assert set(stopped.json["runs"]) == set(runs)
    told = group_of(server, group)
    assert (told["status"], told["counts"]) == ("ended", {"cancelled": 4})
    assert [row["attempt"] for row in told["runs"]] == [1, 1, 0, 0]


@pytest.mark.behaviour(173)
def test_a_place_that_becomes_free_is_the_next_ones(server: Served, tmp_path: Path) -> None:
    """Every run of the group starts, and never are more of them active than may be."""
    group, log = new_group(), tmp_path / "log"
    source = (
        "import os, time\n"
        f"fd = os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "os.write(fd, b'+')\ntime.sleep(0.1)\nos.write(fd, b'-')\n"
    )
    for n in range(5):
        submit(server, source, group=group, at_most=1, parameters={"n": str(n)})
    until(lambda: group_of(server, group)["counts"] == {"completed": 5}, "all complete")
    assert log.read_text() == "+-" * 5


@pytest.mark.behaviour(173)
def test_a_run_starts_after_a_run_and_a_group_have_completed(
    server: Served, tmp_path: Path
) -> None:
    """It says what it waits for; a run after one that has completed starts at once."""
    group, log = new_group(), tmp_path / "log"
    ends = [tmp_path / "one", tmp_path / "two"]
    write = f"open({str(log)!r}, 'a').write"
    first = submit(server, "pass")
    server.ended(first)
    members = [
        submit(server, f"{waits_for(end)}\n{write}('member ')\n", group=group) for end in ends
    ]
    last = submit(server, f"{write}('last')", after=[group, first])
    row = server.waiting(last, "after")
    assert row["reasons"][0]["who"] == members
    words = f"starts only after 2 runs have completed: {members[0]}, {members[1]}"
    assert row["reasons"][0]["message"] == words
    ends[0].touch()
    server.ended(members[0])
    until(
        lambda: server.waiting(last, "after")["reasons"][0]["who"] == members[1:],
        "it waits for the other one alone",
    )
    ends[1].touch()
    assert server.ended(last)["end"] == "completed"
    assert log.read_text() == "member member last"
    assert [server.run(run_id)["end"] for run_id in members] == ["completed"] * 2


@pytest.mark.behaviour(173)
def test_a_run_never_starts_after_one_that_did_not_complete(server: Served, tmp_path: Path) -> None:
    """It ends as rejected and names that one; submitted too late, it is refused at once."""
    end = tmp_path / "end"
    first = submit(server, f"{waits_for(end)}\nraise ValueError('no')")
    second = submit(server, after=[first])
    third = submit(server, after=[second])
    server.waiting(third, "after")
    end.touch()
    row = server.ended(third)
    assert (row["end"], row["exit_cause"]) == ("rejected", "after")
    assert row["exit_detail"] == f"{second} was rejected"
    assert server.run(second)["exit_detail"] == f"{first} failed"
    assert [server.run(run_id)["attempt"] for run_id in (second, third)] == [0, 0]
    status, field, message = refused(server, after=[first])
    assert (status, field) == (409, "after")
    assert message == f"after: {first} failed: submit that one again first"


@pytest.mark.behaviour(173, 4)
def test_a_wrong_group_is_refused_with_the_field(server: Served) -> None:
    """At submit: a limit that differs, an id of another form, a run that is not known."""
    group = new_group()
    submit(server, group=group, at_most=2)
    assert refused(server, group=group, at_most=3)[:2] == (400, "at_most")
    assert "has 2: use the same value" in refused(server, group=group)[2]
    assert refused(server, group="mine")[:2] == (400, "group")
    assert "at_most and group_size need a group" in refused(server, at_most=2)[2]
    assert refused(server, group=new_group(), at_most=0)[:2] == (400, "at_most")
    nobody = "20260914-101502-zzzzz"
    assert refused(server, after=[nobody])[1:] == (
        "after",
        f"after: there is no run and no group {nobody}",
    )
    own = refused(server, group=group, at_most=2, after=[group])
    assert own[1:] == ("after", f"after: {group} is the group of the run itself")
    missing = server.ask("GET", f"/groups/{new_group()}")
    assert (missing.status, missing.json["error"]) == (404, "not_found")


@pytest.mark.behaviour(173, 5)
def test_groups_survive_a_restart(server: Served, start: Any, tmp_path: Path) -> None:
    """Limits and orders hold as before, and the group is whole."""
    group, end = new_group(), tmp_path / "end"
    shared = {"group": group, "at_most": 1}
    members = [submit(server, waits_for(end), parameters={"n": str(n)}, **shared) for n in range(2)]
    last = submit(server, after=[group])
    server.active(members[0])
    server.kill()
    second = start()
    second.waiting(members[1], "group")
    assert second.waiting(last, "after")["reasons"][0]["who"] == members
    end.touch()
    assert second.ended(last)["end"] == "completed"
    assert group_of(second, group)["counts"] == {"completed": 2}


@pytest.mark.behaviour(173, 161)
def test_runs_that_wait_learn_from_those_of_their_group_that_have_ended(
    server: Served, tmp_path: Path
) -> None:
    """One that waits has no number before, and a fitted one once two values have been run."""
    group, end = new_group(), tmp_path / "end"
    source = (
        "import os, time\n"
        f"while params['n'] == 5 and not os.path.exists({str(end)!r}): time.sleep(0.05)\n"
    )
    shared: dict[str, Any] = {"name": "sweep", "gpus": 0, "group": group, "at_most": 1}

    def submitted(n: int) -> str:
        return server.submit(source=source, parameters={"n": str(n)}, **shared)

    def origin(run_id: str) -> str | None:
        (term,) = server.run(run_id)["estimate"]["terms"]
        return str(term["origin"]) if term["origin"] else None

    with drained(server):
        runs = [submitted(n) for n in (4, 8, 5, 6)]
        assert [origin(run_id) for run_id in runs] == [None] * 4
    server.active(runs[2])
    assert server.run(runs[3])["status"] == "queued"
    assert origin(runs[3]) == "fitted"
    assert "fitted over n 4, 8" in server.run(runs[3])["estimate"]["terms"][0]["note"]
    end.touch()
    assert server.ended(runs[3])["end"] == "completed"
