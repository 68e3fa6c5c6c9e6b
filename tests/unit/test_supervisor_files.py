"""Files of an attempt: output, displays, records and messages, on a full disk too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.programs.supervisor import displays
from jupyter_gpugate.programs.supervisor.attempt_files import (
    CHUNK,
    JsonLines,
    Messages,
    write_whole,
)
from jupyter_gpugate.programs.supervisor.displays import Displays
from jupyter_gpugate.programs.supervisor.events import EventLines
from jupyter_gpugate.programs.supervisor.output import Lines, Mark, Marks, OutputLog


def test_lines_of_several_workers_stay_whole() -> None:
    """A line is written once it is complete, with its worker before it, progress bars too."""
    lines = Lines(b"[3] ")
    assert lines.feed(b"one\ntw", ended=False) == b"[3] one\n"
    assert lines.feed(b"o\n10%\r20%", ended=False) == b"[3] two\n[3] 10%\r"
    assert lines.feed(b"", ended=True) == b"[3] 20%\n"


def test_a_line_without_an_end_is_not_held_back_for_ever() -> None:
    """A very long line comes out in pieces instead of filling the memory."""
    lines = Lines(b"[0] ")
    assert lines.feed(b"x" * (CHUNK + 1), ended=False) == b"[0] " + b"x" * (CHUNK + 1) + b"\n"


def test_one_worker_prints_as_it_is() -> None:
    """Without a prefix nothing is changed and nothing is held back."""
    assert Lines(b"").feed(b"half a li", ended=False) == b"half a li"


def test_output_past_the_cap_keeps_its_newest_part(tmp_path: Path) -> None:
    """The older half gives way to one line that says how many bytes are gone, to the byte."""
    log = OutputLog(str(tmp_path / "output.log"), cap=10_000)
    written = b"".join(b"line %05d\n" % number for number in range(5_000))
    for at in range(0, len(written), 700):
        log.write(written[at : at + 700])
        assert (tmp_path / "output.log").stat().st_size <= 10_000
    note, _, tail = (tmp_path / "output.log").read_bytes().partition(b"\n")
    assert written.endswith(tail)
    assert tail.startswith(b"line ")
    assert len(tail) > 4_000
    assert note == b"[gpugate: the first %d bytes are gone]" % (len(written) - len(tail))


def test_a_full_disk_never_tears_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that the disk takes only half is taken back, and written whole once there is room."""
    path = tmp_path / "episodes.jsonl"
    records = JsonLines(str(path), durable=True)
    records.add(b'{"index": 0}')
    records.write()
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
        records.add(b'{"index": 1}')
        records.write()
    assert path.read_bytes() == b'{"index": 0}\n'
    records.write()
    assert path.read_bytes() == b'{"index": 0}\n{"index": 1}\n'


class Shown:
    """A file of displays, small enough to be written anew often, and what a reader finds in it."""

    def __init__(self, tmp_path: Path, cap: int = 1 << 20, most: int = 10_000) -> None:
        self.path = tmp_path / "display.jsonl"
        self.file = Displays(str(self.path), alone=True, cap=cap, most=most)

    def add(self, text: str, name: str = "", worker: int = 0, **fields: Any) -> None:
        transient = {"display_id": name} if name else {}
        event = {"event": "display", "transient": transient, "data": {"text/plain": text}, **fields}
        self.file.add(json.dumps(event).encode(), event, worker, 7)
        self.file.write()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def texts(self) -> list[str]:
        return [line["data"]["text/plain"] for line in self.lines if line["event"] == "display"]


def test_updates_of_one_display_replace_each_other_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long something is renewed, the file keeps its place and its newest form, and every
    other display.
    """
    monkeypatch.setattr(displays, "STALE_BYTES", 10_000)
    shown = Shown(tmp_path)
    shown.add("first")
    shown.add("0", "table")
    for second in range(1, 5_000):
        shown.add(f"{second}{'x' * 500}", "table", update=True)
        assert shown.path.stat().st_size < 100_000
    shown.add("last")
    texts = shown.texts()
    assert texts[:2] == ["first", "0"]
    assert (texts[-2][:4], texts[-1]) == ("4999", "last")
    assert shown.file.gone == 0
    numbers = [line["n"] for line in shown.lines]
    assert numbers == sorted(set(numbers))


def test_what_a_run_cleared_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that a loop clears and shows again do not fill the file, and a clear that waits takes
    nothing off before something comes.
    """
    monkeypatch.setattr(displays, "STALE_BYTES", 10_000)
    shown = Shown(tmp_path)
    for turn in range(2_000):
        shown.add(f"{turn}{'x' * 500}")
        shown.add("", clear=True, wait=turn % 2 == 0)
        assert shown.path.stat().st_size < 100_000
    shown.add("kept")
    shown.add("", clear=True, wait=True)
    shown.add("y" * 20_000, "other", worker=1)
    for _ in range(10):
        shown.add("y" * 20_000, "other", worker=1, update=True)
    assert "kept" in shown.texts()
    assert shown.file.gone == 0


@pytest.mark.parametrize("sizes", [{"cap": 100_000}, {"most": 100}])
def test_where_displays_take_too_much_the_newest_are_kept(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    """The older half gives way to one line that counts it, and the count is exact."""
    shown = Shown(tmp_path, **sizes)
    for number in range(1_000):
        shown.add(f"{number:04}{'x' * 1_000}")
        assert shown.path.stat().st_size < 130_000
    gap, *rest = shown.lines
    assert gap["event"] == "gone"
    assert gap["count"] == shown.file.gone == 1_000 - len(rest)
    assert gap["n"] == rest[0]["n"] - 1
    assert [text[:4] for text in shown.texts()] == [f"{n:04}" for n in range(1_000)][-len(rest) :]


def test_a_disk_without_room_for_a_second_file_loses_no_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be written anew stays as it is, and is tried again later."""
    monkeypatch.setattr(displays, "STALE_BYTES", 10_000)
    shown = Shown(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        for number in range(100):
            shown.add(f"{number}{'x' * 500}", "table", update=True)
    assert len(shown.lines) == 100
    assert list(tmp_path.iterdir()) == [shown.path]
    for number in range(100, 200):
        shown.add(f"{number}{'x' * 500}", "table", update=True)
    assert len(shown.lines) < 100
    assert shown.texts()[-1][:3] == "199"


def test_errors_and_warnings_have_room_of_their_own(tmp_path: Path) -> None:
    """No flood of warnings keeps an error from the record; texts of any size are cut."""
    messages = Messages(str(tmp_path / "messages.jsonl"))
    for number in range(5_000):
        messages.add({"event": "warning", "text": f"{number}{'w' * 1_000}"})
    long = "e" * 10_000_000
    messages.add(
        {"event": "error", "ename": "E", "evalue": long, "traceback": [long] * 50 + ["it"]}
    )
    messages.close()
    messages.remark("more of it")
    messages.write()
    path = tmp_path / "messages.jsonl"
    assert path.stat().st_size < 4 << 20
    *warnings, error, unsaid, remark = map(json.loads, path.read_bytes().splitlines())
    assert warnings[0]["text"].startswith("0w")
    assert (error["ename"], error["traceback"][-1]) == ("E", "it")
    assert "more characters" in error["evalue"]
    assert unsaid["text"] == f"{5_000 - len(warnings):,} more warnings are not kept"
    assert remark["text"] == "more of it"


def test_an_event_that_is_too_long_is_dropped_and_counted() -> None:
    """Whatever its size, a line takes no more memory than the limit, and those around it arrive."""
    lines = EventLines(most=1_000)
    stream = b"one\n" + b"x" * 5_000 + b"\n\n" + b"y" * 1_000 + b"\n" + b"z" * 1_001 + b"\nlast\n"
    found = [line for at in range(0, len(stream), 7) for line in lines.feed(stream[at : at + 7])]
    assert found == [b"one", b"", b"y" * 1_000, b"last"]
    assert lines.dropped == 2


@pytest.mark.parametrize("step", [1, 2, 3, 50, 10_000])
def test_marks_are_found_wherever_the_output_is_cut(step: int) -> None:
    """A mark leaves no trace in the output and says to the byte where it stood; what merely looks
    like one is output.
    """
    start = b"\x1b]gpugate;s3cret;"
    stream = (
        b"a\x1b[31mb" + start + b"1;\x07" + b"\x1b]gpugate;other;2;\x07" + start + b"3;wait\x07"
    )
    stream += start[:-3] + b"c" + start + b"x\x07d\x1b"
    marks, printed, found = Marks("s3cret"), b"", []
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    for number, piece in enumerate(pieces):
        for text, mark in marks.cut(piece, ended=number == len(pieces) - 1):
            printed += text
            found += [(len(printed), mark)] if mark else []
    first, second = b"a\x1b[31mb", b"\x1b]gpugate;other;2;\x07"
    assert printed == first + second + start[:-3] + b"c" + start + b"x\x07d\x1b"
    assert found == [
        (len(first), Mark(1, "")),
        (len(first + second), Mark(3, "wait")),
    ]


def test_output_that_a_full_disk_did_not_take_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is room again, the log says how many bytes are missing, to the byte."""
    log = OutputLog(str(tmp_path / "output.log"))
    log.write(b"before\n")
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
        log.write(b"partly\n")
        log.write(b"not at all\n")
    log.write(b"after\n")
    log.write(b"and on\n")
    written = (tmp_path / "output.log").read_bytes()
    lost = b"\n[gpugate: 15 bytes are lost: the disk was full]\n"
    assert written == b"before\npar" + lost + b"after\nand on\n"
    assert log.end == len(written)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """A failed write leaves the old file as it was."""
    path = tmp_path / "outcome.json"
    write_whole(str(path), b"old")
    with pytest.raises(TypeError):
        write_whole(str(path), "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
