"""What surrounds a gate: folders with other people's things in them, and users without a name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.gate.journal import history
from jupyter_gpugate.gate.journal.journal import Journal, JournalError
from jupyter_gpugate.gate.lock import GateLock
from jupyter_gpugate.gate.port import SampleRow
from jupyter_gpugate.places import check_own, open_private, write_private
from tests.kit.real_server import Places, Served, until

STRANGER = 12345
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
CLI = Path(sys.executable).with_name("jupyter-gpugate")


# -- modules that lie about -----------------------------------------------------------------------


def litter(folder: Path, marker: Path) -> None:
    """Put a script in a folder for each module of the standard library, under its name."""
    script = f"open({str(marker)!r}, 'a').write(__file__ + chr(10))\nraise SystemExit('mine')\n"
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(script)
    (folder / "tornado.py").write_text(script)


@pytest.fixture
def littered(places: Places, tmp_path: Path) -> Iterator[Path]:
    """Fill the home and the working folder; nothing of that may have been imported in the end."""
    marker = tmp_path / "imported"
    litter(places.root / "home", marker)
    litter(places.notebooks, marker)
    yield places.notebooks
    assert not marker.exists(), marker.read_text()


@pytest.mark.parametrize("path", [None, "", ":", ".:relative"])
def test_a_gate_that_a_client_starts_imports_nothing_that_lies_about(
    path: str | None, places: Places, littered: Path
) -> None:
    """Whatever the user's scripts are called, in home or working folder: gate, readers and
    supervisor come up, and the run completes.
    """
    environ = places.environ(**({} if path is None else {"PYTHONPATH": path}))
    for folder in (littered, places.root / "home"):
        done = subprocess.run(
            [str(CLI), "run", "first", "--gpus", "0", "--", "true"],
            env=environ,
            cwd=folder if path is None else "/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_what_goes_on_after_a_server_imports_nothing_that_lies_about(
    places: Places, littered: Path, tmp_path: Path
) -> None:
    """A server hands its runs on to a process that starts as cleanly, and finds this package where
    the server has found it.
    """
    release = tmp_path / "release"
    server = Served(places, PYTHONPATH="relative:/usr/lib")
    waits = f"while [ ! -e {release} ]; do sleep 0.1; done"
    body = {"name": "x", "argv": ["/bin/sh", "-c", waits], "cwd": str(littered), "gpus": 0}
    answer = server.ask("POST", "/runs", body)
    assert answer.status == 202, answer.body
    run_id = answer.json["run_id"]
    server.active(run_id)
    server.stop()
    lock = GateLock(places.root / "state" / "gpugate" / "gate.lock")
    variables = Path(f"/proc/{until(lock.holder, 'a gate').pid}/environ").read_bytes().split(b"\0")
    assert os.fsencode(f"PYTHONPATH={Path(__file__).resolve().parents[2]}:/usr/lib") in variables
    release.touch()
    summary = places.runs / run_id / "summary.json"
    until(lambda: '"end": "completed"' in summary.read_text(), "the run has ended")


def test_a_gate_whose_state_is_removed_goes_on_and_writes_all_of_it_down_again(
    places: Places, tmp_path: Path
) -> None:
    """A cleaner takes the state directory under a live gate: runs go on, new ones are taken, and
    the next gate has what was before, under the same mark of the machine.
    """
    state, release = places.root / "state" / "gpugate", tmp_path / "release"
    first, second = Served(places), None
    try:
        waits = ["/bin/sh", "-c", f"while [ ! -e {release} ]; do sleep 0.1; done"]
        body = {"argv": waits, "cwd": "/", "gpus": 0}
        before = first.ask("POST", "/runs", {"name": "before", **body}).json["run_id"]
        first.active(before)
        mark = (state / "machine").read_text()
        shutil.rmtree(state)

        after = first.ask("POST", "/runs", {"name": "after", **body})
        assert after.status == 202, after.body
        first.active(after.json["run_id"])
        until((state / "machine").exists, "the mark is there again")
        assert (state / "machine").read_text() == mark
        first.kill()

        second = Served(places)
        for run_id in (before, after.json["run_id"]):
            second.active(run_id)
            story = second.ask("GET", f"/runs/{run_id}/story").json["story"]
            assert story[0]["event"] == "requested"
    finally:
        release.touch()
        for server in (first, second):
            if server is not None:
                server.kill()


def test_a_server_whose_gate_is_refused_serves_and_stops(places: Places) -> None:
    """A place that cannot be used costs a server its gate, and nothing else."""
    server = Served(places, ready="/api/status", GPUGATE_USER_SOCKET="relative.sock")
    assert "absolute path" in server.log.read_text()
    server.stop()
    assert server.process.returncode == 0


# -- users without a name, or a home --------------------------------------------------------------


@pytest.mark.parametrize("home", ["given", "none"])
def test_a_user_without_a_name_has_a_gate(home: str, places: Places) -> None:
    """In a container a uid may be a bare number: that serves as the name."""
    environ = places.environ()
    for name in ("USER", "LOGNAME", "USERNAME", *(["HOME"] if home == "none" else [])):
        environ.pop(name, None)
    nameless = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if subprocess.run([*nameless, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces cannot be made here")
    command = [*nameless, str(CLI), "run", "first", "--gpus", "0", "--", "id", "-u"]
    done = subprocess.run(
        command, env=environ, cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "54321"), done.stderr


# -- places that are somebody else's, or hold what others have planted ----------------------------


def test_a_configured_folder_keeps_its_mode(tmp_path: Path) -> None:
    """It may serve others as well: one that they can write to is refused, not closed."""
    for mode, closed, refused in (
        (0o700, True, False),
        (0o755, False, False),
        (0o755, True, True),
        (0o757, False, True),
        (0o1777, False, True),
    ):
        folder = tmp_path / f"{mode:o}-{closed}"
        folder.mkdir()
        folder.chmod(mode)
        if refused:
            with pytest.raises(PermissionError, match=rf"the_setting: {folder} .*mode {mode:04o}"):
                check_own(folder, "the_setting", closed=closed)
        else:
            check_own(folder, "the_setting", closed=closed)
        assert folder.stat().st_mode & 0o7777 == mode
    check_own(tmp_path / "new" / "one", "the_setting")
    assert (tmp_path / "new" / "one").stat().st_mode & 0o777 == 0o700


@ROOT_ONLY
def test_a_configured_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """So is a link that somebody else has put there; one's own link is a way like another."""
    folder, own, theirs = tmp_path / "folder", tmp_path / "own", tmp_path / "theirs"
    folder.mkdir()
    for link in (own, theirs):
        link.symlink_to(folder)
    os.chown(theirs, STRANGER, STRANGER, follow_symlinks=False)
    check_own(own, "the_setting")
    with pytest.raises(PermissionError, match=f"the_setting: {theirs} is a link of user 12345"):
        check_own(theirs, "the_setting")
    os.chown(folder, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"the_setting: {folder} belongs to user 12345"):
        check_own(folder, "the_setting")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"the_setting: .*{tmp_path}/file"):
        check_own(tmp_path / "file", "the_setting")


def write_sample(path: Path) -> None:
    """Add a row to a day's log."""
    at = 86400.0 * 365
    history.write(path.parent, [SampleRow(1, at, 0, 0, {}, {}, {}, {})])


def open_journal(path: Path) -> None:
    """Open the journal that has this file among its own."""
    whole = path.with_name("gate.sqlite")
    Journal.open(whole, boot_id="x").close()


WRITERS: dict[str, Callable[[Path], object]] = {
    "gate.lock": lambda path: GateLock(path).acquire(),
    "gate.sqlite": open_journal,
    "gate.sqlite-wal": open_journal,
    "gate.sqlite-shm": open_journal,
    "1971-01-01.jsonl": write_sample,
}


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "anothers"])
@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_what_was_planted(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that was open once, a file of the gate's that is none is left as it is."""
    monkeypatch.setenv("TZ", "UTC")
    place, victim = tmp_path / "state" / name, tmp_path / "victim"
    place.parent.mkdir()
    if kind == "link":
        victim.write_text("precious")
    if kind.endswith("link"):
        place.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(place)
    elif os.geteuid() != 0:
        pytest.skip("only root can give files away")
    else:
        place.write_text("precious")
        os.chown(place, STRANGER, STRANGER)
    before = place.lstat()
    with pytest.raises((OSError, JournalError), match=name):
        WRITERS[name](place)
    assert os.path.samestat(before, place.lstat())
    assert not victim.exists() or victim.read_text() == "precious"
    assert kind != "anothers" or place.read_text() == "precious"


def test_a_record_replaces_what_was_planted(tmp_path: Path) -> None:
    """Where the gate listens is written to a file of its own, whatever had that name."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "socket").symlink_to(tmp_path / "victim")
    write_private(tmp_path / "socket", "/here")
    assert (tmp_path / "socket").read_text() == "/here"
    assert not (tmp_path / "socket").is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"
    with pytest.raises(OSError, match="victim"):
        os.close(open_private(tmp_path / "victim", os.O_WRONLY | os.O_CREAT | os.O_EXCL))


@ROOT_ONLY
@pytest.mark.parametrize("setting", ["state_directory", "runs_directory"])
def test_a_server_that_is_set_to_somebody_elses_folder_says_so(
    setting: str, places: Places, tmp_path: Path
) -> None:
    """It comes up, hosts no gate there, names place and setting, and writes nothing."""
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, STRANGER, STRANGER)
    server = Served(places, f"--GpuGate.{setting}={shared}", ready="/api/status")
    try:
        until(lambda: server.ask("GET", "/machine").status == 503, "the gate has refused")
        refusal = server.ask("GET", "/machine").json["message"]
        assert f"{setting}: {shared} belongs to user {STRANGER}" in refusal
        assert list(shared.iterdir()) == []
    finally:
        server.stop()
