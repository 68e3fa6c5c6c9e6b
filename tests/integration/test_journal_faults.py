"""The journal on disks that fail or are full, and with files that are removed or locked."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.core import events as ev
from jupyter_gpugate.gate import failpoints
from jupyter_gpugate.gate.journal.journal import Journal, JournalError, state_directory
from tests.kit.journal_events import (
    opened,
    requested,
    sedimented,
)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a journal that is not there yet."""
    return tmp_path / "state" / "gate.sqlite"


# -- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["raise", "enospc"])
@pytest.mark.parametrize("place", ["begin.after", "write.before", "write.after", "commit.before"])
def test_a_failing_disk_leaves_nothing_half_written(path: Path, place: str, action: str) -> None:
    """An append that raises has written nothing, and the next one works again."""
    journal = opened(path)
    journal.append([requested("run-a")], durable=True)
    batch: list[ev.Event] = [requested("run-b"), sedimented(), ev.DrainChanged(1.0, True)]
    failpoints.arm(f"store.{place}:{action}")

    with pytest.raises(
        JournalError, match="disk is full" if action == "enospc" else "Input/output error"
    ):
        journal.append(batch, durable=True)

    assert journal.replay() == [requested("run-a")]
    assert (journal.observations(), journal.audit()) == ([], [])
    failpoints.arm("")
    journal.append(batch, durable=True)
    assert len(journal.replay()) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_refuses_and_recovers_alone(small_disk: Path) -> None:
    """Appends fail by name while the disk is full and work again once it is not."""
    journal = opened(small_disk / "gate.sqlite")
    journal.append([requested("run-a")], durable=True)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        while _written(filler.fileno(), bytes(4096)):
            pass

    acknowledged, refusal = _append_until_refused(journal)
    kept = len(journal.replay())
    (small_disk / "filler").unlink()

    assert "the disk is full" in refusal
    assert kept == 1 + acknowledged
    journal.append([requested("run-c")], durable=True)
    assert journal.replay()[kept:] == [requested("run-c")]


def _append_until_refused(journal: Journal) -> tuple[int, str]:
    acknowledged = 0
    while True:
        try:
            journal.append([requested(f"run-{number}") for number in range(10)], durable=True)
        except JournalError as error:
            return acknowledged, str(error)
        acknowledged += 10


def _written(descriptor: int, block: bytes) -> bool:
    try:
        return os.write(descriptor, block) > 0
    except OSError:
        return False


def test_a_disk_that_can_only_be_read_is_refused(small_disk: Path) -> None:
    """A journal on a read-only file system is refused with that reason, and stays where it is."""
    opened(small_disk / "gate.sqlite").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    with pytest.raises(JournalError, match="Read-only"):
        opened(small_disk / "gate.sqlite")

    assert [p.name for p in small_disk.iterdir()] == ["gate.sqlite"]


def test_a_home_that_can_only_be_read_is_passed_over(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state directory that is there but not to be written is not chosen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(small_disk))
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.setattr(places, "FALLBACK", tmp_path)
    assert state_directory() == small_disk / "gpugate"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    assert state_directory().parent == tmp_path


def test_a_lock_of_another_process_is_waited_for_and_then_refused(path: Path) -> None:
    """While another process writes, an append fails with that reason and writes nothing."""
    journal = opened(path)
    hold = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"

        with pytest.raises(JournalError, match="another process keeps it locked"):
            journal.append([requested("run-a")], durable=True)
        other.communicate(b"\n")

    journal.append([requested("run-b")], durable=True)
    assert journal.replay() == [requested("run-b")]


@pytest.mark.parametrize("removed", ["file", "file and log", "folder"])
def test_a_journal_that_was_removed_is_put_back_whole(removed: str, path: Path) -> None:
    """What is acknowledged stands in a file that the next gate finds, with all that was before."""
    journal = opened(path)
    journal.append([requested("run-a"), sedimented()], durable=True)
    for part in {"file": ("",), "file and log": ("", "-wal", "-shm"), "folder": ()}[removed]:
        Path(f"{path}{part}").unlink()
    if removed == "folder":
        shutil.rmtree(path.parent)

    journal.append([requested("run-b")], durable=True)
    journal.append([requested("run-c")], durable=False)

    left = sorted(entry.name for entry in path.parent.iterdir())
    assert left == ["gate.sqlite", "gate.sqlite-shm", "gate.sqlite-wal"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    journal.close()
    following = opened(path)
    assert following.notice is None
    assert following.replay() == [requested(f"run-{n}") for n in "abc"]
    assert len(following.observations()) == 1


def test_a_removed_journal_is_put_back_at_the_end_of_its_gate(path: Path) -> None:
    """What was learned outlives a removal after which nothing more was written."""
    journal = opened(path)
    journal.append([requested("run-a"), sedimented()], durable=True)
    shutil.rmtree(path.parent)
    journal.close()
    assert opened(path).replay() == [requested("run-a")]


def test_a_journal_is_not_put_back_into_a_folder_of_others(path: Path) -> None:
    """Where somebody else could replace it, nothing is written until the folder is gone."""
    journal = opened(path)
    journal.append([requested("run-a")], durable=True)
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.parent.chmod(0o777)

    with pytest.raises(JournalError, match="state_directory"):
        journal.append([requested("run-b")], durable=True)

    assert list(path.parent.iterdir()) == []
    path.parent.chmod(0o700)
    journal.append([requested("run-c")], durable=True)
    assert opened(path).replay() == [requested("run-a"), requested("run-c")]


def test_a_file_that_was_replaced_is_not_written_to(path: Path) -> None:
    """Nothing is acknowledged into a file that the next gate would not find."""
    journal = opened(path)
    path.unlink()
    opened(path).append([requested("run-b")], durable=True)

    with pytest.raises(JournalError, match="replaced while in use"):
        journal.append([requested("run-a")], durable=True)


def test_a_closed_journal_refuses(path: Path) -> None:
    """After its end a journal says so, and may be closed again."""
    journal = opened(path)
    journal.close()
    journal.close()

    with pytest.raises(JournalError, match="closed"):
        journal.append([requested("run-a")], durable=True)
