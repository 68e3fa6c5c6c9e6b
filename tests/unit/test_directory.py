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

from jupyter_gpugate.core.model import AttemptOutcome, EndReport
from jupyter_gpugate.core.protocol import to_json
from jupyter_gpugate.runs import directory, folder, ids, removal, scanning, staging
from jupyter_gpugate.runs.machine import Machine, this_machine

RUN_ID = "20260102-030405-abcde"
ENVIRONMENT = {"PATH": "/bin", "API_KEY": "secret", "ODD": "\udcff"}
END = to_json(EndReport(AttemptOutcome.COMPLETED, exit_code=0, episodes_done=3))


def spec(run_id: str = RUN_ID, **more: Any) -> dict[str, Any]:
    """Return as much of a spec as a directory looks at."""
    return {"run_id": run_id, "name": "eval", "submitted": 1.0, **more}


def summary(run_id: str = RUN_ID, **more: Any) -> dict[str, Any]:
    """Return a summary as it is at submit."""
    return {"run_id": run_id, "status": "queued", "submitted": 1.0, "attempt": 0, **more}


def make(root: Path, run_id: str = RUN_ID, **more: Any) -> Path:
    """Create a run's directory."""
    return directory.create(
        root, run_id, spec(run_id, **more), ENVIRONMENT, summary(run_id, **more)
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


def scan(root: Path, read: Callable[[Any], object] | None = None) -> scanning.Scan:
    """Read all runs below a root."""
    return scanning.Scanner(root, read_spec=read).scan()


def staging_folder(tmp_path: Path) -> Path:
    """Make a folder where clients put inputs."""
    staged = tmp_path / "gpugate" / "staging" / "staged"
    staged.mkdir(parents=True)
    return staged


def names(path: Path) -> list[str]:
    """Return what is in a folder, sorted."""
    return sorted(entry.name for entry in path.iterdir())


def modes(path: Path) -> dict[str, str]:
    """Return the permissions of everything below a folder."""
    return {str(p.relative_to(path)): oct(stat.S_IMODE(p.lstat().st_mode)) for p in path.rglob("*")}


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
    with pytest.raises(ValueError, match="no run id"):
        make(root, run_id)
    with pytest.raises(ValueError, match="no run id"):
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
    assert "belongs to another user" in str(scan(root).troubles[0])


# -- attempts --------------------------------------------------------------------------------------


def test_an_attempt_has_its_own_copies_of_the_programs(run: Path, attempt: Path) -> None:
    """Launch facts, programs and the cell's body are there, byte for byte, under their names."""
    here = Path(directory.__file__).parent
    assert attempt == run / "attempts" / "1"
    assert names(attempt) == ["cell.py", "launch.json", "supervisor.py", "worker.py"]
    assert (attempt / "worker.py").read_bytes() == (here / "cell.py").read_bytes()
    assert (attempt / "supervisor.py").read_bytes() == (here / "supervisor.py").read_bytes()
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
    assert "is no plain file" in found["end"]["reason"]
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


def test_a_summary_gets_the_runs_own_words(attempt: Path) -> None:
    """Error, warnings and the end of the output are taken from what the run has told."""
    error = {"ename": "ValueError", "evalue": "no", "traceback": ["line"]}
    events: list[dict[str, Any]] = [
        {"event": "display", "data": {}},
        {"event": "warning", "text": "one"},
        {"event": "error", **error},
    ]
    (attempt / "messages.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n{")
    (attempt / "output.log").write_text("the end")
    told = directory.told_by_run(attempt)
    assert told == {"error": error, "warnings": ["one"], "output_tail": "the end"}
    (attempt / "messages.jsonl").rename(attempt / "display.jsonl")  # as earlier versions call it
    assert directory.told_by_run(attempt) == told
    (attempt / "display.jsonl").unlink()
    assert directory.told_by_run(attempt)["error"] is None


# -- output ----------------------------------------------------------------------------------------


def test_output_is_read_from_any_byte(attempt: Path) -> None:
    """Reading piece by piece gives all of it once; its end is at most 64 KiB long."""
    text = "".join(f"line {i} äöü €\n" for i in range(10_000))
    (attempt / "output.log").write_text(text)
    pieces, at = [], 0
    while True:
        piece, following = directory.read_output(attempt, at, 1000)
        if not piece:
            break
        pieces.append(piece)
        assert following <= at + 1000
        at = following
    assert "".join(pieces) == text
    assert at == len(text.encode())
    tail, end = directory.read_output(attempt)
    assert end == at
    assert text.endswith(tail)
    assert 64 * 1024 - 3 <= len(tail.encode()) <= 64 * 1024
    (attempt / "output.log").write_text("€" * 50_000)  # three bytes each: the cut is inside one
    said, shown = directory.output_tail(attempt).splitlines()
    assert "earlier" in said
    assert set(shown) == {"€"}


def test_output_from_a_byte_on_is_all_of_it_or_its_end(attempt: Path) -> None:
    """A short rest is whole, a long one begins at a line behind the hint to the others."""
    (attempt / "output.log").write_text("before\nä\nafter\n")
    assert directory.output_from(attempt, 7) == "ä\nafter\n"
    assert directory.output_from(attempt, 100) == ""
    lines = [f"line {number} ä" for number in range(10_000)]
    (attempt / "output.log").write_text("\n".join(lines))
    said, *shown = directory.output_from(attempt, 5).splitlines()
    assert "earlier lines" in said
    assert shown == lines[-len(shown) :]
    assert directory.output_tail(attempt, until=13).splitlines() == [*lines[:1], "lin"]


def test_of_events_without_end_the_newest_are_read(attempt: Path) -> None:
    """A file beyond any limit never reads as empty: its end is read, and the rest is counted."""
    lines = [json.dumps({"event": "episode", "index": index}) + "\n" for index in range(1_000)]
    (attempt / "episodes.jsonl").write_text("".join(lines))
    size = (attempt / "episodes.jsonl").stat().st_size
    for limit in (1, 500, size - 1, size, size + 1):
        found, earlier = directory.read_events(attempt, "episodes.jsonl", limit)
        indices = [event["index"] for event in found]
        assert indices == list(range(earlier, 1_000))
        assert sum(map(len, lines[earlier:])) <= limit


def test_warnings_of_a_summary_are_told_once_and_have_an_end(attempt: Path) -> None:
    """However often a run warned, its summary stays small; the last ones are in it."""
    texts = ["again"] * 500 + [f"warning {number}" for number in range(1_000)] + ["and the rest"]
    events = [json.dumps({"event": "warning", "text": text}) for text in texts]
    (attempt / "messages.jsonl").write_text("\n".join(events))
    warnings = directory.told_by_run(attempt)["warnings"]
    assert warnings[0] == "again"
    assert warnings[-1] == "and the rest"
    assert len(warnings) == directory.MOST_WARNINGS + 1
    assert "902 more warnings are not shown" in warnings


def test_the_end_of_a_long_output_begins_with_a_whole_line(attempt: Path) -> None:
    """What is cut off is said in its place, and what is left starts at the start of a line."""
    lines = [f"line {number} äöü" for number in range(10_000)]
    (attempt / "output.log").write_text("\n".join(lines))
    said, *shown = directory.output_tail(attempt).splitlines()
    assert said == f'[earlier lines: jupyter_gpugate.get("{attempt.parents[1].name}").output()]'
    assert shown == lines[-len(shown) :]
    assert len(directory.output_tail(attempt).encode()) <= 64 * 1024
    (attempt / "output.log").write_text("short\n")
    assert directory.output_tail(attempt) == "short\n"


def test_output_that_is_not_there_is_empty(attempt: Path) -> None:
    """No output yet, a position past the end, and a link in its place all read as nothing."""
    assert directory.read_output(attempt, 5) == ("", 5)
    assert directory.output_tail(attempt) == ""
    (attempt / "output.log").write_text("abc")
    assert directory.read_output(attempt, 99) == ("", 3)
    (attempt / "output.log").unlink()
    (attempt / "output.log").symlink_to("/etc/passwd")
    assert directory.read_output(attempt, 0) == ("", 0)


def test_a_character_is_never_cut_in_two(attempt: Path) -> None:
    """A character that is still being written comes with the next read; odd bytes pass."""
    log = attempt / "output.log"
    log.write_bytes("a€".encode()[:-1])
    assert directory.read_output(attempt, 0) == ("a", 1)
    log.write_bytes("a€b".encode())
    assert directory.read_output(attempt, 1) == ("€b", 5)
    log.write_bytes(b"a\xff\xc3(b")
    assert directory.read_output(attempt, 0) == ("a\ufffd\ufffd(b", 5)


def test_offsets_go_on_after_a_long_log_has_lost_its_beginning(attempt: Path) -> None:
    """Bytes are counted from the first that was ever printed; what is gone is skipped."""
    note = b"[gpugate: the first 1000 bytes are gone]\n"
    (attempt / "output.log").write_bytes(note + b"the rest\n")
    assert directory.read_output(attempt, 1000) == ("the rest\n", 1009)
    assert directory.read_output(attempt, 1009) == ("", 1009)
    assert directory.read_output(attempt, 10) == ((note + b"the rest\n").decode(), 1009)


# -- at start-up -----------------------------------------------------------------------------------


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
    events: list[dict[str, Any]] = [{"event": "error", **error}]
    events += [
        {"event": "warning", "text": much[:99_999]} for _ in range(90 * (words == "warnings"))
    ]
    (attempt / "display.jsonl").write_text("\n".join(map(json.dumps, events)))
    told = directory.told_by_run(attempt)
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
