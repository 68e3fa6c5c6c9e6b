"""Output and events of a run: read from any byte, in bounded size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.runs import directory, events, output
from tests.kit.run_directories import make


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """Create the first attempt of a run."""
    run = make(tmp_path / "gpugate" / "runs")
    return directory.create_attempt(run, 1, {"attempt": 1, "fence": 7}, "x = 1\n")


def test_a_summary_gets_the_runs_own_words(attempt: Path) -> None:
    """Error, warnings and the end of the output are taken from what the run has told."""
    error = {"ename": "ValueError", "evalue": "no", "traceback": ["line"]}
    lines: list[dict[str, Any]] = [
        {"event": "display", "data": {}},
        {"event": "warning", "text": "one"},
        {"event": "error", **error},
    ]
    (attempt / "messages.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{")
    (attempt / "output.log").write_text("the end")
    told = events.told_by_run(attempt)
    assert told == {"error": error, "warnings": ["one"], "output_tail": "the end"}
    (attempt / "messages.jsonl").rename(attempt / "display.jsonl")  # as earlier versions call it
    assert events.told_by_run(attempt) == told
    (attempt / "display.jsonl").unlink()
    assert events.told_by_run(attempt)["error"] is None


def test_output_is_read_from_any_byte(attempt: Path) -> None:
    """Reading piece by piece gives all of it once; its end is at most 64 KiB long."""
    text = "".join(f"line {i} äöü €\n" for i in range(10_000))
    (attempt / "output.log").write_text(text)
    pieces, at = [], 0
    while True:
        piece, following = output.read_output(attempt, at, 1000)
        if not piece:
            break
        pieces.append(piece)
        assert following <= at + 1000
        at = following
    assert "".join(pieces) == text
    assert at == len(text.encode())
    tail, end = output.read_output(attempt)
    assert end == at
    assert text.endswith(tail)
    assert 64 * 1024 - 3 <= len(tail.encode()) <= 64 * 1024
    (attempt / "output.log").write_text("€" * 50_000)  # three bytes each: the cut is inside one
    said, shown = output.output_tail(attempt).splitlines()
    assert "earlier" in said
    assert set(shown) == {"€"}


def test_output_from_a_byte_on_is_all_of_it_or_its_end(attempt: Path) -> None:
    """A short rest is whole, a long one begins at a line behind the hint to the others."""
    (attempt / "output.log").write_text("before\nä\nafter\n")
    assert output.output_from(attempt, 7) == "ä\nafter\n"
    assert output.output_from(attempt, 100) == ""
    lines = [f"line {number} ä" for number in range(10_000)]
    (attempt / "output.log").write_text("\n".join(lines))
    said, *shown = output.output_from(attempt, 5).splitlines()
    assert "earlier lines" in said
    assert shown == lines[-len(shown) :]
    assert output.output_tail(attempt, until=13).splitlines() == [*lines[:1], "lin"]


def test_of_events_without_end_the_newest_are_read(attempt: Path) -> None:
    """A file beyond any limit never reads as empty: its end is read, and the rest is counted."""
    lines = [json.dumps({"event": "episode", "index": index}) + "\n" for index in range(1_000)]
    (attempt / "episodes.jsonl").write_text("".join(lines))
    size = (attempt / "episodes.jsonl").stat().st_size
    for limit in (1, 500, size - 1, size, size + 1):
        found, earlier = events.read_events(attempt, "episodes.jsonl", limit)
        indices = [event["index"] for event in found]
        assert indices == list(range(earlier, 1_000))
        assert sum(map(len, lines[earlier:])) <= limit


def test_warnings_of_a_summary_are_told_once_and_have_an_end(attempt: Path) -> None:
    """However often a run warned, its summary stays small; the last ones are in it."""
    texts = ["again"] * 500 + [f"warning {number}" for number in range(1_000)] + ["and the rest"]
    lines = [json.dumps({"event": "warning", "text": text}) for text in texts]
    (attempt / "messages.jsonl").write_text("\n".join(lines))
    warnings = events.told_by_run(attempt)["warnings"]
    assert warnings[0] == "again"
    assert warnings[-1] == "and the rest"
    assert len(warnings) == events.MOST_WARNINGS + 1
    assert "902 more warnings are not shown" in warnings


def test_the_end_of_a_long_output_begins_with_a_whole_line(attempt: Path) -> None:
    """What is cut off is said in its place, and what is left starts at the start of a line."""
    lines = [f"line {number} äöü" for number in range(10_000)]
    (attempt / "output.log").write_text("\n".join(lines))
    said, *shown = output.output_tail(attempt).splitlines()
    assert said == f'[earlier lines: jupyter_gpugate.get("{attempt.parents[1].name}").output()]'
    assert shown == lines[-len(shown) :]
    assert len(output.output_tail(attempt).encode()) <= 64 * 1024
    (attempt / "output.log").write_text("short\n")
    assert output.output_tail(attempt) == "short\n"


def test_output_that_is_not_there_is_empty(attempt: Path) -> None:
    """No output yet, a position past the end, and a link in its place all read as nothing."""
    assert output.read_output(attempt, 5) == ("", 5)
    assert output.output_tail(attempt) == ""
    (attempt / "output.log").write_text("abc")
    assert output.read_output(attempt, 99) == ("", 3)
    (attempt / "output.log").unlink()
    (attempt / "output.log").symlink_to("/etc/passwd")
    assert output.read_output(attempt, 0) == ("", 0)


def test_a_character_is_never_cut_in_two(attempt: Path) -> None:
    """A character that is still being written comes with the next read; odd bytes pass."""
    log = attempt / "output.log"
    log.write_bytes("a€".encode()[:-1])
    assert output.read_output(attempt, 0) == ("a", 1)
    log.write_bytes("a€b".encode())
    assert output.read_output(attempt, 1) == ("€b", 5)
    log.write_bytes(b"a\xff\xc3(b")
    assert output.read_output(attempt, 0) == ("a\ufffd\ufffd(b", 5)


def test_offsets_go_on_after_a_long_log_has_lost_its_beginning(attempt: Path) -> None:
    """Bytes are counted from the first that was ever printed; what is gone is skipped."""
    note = b"[gpugate: the first 1000 bytes are gone]\n"
    (attempt / "output.log").write_bytes(note + b"the rest\n")
    assert output.read_output(attempt, 1000) == ("the rest\n", 1009)
    assert output.read_output(attempt, 1009) == ("", 1009)
    assert output.read_output(attempt, 10) == ((note + b"the rest\n").decode(), 1009)
