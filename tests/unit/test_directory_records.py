"""The records in a run directory: outcome, tree, stop, summary; all read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.runs import directory, events, folder
from tests.kit.run_directories import (
    END,
    ENVIRONMENT,
    RUN_ID,
    make,
    names,
    scan,
    spec,
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
    """A stop is on the disk, whole, where the supervisor looks for it and the run side reads it."""
    assert directory.stop_of(attempt) is None
    stop = Stop.of(StopKind.EVICTED)
    directory.write_stop(attempt, stop)
    record = json.loads((attempt / "stop.json").read_bytes())
    assert record == {"kind": "evicted", "by": "gate", "detail": "", "reason": "evicted"}
    assert directory.stop_of(attempt) == stop


@pytest.mark.parametrize(
    ("record", "stop"),
    [
        ({"reason": "cancelled", "at": 5.0}, Stop.of(StopKind.CANCELLED)),
        (
            {"reason": "no power"},
            Stop(StopKind.ENDED, "run", "no power"),
        ),
        ({"kind": "a later one", "by": "owner", "reason": "evicted"}, Stop.of(StopKind.EVICTED)),
        ([], None),
    ],
)
def test_a_stop_of_another_version_is_read(
    attempt: Path, record: object, stop: Stop | None
) -> None:
    """A record with a reason alone, or a kind that is not known here, is read by its reason."""
    (attempt / "stop.json").write_text(json.dumps(record))
    assert directory.stop_of(attempt) == stop


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
