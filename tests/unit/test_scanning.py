"""Finding runs on the disk: their order, their machine, and torn or foreign files."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import directory, folder, removal, scanning
from jupyter_gpugate.runs.machine import Machine, this_machine
from tests.kit.run_directories import RUN_ID, make, modes, scan, spec, summary


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return where the runs of a user go; it does not exist yet."""
    return tmp_path / "gpugate" / "runs"


@pytest.fixture
def run(root: Path) -> Path:
    """Create a run's directory."""
    return make(root)


def test_runs_are_found_in_the_order_of_their_submission(root: Path) -> None:
    """All runs come back as they were written, the oldest first, without any trouble."""
    run_ids = [f"20260102-030405-aaaa{letter}" for letter in "abc"]
    for run_id, submitted in zip(run_ids, (3.0, 1.0, 2.0), strict=True):
        make(root, run_id, submitted=submitted)
    seen = scan(root)
    assert [found.run_id for found in seen.runs] == [run_ids[1], run_ids[2], run_ids[0]]
    assert seen.runs[0].path == root / run_ids[1]
    assert seen.runs[0].spec == spec(run_ids[1], submitted=1.0)
    assert seen.runs[0].summary == summary(run_ids[1], submitted=1.0)
    assert seen.troubles == ()


def test_a_scan_of_nothing_is_empty(root: Path) -> None:
    """A user without runs has none, and no trouble."""
    assert scan(root) == scanning.Scan((), ())


def test_a_torn_summary_is_made_up_from_the_attempts(root: Path, run: Path) -> None:
    """The run is found with its newest attempt, and the torn file is kept beside."""
    for number in (1, 2, 10):
        directory.create_attempt(run, number, {})
    (run / "summary.json").write_text('{"run_id": "20')
    seen = scan(root)
    assert seen.runs[0].summary == summary(status="active", attempt=10)
    assert seen.runs[0].attempt == directory.newest_attempt(run) == 10
    (trouble,) = seen.troubles
    assert trouble.moved_to is not None
    assert trouble.moved_to.read_text() == '{"run_id": "20'
    assert trouble.moved_to.parent == run


def test_a_spec_that_cannot_be_read_is_made_up_from_what_else_is_known(root: Path) -> None:
    """The run stays where it is and in sight, by its name; its reason to be odd is told."""
    other = make(root, "20260102-030405-zzzzz", workers=2)
    run = directory.create(root, RUN_ID, spec(), {}, {**summary(), "name": "eval"})
    directory.create_attempt(run, 1, {"run_id": RUN_ID, "workers": 3, "devices": ["GPU-a"]})
    found, whole = scan(root, lambda told: told["workers"]).runs
    assert (whole.path, whole.problem) == (other, "")
    assert found.path == run
    facts = [found.spec[field] for field in ("name", "workers", "gpus", "submitted")]
    assert facts == ["eval", 3, 1, 1.0]
    assert "workers" in found.problem


def test_a_folder_in_use_stays_as_it_is(root: Path, tmp_path: Path) -> None:
    """What is no run of ours is neither moved, removed nor closed, whatever its name and age."""
    root.mkdir(parents=True, mode=0o755)
    target = tmp_path / "target"
    target.mkdir()
    (root / "notes.txt").write_text("mine")
    (root / ".new-ideas").mkdir()
    (root / ".gone-fishing").write_text("mine")
    (root / ".gone-20260102-030405-abcde-01234567").write_text("a file, not a folder")
    (root / "20260102-030405-linkk").symlink_to(target)
    (root / "20260102-030405-files").write_text("")
    os.mkfifo(root / "20260102-030405-fifoo")
    (root / "20260102-030405-empty").mkdir()
    (root / "venv").mkdir()
    for path in (root, *root.iterdir()):
        os.utime(path, (1, 1), follow_symlinks=False)
    before = {**modes(root), "": root.stat().st_mode}
    seen = scan(root)
    assert removal.remove_left_behind(root) == []
    assert seen.runs == ()
    assert sorted(t.path.name[-5:] for t in seen.troubles) == ["empty", "fifoo", "files", "linkk"]
    assert {**modes(root), "": root.stat().st_mode} == before
    make(root)
    assert stat.S_IMODE((root / RUN_ID).stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_write_to_takes_no_runs(root: Path, mode: int) -> None:
    """Nobody else may put anything in the place of what a run executes."""
    root.mkdir(parents=True)
    root.chmod(mode)
    with pytest.raises(PermissionError, match="chmod go-w"):
        make(root)
    assert stat.S_IMODE(root.stat().st_mode) == mode


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "huge", "foreign", "unreadable link"])
def test_a_spec_that_is_no_plain_file_of_ours_is_not_read(
    root: Path, run: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link, pipe, folder, huge file or somebody else's file in the place of a spec is no spec."""
    place, real = run / "spec.json", tmp_path / "spec.json"
    place.rename(real)
    if kind == "link":
        place.symlink_to(real)
    elif kind == "unreadable link":
        place.symlink_to(place)
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "huge":
        place.write_bytes(real.read_bytes() + b" " * folder.RECORD_LIMIT)
    else:
        real.rename(place)
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
        monkeypatch.setattr(scanning, "own_root", lambda _: None)
    seen = scan(root)
    assert all("spec" in found.problem for found in seen.runs)
    assert [found.spec["name"] for found in seen.runs] == ([] if kind == "foreign" else ["?"])
    assert len(seen.troubles) == 1


def test_drafts_of_killed_processes_are_cleared_away_when_they_are_old(root: Path) -> None:
    """A half-made or half-removed run is never read; it goes once nobody can still be at it."""
    make(root)
    old, young = root / ".new-20260102-030405-olddd", root / ".gone-20260102-030405-young-01234567"
    for path in (old, young):
        path.mkdir()
        (path / "spec.json").write_text("{")
    past = time.time() - 2 * removal.ABANDONED_S
    os.utime(old, (past, past))
    seen = scan(root)
    assert removal.remove_left_behind(root) == []
    assert [found.run_id for found in seen.runs] == [RUN_ID]
    assert seen.troubles == ()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_scan_tells_what_it_cannot_move(
    root: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk trouble is reported with what stays in place, and nothing is raised."""
    (root / "stray").write_text("")
    (run / "summary.json").write_text("")

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", read_only)
    monkeypatch.setattr(Path, "rename", read_only)
    seen = scan(root)
    assert [found.run_id for found in seen.runs] == [RUN_ID]
    (trouble,) = seen.troubles
    assert trouble.path == run / "summary.json"
    assert "left where it is" in str(trouble)


# -- whose it is ----------------------------------------------------------------------------------


def machine(**differs: str) -> Machine:
    """Return a machine, or one that differs in what is given."""
    facts = {"mark": "a" * 32, "host": "node7", "boot_id": "boot-1", "pids": "pid:[1]"}
    return Machine(**{**facts, **differs})


@pytest.mark.parametrize(
    ("now", "is_owned"),
    [
        (machine(), True),
        (machine(boot_id="boot-2", pids="pid:[2]", host="renamed"), True),  # a reboot
        (machine(mark="b" * 32), True),  # its state directory was lost, in the same boot
        (machine(mark="b" * 32, boot_id="boot-2"), False),
        (machine(mark="b" * 32, pids="pid:[2]"), False),  # a container beside it
        (machine(mark="b" * 32, boot_id="boot-2", host="node8"), False),
    ],
)
def test_a_run_belongs_to_the_machine_whose_mark_it_has(now: Machine, is_owned: bool) -> None:
    """A reboot and a new name change no owner; another machine's boot, kernel or image does."""
    assert now.owns(machine().to_json()) is is_owned
    assert now.owns(None)  # written before runs had a mark


def test_the_mark_of_a_machine_stays_in_its_state_directory(tmp_path: Path) -> None:
    """Asked again, a machine has the same mark; another state directory is another machine's."""
    here, there = tmp_path / "a", tmp_path / "b"
    here.mkdir()
    there.mkdir()
    mark = this_machine(here).mark
    assert this_machine(here).mark == mark != this_machine(there).mark
    (here / "machine").write_text("torn")
    assert this_machine(here).mark == this_machine(here).mark != mark


@pytest.mark.parametrize("damage", ["none", "summary", "spec", "both"])
def test_nothing_of_another_machines_run_is_changed(root: Path, damage: str) -> None:
    """Its directory is read, shown as another machine's and left byte for byte, torn or not."""
    told = {"machine": machine(mark="b" * 32, boot_id="other").to_json()}
    run = directory.create(root, RUN_ID, {**spec(), **told}, {}, {**summary(), **told})
    directory.create_attempt(run, 1, {"run_id": RUN_ID, **told})
    for name in ("summary", "spec"):
        if damage in (name, "both"):
            (run / f"{name}.json").write_text("{")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (found,) = scanning.Scanner(root, machine()).scan().runs
    assert not found.here
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_without_anything_to_start_it_with_does_not_begin_again(root: Path) -> None:
    """One whose summary is torn after its end stays ended, also if no attempt of it ever ran."""
    run = make(root)
    directory.forget_environment(run)
    (run / "summary.json").write_text("{")
    (found,) = scan(root).runs
    assert (found.summary["status"], found.summary["end"]) == ("ended", "lost")
