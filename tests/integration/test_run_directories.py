"""Run directories that others share, that runs take apart, and that are torn, under real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import launcher as launcher_module
from jupyter_gpugate.runs.machine import Machine
from jupyter_gpugate.runs.processes import is_alive
from jupyter_gpugate.runs.record import Record, Refused
from tests.integration.run_side import GateOfRuns, gate_of_runs, program, run_side, served, until
from tests.integration.runs_under_way import begun, cancelled, tree_of


def waits_for(path: Path) -> str:
    """A program that ends once a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)"


# -- several machines ------------------------------------------------------------------------------


def test_another_machine_with_the_same_home_leaves_every_run_alone(
    gate: GateOfRuns, tmp_path: Path
) -> None:
    """It shows them, and neither ends, starts, requests nor deletes any; here all go on."""
    here, done = run_side(gate.path, tmp_path), tmp_path / "done"
    other = Machine(mark="b" * 32, host="node8", boot_id="another", pids="pid:[1]")

    async def test() -> None:
        over = await begun(here, gate, program("pass"), fence=1)
        await over.end.wait()
        live = await begun(here, gate, program(waits_for(done)), fence=2)
        waits, _ = await here.intake.submit(program("pass"))
        with gate_of_runs() as theirs:
            there = run_side(theirs.path, tmp_path, other)
            await there.start()
            await there.inventory.whole.wait()
            rows = {row.run_id: row for row in there.records.rows()}
            assert set(rows) == {over.run_id, live.run_id, waits}
            assert all(row.machine for row in rows.values())
            waiting = [record.run_id for record in there.records.elsewhere()]
            assert waiting == [live.run_id, waits]
            assert not there.records.unfinished()
            for run_id in rows:
                for change in (there.orders.cancel, there.orders.delete, there.orders.detach):
                    with pytest.raises(Refused) as refused:
                        await change(run_id)
                    assert (refused.value.status, refused.value.error) == (409, "elsewhere")
            await there.stop()
            told = {name for name, _ in theirs.messages}
            assert told <= {"register"}
            assert [body["run_ids"] for body in theirs.all("register")] == [[]]
        done.touch()
        await live.end.wait()
        gate.grant(waits, fence=3)
        await here.records.known(waits).end.wait()
        ends = [row.end for row in here.records.rows()]
        assert ends == ["completed"] * 3
        assert not any(row.machine for row in here.records.rows())

    served(here, test)


def test_what_another_machine_begins_and_ends_is_seen(
    gate: GateOfRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is submitted there later is listed here, and so are its end and its removal."""
    monkeypatch.setattr(launcher_module, "LOOK_AROUND_S", 0.02)
    here = run_side(gate.path, tmp_path)
    other = Machine(mark="b" * 32, host="node8", boot_id="another", pids="pid:[1]")

    def row(run_id: str) -> dict[str, Any]:
        return next((vars(row) for row in here.records.rows() if row.run_id == run_id), {})

    async def test() -> None:
        with gate_of_runs() as theirs:
            there = run_side(theirs.path, tmp_path, other)
            await there.start()
            run_id, _ = await there.intake.submit(program("print('theirs')"))
            await until(lambda: row(run_id).get("status") == "queued", "their run")
            theirs.grant(run_id, fence=1)
            await until(lambda: row(run_id).get("end") == "completed", "its end")
            assert "theirs" in here.records.known(run_id).summary["output_tail"]
            await there.records.known(run_id).end.wait()  # it is on the disk a moment earlier
            assert await there.orders.delete(run_id) == ""
            await until(lambda: not row(run_id), "its removal")
            await there.stop()

    served(here, test)


# -- runs that take their directory apart ----------------------------------------------------------


@pytest.mark.parametrize(
    "what",
    [
        "shutil.rmtree(run)",
        "shutil.rmtree(f'{run}/attempts/1')",
        "os.rename(run, f'{run}-moved'); os.symlink(other, run)",
        "os.rename(f'{run}/attempts', f'{run}/a'); os.symlink(other, f'{run}/attempts')",
        "os.rename(f'{run}/attempts/1', f'{run}/a'); os.symlink(other, f'{run}/attempts/1')",
        "shutil.rmtree(run); open(run, 'w').close()",
    ],
)
def test_a_run_that_removes_or_replaces_its_directory_ends_at_once(
    gate: GateOfRuns, tmp_path: Path, what: str
) -> None:
    """Its end says what was lost, and what was put in its place is not written to."""
    side, other = run_side(gate.path, tmp_path), tmp_path / "other"
    other.mkdir()
    code = "import os, shutil\nrun = f'{root}/runs/' + os.environ['GPUGATE_RUN_ID']\n"
    code = f"root, other = {str(tmp_path)!r}, {str(other)!r}\n{code}{what}"

    async def test() -> None:
        run_id, _ = await side.intake.submit(program(code))
        gate.grant(run_id, fence=1)
        record = side.records.known(run_id)
        await record.end.wait()
        assert record.summary["end"] == "lost"
        assert "directory was removed" in record.summary["reason"]
        assert list(other.iterdir()) == []
        assert await side.orders.delete(run_id) == ""

    served(side, test)


@pytest.mark.parametrize("torn", [("spec",), ("spec", "summary")])
def test_a_live_run_with_a_torn_spec_goes_on_and_can_be_cancelled(
    gate: GateOfRuns, tmp_path: Path, torn: tuple[str, ...]
) -> None:
    """The next run side knows it by its other records; its environment goes with its end."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    records: list[Record] = []

    async def submit() -> None:
        records.append(await begun(first, gate, program(waits_for(tmp_path / "never"))))

    async def adopt() -> None:
        await cancelled(second, records[0].run_id, "test")

    served(first, submit)
    for name in torn:
        (records[0].path / f"{name}.json").write_text('{"run_id": "2026')
    served(second, adopt)
    assert not any(map(is_alive, tree_of(records[0])))


def test_a_queued_run_with_a_torn_spec_is_lost(gate: GateOfRuns, tmp_path: Path) -> None:
    """It cannot be started any more, which its end and the gate are told."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    runs: list[str] = []

    async def submit() -> None:
        runs.append((await first.intake.submit(program("pass")))[0])

    async def adopt() -> None:
        record = second.records.known(runs[0])
        assert record.summary["end"] == "lost"
        assert "spec.json cannot be read" in record.summary["reason"]
        assert not (record.path / "env.json").exists()
        await until(lambda: gate.all("withdraw"), "its withdrawal")

    served(first, submit)
    (tmp_path / "runs" / runs[0] / "spec.json").write_text("")
    gate.replies["register"] = (200, {"unknown": [], "unneeded": [runs[0]]})
    served(second, adopt)


@pytest.mark.parametrize("field", ["cwd", "interpreter"])
def test_a_queued_run_whose_spec_lacks_a_field_names_the_file(
    gate: GateOfRuns, tmp_path: Path, field: str
) -> None:
    """A spec without a field that a start needs fails the run with the file and the field."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    runs: list[str] = []

    async def submit() -> None:
        runs.append((await first.intake.submit(program("pass")))[0])

    async def adopt() -> None:
        gate.grant(runs[0], fence=1)
        record = second.records.known(runs[0])
        await record.end.wait()
        assert record.summary["end"] == "failed"
        assert f"{path} has no {field}" in record.summary["reason"]

    served(first, submit)
    path = tmp_path / "runs" / runs[0] / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: None}))
    served(second, adopt)


def test_a_live_run_without_any_record_can_be_cancelled(gate: GateOfRuns, tmp_path: Path) -> None:
    """The gate still knows it, and its processes still carry its mark."""
    first, second = run_side(gate.path, tmp_path), run_side(gate.path, tmp_path)
    records: list[Record] = []

    async def submit() -> None:
        records.append(await begun(first, gate, program(waits_for(tmp_path / "never"))))

    async def adopt() -> None:
        await cancelled(second, records[0].run_id, "told by the gate")

    served(first, submit)
    tree = tree_of(records[0])
    for path in (*records[0].path.glob("*.json"), records[0].attempt_path / "launch.json"):
        if path.name != "env.json":
            path.write_text("torn")
    lease = {"name": "told by the gate", "attempt": 1, "fence": 1}
    known = {"unknown": [], "unneeded": [records[0].run_id], "live": {records[0].run_id: lease}}
    gate.replies["register"] = (200, known)
    served(second, adopt)
    assert not any(map(is_alive, tree))
