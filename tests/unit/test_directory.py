"""The run directory on a real file system: made whole, read with suspicion, removed."""

from __future__ import annotations

import calendar
import errno
import json
import os
import stat
import time
from pathlib import Path

import pytest

from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.runs import directory, ids, removal, staging
from tests.kit.run_directories import (
    END,
    ENVIRONMENT,
    RUN_ID,
    make,
    modes,
    names,
    scan,
    spec,
    staging_folder,
    summary,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return where the runs of a user go; it does not exist yet."""
    return tmp_path / "gpugate" / "runs"


@pytest.fixture
def run(root: Path) -> Path:
    """Create a run's directory."""
    return make(root)


@pytest.fixture
def attempt(run: Path) -> Path:
    """Create the first attempt of a run."""
    return directory.create_attempt(run, 1, {"attempt": 1, "fence": 7}, "x = 1\n")


# -- making ----------------------------------------------------------------------------------------


def test_ids_are_times_and_letters_and_never_the_same() -> None:
    """A thousand ids of one second have the one form and all differ."""
    made = {ids.new_run_id() for _ in range(50)}
    assert len(made) == 50
    assert all(ids.RUN_ID.fullmatch(run_id) for run_id in made)


@pytest.mark.parametrize("zone", ["UTC", "UTC-14", "UTC+12"])
def test_ids_are_the_same_times_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """An id is a time in UTC, in which no hour comes twice: later runs sort later."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        before = time.time()
        made = ids.new_run_id()
        told = calendar.timegm(time.strptime(made[:15], "%Y%m%d-%H%M%S"))
        assert int(before) <= told <= time.time()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_run_is_there_whole_and_for_its_owner_alone(root: Path) -> None:
    """All files are there, 0600 in folders of 0700, whatever the umask; no draft is left."""
    before = os.umask(0o000)
    try:
        run = make(root)
    finally:
        os.umask(before)
    assert json.loads((run / "spec.json").read_bytes()) == spec()
    assert json.loads((run / "summary.json").read_bytes()) == summary()
    assert json.loads((run / "env.json").read_bytes()) == ENVIRONMENT
    assert modes(root) == {
        RUN_ID: "0o700",
        f"{RUN_ID}/attempts": "0o700",
        f"{RUN_ID}/inputs": "0o700",
        f"{RUN_ID}/spec.json": "0o600",
        f"{RUN_ID}/summary.json": "0o600",
        f"{RUN_ID}/env.json": "0o600",
    }
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_an_id_is_taken_once(root: Path, run: Path) -> None:
    """A second run of the same id is refused and the first one stays as it is."""
    with pytest.raises(FileExistsError):
        directory.create(root, RUN_ID, spec(name="other"), {}, summary())
    assert json.loads((run / "spec.json").read_bytes())["name"] == "eval"
    assert names(root) == [RUN_ID]


@pytest.mark.parametrize("number", range(1, 5))
def test_a_full_disk_leaves_nothing_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """When any write fails the error comes through, and no part of the run is there."""
    root.mkdir(parents=True)
    calls = iter(range(1, 100))
    real = os.fsync

    def full(descriptor: int) -> None:
        if next(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        make(root)
    assert names(root) == []


@pytest.mark.parametrize("run_id", ["", "..", "../x", "20260102-030405-abcdE", "x" * 300, "a\0b"])
def test_only_ids_become_paths(root: Path, run_id: str) -> None:
    """Anything but an id is refused before a path is made of it."""
    with pytest.raises(ValueError, match="not a run id"):
        make(root, run_id)
    with pytest.raises(ValueError, match="not a run id"):
        removal.remove_run(root / f"{run_id}x")
    assert not root.exists() or names(root) == []


def test_staged_inputs_become_the_runs(root: Path, tmp_path: Path) -> None:
    """A folder that a client has staged is moved into the run as it is, and closed to others."""
    staged = staging_folder(tmp_path)
    staged.chmod(0o755)
    (staged / "x.pickle").write_bytes(b"a pickle")
    (staged / "größe.buffers").write_bytes(b"a buffer")
    run = directory.create(root, RUN_ID, spec(), {}, summary(), str(staged))
    assert names(run / "inputs") == ["größe.buffers", "x.pickle"]
    assert stat.S_IMODE((run / "inputs").stat().st_mode) == 0o700
    assert not staged.exists()


@pytest.mark.parametrize("wrong", ["name", "link", "folder", "fifo", "missing", "staged link"])
def test_odd_things_are_not_taken_for_inputs(root: Path, tmp_path: Path, wrong: str) -> None:
    """Links, folders, pipes and other names are refused by name, and no run is made."""
    staged, secret = staging_folder(tmp_path), tmp_path / "secret"
    secret.write_text("not yours")
    odd = staged / "x.pickle"
    if wrong == "name":
        (staged / "x.txt").write_text("")
    elif wrong == "link":
        odd.symlink_to(secret)
    elif wrong == "folder":
        odd.mkdir()
    elif wrong == "fifo":
        os.mkfifo(odd)
    elif wrong == "missing":
        staged.rmdir()
    else:
        staged = staged.with_name("link")
        staged.symlink_to("staged")
    with pytest.raises(staging.NotStaged):
        directory.create(root, RUN_ID, spec(), {}, summary(), str(staged))
    assert names(root) == []
    assert secret.read_text() == "not yours"


@pytest.mark.parametrize("folder", ["", "staged"])
def test_an_input_that_was_not_staged_is_named(root: Path, tmp_path: Path, folder: str) -> None:
    """No run is made without a value that its spec names, and what was staged is left alone."""
    staged = staging_folder(tmp_path)
    (staged / "x.pickle").write_bytes(b"a pickle")
    given = str(staged) if folder else ""
    with pytest.raises(staging.NotStaged, match="no value was staged for y"):
        directory.create(root, RUN_ID, {**spec(), "inputs": ["y"]}, {}, summary(), given)
    assert names(root) == []
    assert names(staged) == ["x.pickle"]


def test_a_relative_folder_is_not_taken_for_inputs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a client's folder is does not depend on where this process happens to stand."""
    (tmp_path / "staged").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(staging.NotStaged, match="absolute"):
        directory.create(root, RUN_ID, spec(), {}, summary(), "staged")


def test_a_folder_of_ones_own_is_not_taken_for_inputs(root: Path, tmp_path: Path) -> None:
    """Only what lies where clients stage becomes a run's: somebody's own pickles stay."""
    own = tmp_path / "models"
    own.mkdir()
    (own / "x.pickle").write_bytes(b"years of work")
    for given in (own, tmp_path / "gpugate" / "staging" / ".." / ".." / "models"):
        with pytest.raises(staging.NotStaged, match="gpugate/staging"):
            directory.create(root, RUN_ID, {**spec(), "inputs": ["x"]}, {}, summary(), str(given))
    assert names(own) == ["x.pickle"]


def test_a_folder_of_another_user_takes_no_runs(root: Path) -> None:
    """Run directories are made in a folder of one's own or not at all."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root.mkdir(parents=True)
    os.chown(root, 12345, 12345)
    with pytest.raises(PermissionError):
        make(root)
    assert "belongs to user 12345" in str(scan(root).troubles[0])


# -- attempts --------------------------------------------------------------------------------------


def test_an_attempt_has_what_its_supervisor_needs(run: Path, attempt: Path) -> None:
    """The instructions and the cell's body are there, under their names."""
    assert attempt == run / "attempts" / "1"
    assert names(attempt) == ["cell.py", "launch.json"]
    assert (attempt / "cell.py").read_text() == "x = 1\n"
    assert directory.launch_of(attempt) == {"attempt": 1, "fence": 7}
    assert "cell.py" not in names(directory.create_attempt(run, 2, {"attempt": 2}))
    assert names(run / "attempts") == ["1", "2"]


def test_an_attempt_that_never_began_is_made_anew(run: Path, attempt: Path) -> None:
    """The same attempt may be prepared again as long as nothing of it has run."""
    directory.create_attempt(run, 1, {"attempt": 1, "fence": 8})
    assert (directory.launch_of(attempt) or {})["fence"] == 8


@pytest.mark.parametrize("trace", ["tree.json", "outcome.json", "_DONE"])
def test_an_attempt_that_began_is_never_replaced(run: Path, attempt: Path, trace: str) -> None:
    """What a supervisor has written is kept, and a second start of the attempt is refused."""
    (attempt / trace).write_text("")
    with pytest.raises(FileExistsError):
        directory.create_attempt(run, 1, {"attempt": 1, "fence": 8})
    assert (directory.launch_of(attempt) or {})["fence"] == 7
    assert names(run / "attempts") == ["1"]


def test_a_linked_attempt_is_not_followed(run: Path, tmp_path: Path) -> None:
    """An attempt that is a link to elsewhere is neither read nor written."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "_DONE").touch()
    (elsewhere / "outcome.json").write_text(json.dumps({"end": END}))
    link = run / "attempts" / "1"
    link.symlink_to(elsewhere)
    assert directory.outcome_of(link) is None
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        directory.write_stop(link, Stop.of(StopKind.CANCELLED))
    assert not (elsewhere / "stop.json").exists()
