"""The run directory on a real file system: made whole, read with suspicion, removed."""

from __future__ import annotations

import calendar
import errno
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import directory, events, folder, ids, removal, staging
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


def test_the_outcome_stands_once_it_is_done(attempt: Path) -> None:
    """Without ``_DONE`` an attempt has not ended; with it, its outcome is what was written."""
    (attempt / "outcome.json").write_text(json.dumps({"end": END}))
    assert directory.outcome_of(attempt) is None
    (attempt / "_DONE").touch()
    assert directory.outcome_of(attempt) == {"end": END, "kill": None}


def test_an_outcome_written_for_a_dead_supervisor_is_read_like_its_own(attempt: Path) -> None:
    """The run side can write the end of an attempt whose supervisor left none."""
    outcome = {"end": END, "kill": {"means": "sweep", "ms": 3, "survivors": []}}
    directory.write_outcome(attempt, outcome)
    assert directory.outcome_of(attempt) == outcome


@pytest.mark.parametrize(
    "torn", [None, b"", b"{", b"[]", b'{"end": 1}', b'{"end": {"outcome": "fine"}}', b"\xff\xfe"]
)
def test_a_torn_outcome_is_lost_and_put_aside(attempt: Path, torn: bytes | None) -> None:
    """An end that cannot be read is ``lost`` with the reason, and the file is kept for a look."""
    (attempt / "_DONE").touch()
    if torn is not None:
        (attempt / "outcome.json").write_bytes(torn)
    found = directory.outcome_of(attempt) or {}
    assert found["end"]["outcome"] == "lost"
    assert "cannot be read" in found["end"]["reason"]
    aside = [name for name in names(attempt) if name.startswith("outcome.json.torn-")]
    assert len(aside) == (0 if torn is None else 1)


def test_an_outcome_that_is_a_link_is_lost(attempt: Path) -> None:
    """What is no file of the attempt itself is not followed, and is put aside like a torn one."""
    (attempt / "_DONE").touch()
    (attempt / "outcome.json").symlink_to("/etc/passwd")
    found = directory.outcome_of(attempt) or {}
    assert found["end"]["outcome"] == "lost"
    assert "is not a regular file" in found["end"]["reason"]
    assert "outcome.json" not in names(attempt)


def test_a_tree_counts_only_in_the_boot_it_was_written_in(attempt: Path) -> None:
    """Supervisor and processes are read for this boot, and odd entries among them are left out."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    tree = {"boot_id": boot_id, "supervisor": [70, 7], "tree": [[71, 8], [1, 1], ["x"], 3, [72, 9]]}
    assert (directory.supervisor_of(attempt), directory.tree_of(attempt)) == (None, ())
    (attempt / "tree.json").write_text(json.dumps(tree))
    assert directory.supervisor_of(attempt) == (70, 7)
    assert directory.tree_of(attempt) == ((71, 8), (72, 9))
    (attempt / "tree.json").write_text(json.dumps({**tree, "boot_id": "another"}))
    assert (directory.supervisor_of(attempt), directory.tree_of(attempt)) == (None, ())


def test_a_stop_says_its_reason(attempt: Path) -> None:
    """The reason of a stop is on the disk, whole, where the supervisor looks for it."""
    directory.write_stop(attempt, {"reason": "evicted", "at": 5.0})
    assert json.loads((attempt / "stop.json").read_bytes()) == {"reason": "evicted", "at": 5.0}


def test_episodes_are_read_over_all_attempts(run: Path) -> None:
    """Lines of all attempts come in order with their attempt; what is no line is left out."""
    for number in (2, 10, 1):
        path = directory.create_attempt(run, number, {})
        line = json.dumps({"event": "episode", "index": number})
        (path / "episodes.jsonl").write_text(f'{line}\n[1]\n{{"event": "epi')
    found, _ = directory.read_episodes(run)
    assert [(line["attempt"], line["index"]) for line in found] == [(1, 1), (2, 2), (10, 10)]


# -- the end ---------------------------------------------------------------------------------------


def test_the_environment_goes_when_the_run_has_ended(run: Path) -> None:
    """After the end no file of the run holds its environment; doing it twice is no error."""
    directory.forget_environment(run)
    directory.forget_environment(run)
    assert not any(b"secret" in path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert json.loads((run / "spec.json").read_bytes()) == spec()


def test_a_summary_is_replaced_whole(run: Path) -> None:
    """The new summary is there, and a failed write leaves the old one and no draft."""
    directory.write_summary(run, summary(status="ended", end="completed"))
    assert json.loads((run / "summary.json").read_bytes())["end"] == "completed"
    with pytest.raises(TypeError):
        directory.write_summary(run, {"not": object()})
    assert json.loads((run / "summary.json").read_bytes())["end"] == "completed"
    assert names(run) == [
        "attempts",
        "env.json",
        "inputs",
        "spec.json",
        "summary.json",
    ]


def test_a_removed_run_is_gone_and_its_links_lead_nowhere(
    root: Path, run: Path, tmp_path: Path
) -> None:
    """Removing takes the directory alone; what a link in it points to stays."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "data").write_text("mine")
    (run / "attempts" / "1").symlink_to(target)
    removal.remove_run(run)
    removal.remove_run(run)
    assert names(root) == []
    assert (target / "data").read_text() == "mine"


def nested(place: Path, depth: int, name: str = "d") -> None:
    """Make folders inside one another, deeper than any path may be long."""
    here = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_folders_of_any_depth_are_removed(root: Path, run: Path) -> None:
    """Neither the interpreter's recursion nor the length of a path bounds what can be removed."""
    nested(run, 2 * sys.getrecursionlimit())
    nested(run / "attempts", 300, "d" * 200)
    assert removal.remove_run(run) == ""
    assert names(root) == []


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o444])
def test_folders_that_let_nobody_in_are_removed_by_their_owner(mode: int) -> None:
    """Permissions that a run set on its own folders keep nobody from removing it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        run = make(Path(place))
        for inner in (run / "a" / "b", run / "a" / "c"):
            inner.mkdir(parents=True)
            (inner / "file").write_text("x")
            inner.chmod(mode)
        (run / "a").chmod(mode)
        run.chmod(mode)
        assert as_plain_user(Path(place), lambda: removal.remove_run(run)) == ""
        assert names(Path(place)) == []


def test_what_cannot_be_removed_is_told_and_all_else_goes(
    root: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file that stays keeps no other, and the answer has where it is and why."""
    for name in ("a", "b", "stays", "z"):
        (run / "inputs" / name).write_text("x")
    real = os.unlink

    def unlink(name: str, **how: Any) -> None:
        if name == "stays":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(name, **how)

    monkeypatch.setattr(os, "unlink", unlink)
    left = removal.remove_run(run)
    (aside,) = root.iterdir()
    assert str(aside) in left
    assert "Operation not permitted" in left
    assert [path.name for path in aside.rglob("*") if path.is_file()] == ["stays"]


def test_a_link_in_the_place_of_a_run_is_removed_and_not_followed(
    root: Path, run: Path, tmp_path: Path
) -> None:
    """A run that put a link where its directory was has given nothing else away."""
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        staging.forget_inputs(run)
    assert removal.remove_run(run) == ""
    assert names(root) == []
    assert "inputs" in names(tmp_path / "elsewhere")


@pytest.mark.parametrize("record", ["spec", "env", "summary"])
def test_no_record_is_written_that_its_reader_would_refuse(root: Path, record: str) -> None:
    """What is too large is refused before the run is there."""
    records = {"spec": spec(), "env": ENVIRONMENT, "summary": summary()}
    records[record] = {**records[record], "much": "x" * folder.RECORD_LIMIT}
    with pytest.raises(folder.TooLarge, match=f"{record}.json"):
        directory.create(root, RUN_ID, records["spec"], records["env"], records["summary"])
    assert names(root) == []


@pytest.mark.parametrize("words", ["evalue", "traceback", "warnings", "reason"])
def test_a_summary_is_readable_whatever_a_run_tells(
    root: Path, run: Path, attempt: Path, words: str
) -> None:
    """Nine million characters that cost six bytes each in JSON leave an end that is read again."""
    much = "\u20ac" * 9_000_000
    error: dict[str, Any] = {"ename": "E", "evalue": "no", "traceback": ["line"]}
    if words in error:
        error[words] = much if words == "evalue" else [much[:99_999]] * 90
    lines: list[dict[str, Any]] = [{"event": "error", **error}]
    lines += [
        {"event": "warning", "text": much[:99_999]} for _ in range(90 * (words == "warnings"))
    ]
    (attempt / "display.jsonl").write_text("\n".join(map(json.dumps, lines)))
    told = events.told_by_run(attempt)
    assert len(json.dumps(told)) < 4 << 20
    ended = summary(status="ended", end="failed", **told)
    reason = much if words == "reason" else ""
    directory.write_summary(run, {**ended, "reason": reason})
    (found,) = scan(root).runs
    assert (found.summary["status"], found.summary["end"]) == ("ended", "failed")


def as_plain_user(place: Path, call: Callable[[], str]) -> str:
    """Call something as a user whom permissions bind, to whom all below ``place`` belongs."""
    if os.geteuid() != 0:
        return call()
    for path in (place, *place.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(12345, 12345, 12345)
            os.write(write, call().encode())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        return told.read()


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
        directory.write_stop(link, {"reason": "cancelled"})
    assert not (elsewhere / "stop.json").exists()
