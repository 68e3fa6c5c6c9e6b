"""A gate killed at any instant: what it acknowledged is there, and nothing is there by half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.journal_writer import EVENTS_OF_A_BATCH
from tests.kit.journal_events import opened, requested

ROOT = Path(__file__).resolve().parents[2]
BEFORE_COMMIT = ["begin.before", "begin.after", "write.before", "write.after", "commit.before"]


def writer(path: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """Start a process that appends until it dies."""
    command = [sys.executable, "-m", "tests.integration.journal_writer", str(path), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True
    )


def kept_batches(path: Path) -> list[int]:
    """Read the journal as the next gate does; fail where a batch is there by half or twice."""
    journal = opened(path)
    assert journal.notice is None
    kept = [int(event.request.run_id[4:]) for event in journal.replay()]  # type: ignore[union-attr]
    stories = Counter(len(journal.story(f"run-{number}")) for number in kept)
    assert set(stories) <= {EVENTS_OF_A_BATCH}
    assert [int(o.run_id[4:]) for o in journal.observations()] == kept
    assert len(set(kept)) == len(kept)
    journal.close()
    return kept


@pytest.mark.soak
@pytest.mark.parametrize("place", [*BEFORE_COMMIT, "commit.after"])
def test_a_kill_between_two_store_operations_loses_nothing(
    tmp_path: Path, place: str, soaking: bool
) -> None:
    """Wherever a transaction is cut off, it is whole or absent, and acknowledged ones are there."""
    path, rounds = tmp_path / "gate.sqlite", 50 if soaking else 5
    with writer(path, f"store.{place}", str(rounds)) as process:
        assert process.stdout is not None
        acknowledged = [int(line) for line in process.stdout]

    assert process.returncode == 0
    kept = kept_batches(path)
    unsaid = sorted(set(kept) - set(acknowledged))
    assert set(acknowledged) <= set(kept)
    assert len(unsaid) == (rounds if place == "commit.after" else 0)


@pytest.mark.soak
def test_a_kill_at_a_random_instant_loses_nothing(tmp_path: Path, soaking: bool) -> None:
    """A gate killed while it writes as fast as it can leaves all that it had acknowledged."""
    chance = random.Random(7)
    for round_number in range(40 if soaking else 3):
        path = tmp_path / f"gate-{round_number}.sqlite"
        with writer(path) as process:
            assert process.stdout is not None
            acknowledged = [int(process.stdout.readline()) for _ in range(chance.randrange(1, 200))]
            process.kill()
            acknowledged += [int(line) for line in process.stdout]

        kept = kept_batches(path)
        assert kept[: len(acknowledged)] == acknowledged
        assert len(kept) <= len(acknowledged) + 1


@pytest.mark.parametrize("place", [*BEFORE_COMMIT[:2], "commit.before", "commit.after"])
def test_a_kill_while_the_journal_is_begun_leaves_one_that_opens(
    tmp_path: Path, place: str
) -> None:
    """A file without tables is a new journal, not a damaged one."""
    path = tmp_path / "gate.sqlite"
    with writer(path, GPUGATE_FAIL=f"store.{place}:kill9") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL

    assert kept_batches(path) == []


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_kill_while_a_damaged_journal_is_moved_keeps_it(tmp_path: Path, place: str) -> None:
    """The damaged file is in its old place or in the new one, never in neither."""
    path = tmp_path / "gate.sqlite"
    path.write_bytes(b"damaged")
    with writer(path, GPUGATE_FAIL=f"store.rename.{place}:kill9") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL

    journal = opened(path)
    journal.append([requested("run-a")], durable=True)

    (aside,) = tmp_path.glob("gate.sqlite.corrupt-*")
    assert aside.read_bytes() == b"damaged"
    assert journal.replay() == [requested("run-a")]
