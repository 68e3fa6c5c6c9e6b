"""Runs that are submitted again by their name alone."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest

from tests.acceptance.commands import gpugate, told
from tests.kit.real_server import Places, Served

CELL = "for e in episodes:\n    e.keep((worker, params['batch'], params['seed']))\nprint(params)"


def spec_of(server: Served, run_id: str) -> dict[str, Any]:
    """What a run was submitted with, as it was kept."""
    spec: dict[str, Any] = server.ask("GET", f"/runs/{run_id}/export").json["spec"]
    return spec


@pytest.mark.behaviour(171)
def test_a_name_alone_is_the_newest_run_of_that_name_again(server: Served) -> None:
    """Source and options are those of the newest run, and the answer names it; fields that are
    given count instead, parameters one by one.
    """
    server.completed("eval", "print('an older source')", time_limit_s=500)
    options: dict[str, Any] = {"episodes": 4, "workers": 2, "gpus": 0, "time_limit_s": 99.0}
    options |= {"parameters": {"batch": "8", "seed": "1"}, "memory_irrelevant": ["seed"]}
    first = server.completed("eval", CELL, **options)["run_id"]
    answer = server.ask("POST", "/runs", {"name": "eval"})
    assert (answer.status, answer.json["repeats"]) == (202, first)
    again = server.ended(answer.json["run_id"])
    assert (again["end"], again["repeats"]) == ("completed", first)
    assert again["basis"] == {"ram": "calibrated"}
    known = spec_of(server, first)
    ours = spec_of(server, again["run_id"])
    for name in ("source", "source_hash", *options, "interpreter", "cwd"):
        assert ours[name] == known[name], name
    body = {"name": "eval", "episodes": 2, "parameters": {"seed": "2"}}
    other = server.ask("POST", "/runs", body).json
    assert other["repeats"] == again["run_id"]
    spec = spec_of(server, other["run_id"])
    assert (spec["parameters"], spec["episodes"]) == ({"batch": "8", "seed": "2"}, 2)
    assert server.ended(other["run_id"])["end"] == "completed"


@pytest.mark.behaviour(171)
def test_what_cannot_be_repeated_is_named(server: Served) -> None:
    """A name without runs, values of a notebook that are gone, several workers of a program: each
    is a 400 that says so, and nothing is queued.
    """
    staged = server.places.root / "data" / "gpugate" / "staging" / "s1"
    staged.mkdir(mode=0o700, parents=True)
    (staged / "xs.pickle").write_bytes(b"\x80\x05K\x07.")
    inputs = {"names": ["xs"], "staged": str(staged)}
    server.completed("fed", "print(xs)", inputs=inputs)
    server.completed("bare", "pass")
    assert server.ask("POST", "/runs", {"name": "command", "argv": ["true"]}).status == 202
    unlike = {"name": "command", "workers": 2}
    for body, error, field, words in (
        ({"name": "nobody"}, "nothing_to_repeat", "source", "no run is named nobody"),
        ({"name": "fed"}, "not_repeatable", "inputs", "had copies of xs from its notebook"),
        (unlike, "bad_request", "workers", "is a program, which has one worker"),
    ):
        answer = server.ask("POST", "/runs", body)
        found = (answer.status, answer.json["error"], answer.json["detail"]["field"])
        assert found == (400, error, field), answer.body
        assert words in answer.json["message"]
    assert len(server.ask("GET", "/runs").json["runs"]) == 3
    assert server.ask("POST", "/estimate", {"name": "bare"}).json["terms"]


@pytest.mark.behaviour(171)
def test_a_command_is_run_again_by_its_name(places: Places) -> None:
    """From the terminal, with its folder and its arguments, in the present environment, also after
    its gate has ended; which run is repeated is said, and a name without runs is a mistake.
    """
    (places.notebooks / "work").mkdir()
    script = "import os, sys; print(os.getcwd()[-4:], sys.argv[1:], os.environ.get('MODE'))"
    (places.notebooks / "work" / "script.py").write_text(script)
    argv = [sys.executable, "script.py", "--lr", "0.1"]
    run = ("run", "eval", "--set", "batch=8")
    first = gpugate(places, *run, "--", *argv, cwd=places.notebooks / "work")
    assert first.stdout == "work ['--lr', '0.1'] None\n", first.stderr
    (known,) = told(places, "runs", "--json")["runs"]
    again = gpugate(places, "run", "eval", more={"MODE": "fast"})
    assert (again.returncode, again.stdout) == (0, "work ['--lr', '0.1'] fast\n"), again.stderr
    assert f"repeats the command of {known['run_id']}: {sys.executable} script.py" in again.stderr
    assert "eval batch=8" in again.stderr
    detached = told(places, "run", "eval", "--set", "seed=3", "--detach", "--json")
    assert told(places, "wait", detached["run_id"], "--json")[0]["parameters"] == {
        "batch": "8",
        "seed": "3",
    }
    unknown = gpugate(places, "run", "nobody")
    assert unknown.returncode == 2
    assert "no run is named nobody yet" in unknown.stderr
    shutil.rmtree(places.notebooks / "work")
    gone = gpugate(places, "run", "eval", "--json")
    assert gone.returncode == 2
    assert json.loads(gone.stdout)["detail"]["field"] == "cwd"
