"""Sweeps: several settings submitted as one group, from a notebook and from a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import at_terminal, gpugate, told
from tests.fake_nvml import GB, StandIn
from tests.kit.controlled_runs import ControlledRun, drained
from tests.kit.front_end import notebook
from tests.kit.real_server import Places, Served, until
from tests.kit.torch_with_memory import install
from tests.kit.user_notebook import UserNotebook

OPTIONS = "--gpus 0 --hint-ram 64MB"
ASKS = "interrupt again within 5 s to cancel; the runs go on otherwise"
GROUP = re.compile(r"g\d{8}-\d{6}-[a-z]{5}")
#: Of twelve settings; the first needs more memory than its hint says, and 13 is no good.
BATCHES = "batch=96,13,1..10"


def twelve(library: Path) -> str:
    """A torch cell whose memory and end follow from a parameter."""
    return install(library) + (
        "batch = params['batch']\n"
        "if batch == 13:\n    raise ValueError('a batch of 13')\n"
        f"torch.cuda.allocate({4 * GB} if batch == 96 else {GB})\n"
        "print('loss', 1 / batch)\n"
    )


def group_in(text: str) -> str:
    """The group that a text names."""
    return str(GROUP.findall(text)[-1])


def has_one_table_and_one_command(places: Places, text: str) -> None:
    """Everything of the twelve settings: in one table, and why one failed by one command."""
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("20")]
    states = {line[1]: " ".join(line[2:5]) for line in lines}
    assert len(states) == 12
    assert states.pop("13").split()[0] == "failed"
    assert states.pop("96") == "completed, attempt 2"
    assert {state.split()[0] for state in states.values()} == {"completed"}
    (failed,) = [line for line in lines if line[1] == "13"]
    assert failed[-5:] == ["ValueError:", "a", "batch", "of", "13"]
    group = group_in(text)
    why = gpugate(places, "show", group)
    assert "batch=13 · failed (exit 1)" in why.stdout
    assert "| ValueError: a batch of 13" in why.stdout
    assert told(places, "show", group, "--json")["counts"] == {"completed": 11, "failed": 1}
    retried = told(places, "runs", "--group", group, "--sort", "oldest", "--json")["runs"][0]
    words = gpugate(places, "show", retried["run_id"]).stdout
    assert re.search(r"its cap of [0-9,]+ MB was hit; retried with [0-9,]+ MB", words), words


@pytest.mark.behaviour(173, 170)
@pytest.mark.usefixtures("stand_in")
def test_a_sweep_of_twelve_settings_from_a_notebook(server: Served, tmp_path: Path) -> None:
    """One fails and one is tried again; the others go on, and one command shows why."""
    with notebook(server.places) as front_end:
        cell = front_end.run(
            f"%%gated_eval sweep --hint-vram 3500MB --hint-ram 1GB --sweep {BATCHES} --at-most 4\n"
            + twelve(tmp_path / "library")
        )
        assert cell.ename == "RunFailed"
        (line,) = cell.error["traceback"]
        group = group_in(line)
        assert line == (
            f"RunFailed: 1 of 12 runs of sweep ({group}) did not complete: batch=13 (ValueError: a "
            f'batch of 13); jupyter_gpugate.get("{group}").explain() shows why'
        )
        has_one_table_and_one_command(server.places, cell.texts[-1])
        why = front_end.value(f"import jupyter_gpugate as g; g.get('{group}').explain()")
        assert "ValueError: a batch of 13" in why
        assert "get(" in why
        rows = f"[(r['batch'], r['status'], r['last_line']) for r in g.get('{group}').table()]"
        assert eval(front_end.value(rows))[:3] == [  # noqa: S307 - this test's own cell
            (96, "completed", f"loss {1 / 96}"),
            (13, "failed", "ValueError: a batch of 13"),
            (1, "completed", "loss 1.0"),
        ]


@pytest.mark.behaviour(173, 170, 171)
def test_a_sweep_of_twelve_settings_from_a_terminal(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """The newest cell of the name is repeated with each setting; the exit code is a failure's."""
    places, cell = server.places, twelve(tmp_path / "library")
    hints = {"vram_bytes": 3500 << 20, "ram_bytes": GB}
    server.completed("sweep", cell, hints=hints, parameters={"batch": "1"})
    done = gpugate(places, "run", "sweep", "--sweep", BATCHES, "--at-most", "4")
    assert done.returncode == 1, done.stderr
    has_one_table_and_one_command(places, done.stdout)
    assert re.search(r"g\d+-\d+-[a-z]+ sweep · 12 runs: .* active, .* waiting", done.stderr)
    assert stand_in.uuid(0) not in done.stdout
    group = group_in(done.stdout)
    waited = gpugate(places, "wait", group)
    assert (waited.returncode, len(waited.stdout.splitlines())) == (1, 12)
    assert gpugate(places, "cancel", group).stdout == f"no run of {group} is waiting or active\n"
    assert gpugate(places, "logs", group).stderr.rstrip().endswith(f"show {group}` lists them")
    assert gpugate(places, "rm", group).returncode == 0
    assert told(places, "runs", "--group", group, "--json") == {"runs": []}


@pytest.mark.behaviour(173)
def test_outputs_of_a_sweep_are_lists_in_its_order(shared_server: Served) -> None:
    """Each run has its own copy of the inputs; kept values are in the table of the handle."""
    front_end = UserNotebook(shared_server)
    front_end.run("xs = [1, 2]")
    shown = front_end.run(
        f"%%gated_eval sweep {OPTIONS} --sweep batch=8,16 --sweep-free seed=0..1 --input xs "
        "--output score --episodes 2\n"
        "score = params['batch'] * 10 + params['seed'] + sum(xs)\n"
        "for e in episodes:\n    e.keep(score + e.index)\nprint('score', score)"
    )
    (table,) = shown.displays
    assert "sweep · 4 runs: 4 completed" in table
    assert table.splitlines()[1].split()[:4] == ["run", "batch", "seed", "state"]
    assert "score 164" in table
    assert front_end.value("score") == [83, 84, 163, 164]
    get = f"__import__('jupyter_gpugate').get({group_in(table)!r})"
    rows = front_end.value(f"{get}.table()")
    assert [(row["batch"], row["seed"]) for row in rows] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert (rows[3]["score"], rows[3]["kept"], rows[3]["status"]) == (164, [164, 165], "completed")
    assert rows[0]["peak_ram_bytes"] > 0
    assert front_end.value(f"[run.status() for run in {get}.runs]") == ["completed"] * 4
    estimates = front_end.value(f"[len(run.state()['parameters']) for run in {get}.runs]")
    assert estimates == [2] * 4
    front_end.close()


@pytest.mark.behaviour(173)
def test_one_interrupt_leaves_a_sweep_and_a_second_cancels_all_of_it(server: Served) -> None:
    """As for one run; a handle waits for those that go on, and cancels them as one."""
    work = ControlledRun(server.places, "work")
    cell = f"%%gated_eval sweep {OPTIONS} --sweep n=1..3\nparams\nimport {work.module()}"
    with notebook(server.places) as front_end, drained(server):
        first = front_end.start(cell)
        front_end.shows(first, "3 runs: 3 waiting")
        front_end.interrupt()
        front_end.shows(first, ASKS)
        assert front_end.end_of(first).ename == "RunDetached"
        left = group_in(first.error["traceback"][-1])
        assert server.ask("GET", f"/groups/{left}").json["detached"] is True
        second = front_end.start(cell)
        front_end.shows(second, "3 runs: 3 waiting")
        front_end.interrupt()
        front_end.shows(second, ASKS)
        front_end.interrupt()
        front_end.end_of(second)
        assert second.ename == "RunCancelled"
        assert "3 of 3 runs of sweep" in second.error["traceback"][-1]
        get = f"__import__('jupyter_gpugate').get({left!r})"
        assert front_end.value(f"{get}.status()") == "'queued'"
        front_end.run(f"{get}.cancel()")
        assert front_end.value(f"{get}.status()") == "'ended'"
        waited = front_end.run(f"{get}.wait()")
        assert waited.ename == "RunCancelled"
    assert work.times_begun() == 0


@pytest.mark.behaviour(173)
def test_a_detached_sweep_is_cancelled_by_one_command(server: Served) -> None:
    """In a terminal and in a notebook; the submit prints the group's id and nothing else."""
    places = server.places
    with drained(server), notebook(places) as front_end:
        words = ["--detach", "--gpus", "0", "--sweep", "n=1..3", "--", "echo", "{n}"]
        groups = [gpugate(places, "run", "sweep", *words).stdout.strip() for _ in range(2)]
        done = gpugate(places, "cancel", groups[0])
        assert (done.returncode, done.stdout) == (0, f"3 runs of {groups[0]} cancelled\n")
        shown = front_end.run(f"%gpu_cancel {groups[1]}")
        assert shown.texts == [f"3 runs of {groups[1]} cancelled"]
    for group in groups:
        counts = server.ask("GET", f"/groups/{group}").json["counts"]
        assert counts == {"cancelled": 3}


@pytest.mark.behaviour(173)
def test_a_sweep_is_submitted_from_python(server: Served, tmp_path: Path) -> None:
    """As a group of commands, of which each has the value where the placeholder is."""
    out = tmp_path / "{n}.txt"
    with notebook(server.places) as front_end:
        words = ["sh", "-c", "echo $0 > $1", "{n}", str(out)]
        submit = f"g.submit({words!r}, name='sh', gpus=0, sweep={{'n': '1..3'}}, at_most=1)"
        front_end.run(f"import jupyter_gpugate as g; group = {submit}")
        assert not front_end.run("group.wait()").error
        again = "second = g.submit('params', name='last', gpus=0, after=group.group_id)"
        front_end.run(again)
        assert not front_end.run("second.wait()").error
        wrong = front_end.run("g.submit(['true'], name='sh', sweep={'n': [1, 2]})")
        assert wrong.ename == "SubmissionError"
        repeated = front_end.run("g.submit(name='sh', sweep={'m': [1, 2]})")
        assert "the command does not contain {m}" in repeated.error["evalue"]
    assert [(tmp_path / f"{n}.txt").read_text() for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]


@pytest.mark.behaviour(173, 12)
def test_a_terminal_that_dies_while_it_submits_leaves_a_group_that_says_so(
    server: Served,
) -> None:
    """The runs that were submitted are of the group; those that wait are withdrawn with it."""
    places = server.places
    with drained(server):
        sweep = ["--sweep", "n=1..400", "--gpus", "0", "--", "echo", "{n}"]

        def runs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = server.ask("GET", "/runs?name=many&limit=1000").json[
                "runs"
            ]
            return found

        with at_terminal(places, "run", "many", *sweep) as terminal:
            until(lambda: len(runs()) > 2, "three are submitted")
            terminal.process.kill()
        (group,) = {row["group"] for row in runs()}
        until(lambda: all(row["status"] == "ended" for row in runs()), "they are withdrawn")
        told_ = gpugate(places, "show", group).stdout
        count = len(runs())
        assert count < 400
        assert f"{count} runs: {count} cancelled; {count} of 400 were submitted" in told_


@pytest.mark.behaviour(173)
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--sweep n=1,2,1", "has the value 1 more than once"),
        ("--sweep n=1,2 --set n=3", "--set gives n one value as well: omit one"),
        ("--sweep n=1..50 --sweep m=1..50", "2,500 runs are too many, the maximum is 500"),
        ("--at-most 2", "--at-most limits the runs of a sweep"),
        ("--after nobody", "there is no run nobody"),
        ("--sweep n=1,2 --after 20260914-101502-zzzzz", "there is no run and no group 2026"),
    ],
)
def test_a_wrong_sweep_is_refused_in_one_line(shared_server: Served, line: str, says: str) -> None:
    """In a notebook and in a terminal alike, and nothing is submitted."""
    before = len(shared_server.ask("GET", "/runs").json["runs"])
    with notebook(shared_server.places) as front_end:
        cell = front_end.run(f"%%gated_eval wrong {line}\nparams['n']")
        assert says in cell.printed
        same = front_end.run("%%gated_eval wrong --sweep n=1,2\nprint('n')")
        words = '--sweep n: the cell is the same for every value: use params["n"] in it'
        assert words in same.printed
    done = gpugate(shared_server.places, "run", "wrong", *line.split(), "--", "echo", "{n}", "{m}")
    assert says in done.stderr
    assert done.returncode in (1, 2)  # refused by the gate, or here
    assert "Traceback" not in done.stderr
    assert len(shared_server.ask("GET", "/runs").json["runs"]) == before
