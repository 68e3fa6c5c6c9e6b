"""The commands of `jupyter gpugate` beside `run`, against a gate that a test plays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate import __version__, places
from jupyter_gpugate.client.disk import held_below
from jupyter_gpugate.places import SOCKET_VARIABLE
from jupyter_gpugate.terminal import cli, exits, serving
from tests.kit.gate_stand_in import GateStandIn, gate_at

ROOT = Path(__file__).resolve().parents[2]
DONE = {"status": "ended", "end": "completed"}


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStandIn]:
    """Serve a gate that this terminal finds, and that completes every run at once."""
    path = tmp_path / "own" / "gpugate.sock"
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    with gate_at(path) as gate:
        gate.on_submit = lambda _body: DONE
        yield gate


@pytest.fixture
def no_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure that this terminal finds no gate."""
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(places, "spare_runtime_folder", lambda: tmp_path / "in-tmp")
    monkeypatch.setattr(places, "state_folders", lambda _environ: [tmp_path / "state"])


# -- the other verbs --------------------------------------------------------------------------

MACHINE = {
    "ram": {"total_bytes": 8 << 30, "free_bytes": 2 << 30, "bound_by": "/user.slice"},
    "devices": [
        {
            "uuid": "GPU-1",
            "model": "NVIDIA L4",
            "index": 0,
            "total_bytes": 23 << 30,
            "free_bytes": 20 << 30,
            "source": "nvml-v2",
        },
        {
            "uuid": "GPU-2",
            "model": "NVIDIA L4",
            "index": 1,
            "total_bytes": 23 << 30,
            "free_bytes": None,
            "fault": {"code": "GPU_IS_LOST", "text": "the GPU is lost"},
        },
    ],
    "readers": [{"name": "gpu", "fault": None}, {"name": "machine", "fault": None}],
    "attribution": {
        "devices": {"GPU-1": {"fault": "not supported in this container"}},
        "pids_are_ours": False,
    },
    "reach": "user",
}


def test_the_queue_is_a_table_or_the_snapshot_itself(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """People get columns, programs get what the gate said."""
    row = {"run_id": "r", "name": "two", "owner": "ben", "position": 1, "waited_s": 70}
    reason = {"kind": "fit", "message": "needs 9 MB of RAM"}
    gate.answers["/queue"] = {"queued": [{**row, "reasons": [reason]}], "running": []}
    assert cli.main(["queue"]) == exits.OK
    table = capsys.readouterr().out
    assert "needs 9 MB of RAM" in table
    assert "{" not in table
    assert cli.main(["queue", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == gate.answers["/queue"]


@pytest.mark.usefixtures("gate")
def test_an_empty_queue_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to show is shown as such."""
    assert cli.main(["queue"]) == exits.OK
    assert "no run is active and none is waiting" in capsys.readouterr().out


def test_an_estimate_is_asked_by_name(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The question carries what was said and nothing else."""
    assert cli.main(["estimate", "resnet", "--workers", "2"]) == exits.OK
    assert gate.asked[-1].query == {"name": "resnet", "workers": "2"}
    assert "no run of this name" in capsys.readouterr().out


def test_cancel_stops_each_run_that_is_named(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several ids are several cancels; an unknown one is an error."""
    gate.put("a", status="active")
    gate.put("b", status="queued")
    assert cli.main(["cancel", "a", "b"]) == exits.OK
    assert capsys.readouterr().out.count("is cancelled") == 2
    assert cli.main(["cancel", "c"]) == exits.FAILED
    assert "there is no run c" in capsys.readouterr().err


def test_a_bad_id_keeps_no_other_run_alive(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each id is tried and answered, and the exit code tells that one failed."""
    gate.put("b", status="active")
    assert cli.main(["cancel", "a", "b"]) == exits.FAILED
    said = capsys.readouterr()
    assert "there is no run a" in said.err
    assert "b is cancelled" in said.out
    gate.put("b", status="active")
    assert cli.main(["cancel", "a", "b", "--json"]) == exits.FAILED
    answers = json.loads(capsys.readouterr().out)
    assert (answers["a"]["error"], answers["b"]["cancelled"]) == ("not_found", True)


LOCK = {"resource": "GPU-1", "owner": "ada", "since": 1000.0, "until": 2800.0, "kernel": None}


def test_a_lock_is_shown_with_its_owner_and_the_time_that_is_left(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who wonders why a GPU is not given finds who has it, in the queue and by doctor."""
    gate.answers["/queue"] = {"devices": MACHINE["devices"], "locks": [LOCK], "now": 1060.0}
    assert cli.main(["queue"]) == exits.OK
    assert "GPU 0 is locked by ada for 29 min" in capsys.readouterr().out
    gate.answers["/machine"] = {**MACHINE, "locks": [{**LOCK, "resource": "machine"}]}
    assert cli.main(["doctor"]) == exits.OK
    assert "The machine is locked by ada for " in capsys.readouterr().out


def test_a_reader_that_has_had_enough_is_no_error(gate: GateStandIn) -> None:
    """Output into a pipe that nobody reads any more ends without a word."""
    gate.answers["/queue"] = {"queued": [{"name": "n" * 64}] * 5000}
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "jupyter_gpugate", "queue"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (exits.OK, "")


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (1, "1 worker fits now"),
        (3, "up to 3 workers fit now"),
        (64, "64 workers, the maximum of a run, fit now"),
    ],
)
def test_how_many_workers_fit_is_told_in_words(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str], most: int, told: str
) -> None:
    """The number reads as what it means."""
    gate.answers["/estimate"] = {"name": "n", "workers": 1, "max_workers": most}
    assert cli.main(["estimate", "n"]) == exits.OK
    assert told in capsys.readouterr().out


def test_doctor_tells_what_is_measured_and_why_something_is_not(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every resource has a sentence, every gap its reason."""
    gate.answers["/machine"] = MACHINE
    assert cli.main(["doctor"]) == exits.OK
    said = capsys.readouterr().out
    for words in (
        "RAM is measured: 2,048 MB free of 8,192 MB, as the limit of cgroup /user.slice allows",
        "allows, in which the gate runs.",
        "GPU 0 (NVIDIA L4) is measured (nvml-v2): 20,480 MB free of 23,552 MB.",
        "GPU 0 (NVIDIA L4): holders of its memory are unknown: not supported in this container.",
        "GPU 1 (NVIDIA L4) cannot be measured: the GPU is lost.",
        "another PID namespace",
        "limited to its reserved GPU memory",
        "have no limit",
    ):
        assert words in said


def test_doctor_says_what_runs_hold_on_the_disk_and_how_to_be_rid_of_it(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every file below the folder of runs counts, and nothing that a link leads to."""
    (tmp_path / "runs" / "a" / "b").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "b" / "file").write_bytes(b"x" * (3 << 20))
    (tmp_path / "elsewhere").write_bytes(b"x" * (9 << 20))
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    kept = {"directory": str(tmp_path / "runs"), "count": 1234}
    gate.answers["/machine"] = {**MACHINE, "runs": kept}
    assert cli.main(["doctor"]) == exits.OK
    said = capsys.readouterr().out
    assert f"1,234 runs are in {tmp_path / 'runs'} and hold 3 MB." in said
    assert "DELETE /runs/ID" in said
    assert held_below(str(tmp_path), patience_s=-1.0) == (0, False)


@pytest.mark.usefixtures("no_gate")
def test_doctor_reads_the_machine_itself_where_no_gate_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a gate the same sentences come from the readers, and none is started for it."""
    assert cli.main(["doctor"]) == exits.OK
    said = capsys.readouterr().out
    assert "RAM is measured: " in said
    assert "GPU" in said
    assert "no gate is running for this user" in said
    assert cli.main(["doctor", "--json"]) == exits.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["ram"]["total_bytes"] > 0
    assert {reader["name"] for reader in answer["readers"]} == {"gpu", "machine"}


@pytest.mark.usefixtures("no_gate")
def test_an_old_python_says_that_it_cannot_host_a_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel's older Python talks to a gate, but neither serves one nor measures by itself."""
    monkeypatch.setattr(serving, "can_measure", lambda: False)
    for verb in ("doctor", "serve"):
        assert cli.main([verb]) == exits.UNAVAILABLE
        assert "needs Python 3.10" in capsys.readouterr().err


def test_the_module_and_the_version_are_there() -> None:
    """`python -m jupyter_gpugate` is the same program."""
    command = [sys.executable, "-m", "jupyter_gpugate", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


def test_a_forgotten_separator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is not behind ``--`` is refused with what to write."""
    with pytest.raises(SystemExit):
        cli.main(["run", "name", "python", "-c", "pass"])
    assert "put -- before the command" in capsys.readouterr().err


def test_serve_is_the_services_own_business(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows `serve` reaches the service untouched, and its code is the process's."""
    seen: list[list[str]] = []

    def serve(argv: list[str]) -> int:
        seen.append(argv)
        return 5

    monkeypatch.setattr("jupyter_gpugate.server.service.main", serve)
    assert cli.main(["serve", "--user", "--idle", "3"]) == 5
    assert seen == [["--user", "--idle", "3"]]


def test_a_name_alone_repeats_the_run_except_for_what_is_given(
    gate: GateStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The given options and the present environment are sent; the rest is the earlier run's."""
    options = ["--set", "lr=0.1", "--set-free", "seed=2", "--exclusive", "--drop-env", "HOME"]
    assert cli.main(["run", "again", *options]) == exits.OK
    body = gate.bodies("/runs")[0]
    assert "HOME" not in body.pop("environment")
    assert body.pop("kernel")["pid"] == os.getpid()
    assert body.pop("idempotency_key")
    parameters = {"lr": "0.1", "seed": "2"}
    given = {"name": "again", "exclusive": True}
    assert body == {**given, "parameters": parameters, "memory_irrelevant": ["seed"]}
    error = {"error": "nothing_to_repeat", "message": "source: none", "detail": {}}
    gate.refusals[("POST", "/runs")] = (400, error)
    assert cli.main(["run", "again"]) == exits.MISUSED
    assert "`jupyter gpugate run again -- COMMAND ...`" in capsys.readouterr().err
