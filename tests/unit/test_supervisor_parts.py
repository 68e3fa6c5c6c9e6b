"""The parts of a supervisor by themselves: processes, memory, files, environment, evidence."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.programs.supervisor import main as sv

MB = 1 << 20


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Give a child that does nothing."""
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


# -- processes


def proc_of(pid: int) -> sv.Proc:
    """Identify a process that is there."""
    one = sv.process(pid)
    assert one is not None
    return one


@pytest.mark.parametrize("has_lists", [True, False])
def test_children_of_every_thread_are_descendants(
    has_lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process started by a thread that is not the main one is found, by either way of looking."""
    monkeypatch.setattr(os.path, "exists", lambda _: has_lists)
    children: list[subprocess.Popen[bytes]] = []
    done = threading.Event()

    def start_and_stay() -> None:
        children.append(subprocess.Popen(["sleep", "600"]))
        started.set()
        done.wait()

    started = threading.Event()
    thread = threading.Thread(target=start_and_stay)
    thread.start()
    started.wait()
    try:
        found = list(sv.descendants(os.getpid()))
        assert proc_of(children[0].pid) in found
    finally:
        done.set()
        thread.join()
        for child in children:
            child.kill()
            child.wait()


def test_a_pid_that_means_another_process_by_now_is_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """A signal reaches only the process whose start ticks were remembered."""
    one = proc_of(sleeper.pid)
    stranger = sv.Proc(one.pid, one.ticks - 1)
    assert not sv.send(stranger, signal.SIGKILL)
    assert sleeper.poll() is None
    assert sv.send(one, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not sv.send(one, signal.SIGKILL)


def test_signals_go_without_pidfd_too(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python built without pidfd signals by pid, after the same look at the start ticks."""
    monkeypatch.delattr(os, "pidfd_open")
    one = proc_of(sleeper.pid)
    assert not sv.send(sv.Proc(one.pid, one.ticks + 1), signal.SIGKILL)
    assert sv.send(one, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_what_nobody_has_waited_for_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    """A zombie still has its pid and ticks, and is dead all the same."""
    one = proc_of(sleeper.pid)
    assert sv.is_alive(one)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert proc_of(sleeper.pid) == one
    assert not sv.is_alive(one)


def test_the_whole_tree_is_known_before_anybody_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A parent that dies at once must not hide its children from the same SIGTERM."""
    steps: list[str] = []

    def walk(_: int) -> Iterator[sv.Proc]:
        yield sv.Proc(1, 1)
        steps.append("parent seen")
        yield sv.Proc(2, 2)
        steps.append("child seen")

    monkeypatch.setattr(sv, "descendants", walk)
    monkeypatch.setattr(sv, "send", lambda one, number: steps.append(f"{one.pid} {number:d}"))
    sv.Stopping(0, 10.0, None, begin_at=0.0).advance(0.0)
    assert steps[:2] == ["parent seen", "child seen"]
    told = [f"{pid} {number:d}" for pid in (1, 2) for number in (signal.SIGTERM, signal.SIGCONT)]
    assert sorted(steps[2:]) == sorted(told)


def test_only_carriers_of_the_very_tag_are_found() -> None:
    """Sweeping looks for the whole tag: a longer run id that begins alike is another run."""
    with contextlib.ExitStack() as stack:
        own, other = (
            stack.enter_context(subprocess.Popen(["sleep", "600"], env={"GPUGATE_RUN_ID": name}))
            for name in ("a-run", "a-run-more")
        )
        stack.callback(own.kill)
        stack.callback(other.kill)
        found = [one.pid for one in sv.carriers(b"GPUGATE_RUN_ID=a-run")]
        assert found == [own.pid]


# -- memory


def reading(held: int, resident: int) -> sv.Reading:
    """Make an exact reading from MB."""
    return sv.Reading(held * MB, 0, resident * MB, exact=True)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, sv.Reading]], None]:
    """Let every reading show these processes."""

    def set_processes(processes: dict[int, sv.Reading]) -> None:
        monkeypatch.setattr(sv, "read_memory", processes.get)

    return set_processes


Show = Callable[[dict[int, sv.Reading]], None]


def test_the_peak_is_the_greatest_sum_not_the_sum_of_the_greatest(show: Show) -> None:
    """Two processes that are large one after the other were never large together."""
    meter = sv.RamMeter()
    show({1: reading(500, 510), 2: reading(10, 20)})
    meter.read([1, 2], 0.0)
    show({1: reading(10, 20), 2: reading(400, 410)})
    meter.read([1, 2], 5.0)
    assert meter.held == 410 * MB
    assert meter.peak == 510 * MB


def test_what_a_process_held_unseen_is_added_to_what_was_seen(show: Show) -> None:
    """The mark of an ended process counts beyond its own resident size, mapped files left out."""
    meter = sv.RamMeter()
    show({1: reading(100, 150)})
    meter.read([1], 0.0)
    meter.ended(1, 250 * MB, had_children=False)
    assert meter.peak == 200 * MB


def test_workers_that_end_together_were_held_together(show: Show) -> None:
    """Marks of processes that end between two readings add up; a later process starts anew."""
    meter = sv.RamMeter()
    show({1: reading(5, 10), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    meter.ended(1, 210 * MB, had_children=False)
    meter.ended(2, 310 * MB, had_children=False)
    assert meter.peak == 510 * MB
    show({3: reading(300, 310)})
    meter.read([3], 5.0)
    meter.ended(3, 330 * MB, had_children=False)
    assert meter.peak == 510 * MB


def test_what_a_worker_held_was_held_beside_what_the_others_hold_when_it_ends(show: Show) -> None:
    """A worker's end calls for a reading of the others: the last one may be long out of date."""
    meter = sv.RamMeter()
    show({1: reading(5, 10), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    show({2: reading(300, 305)})
    meter.ended(1, 310 * MB, had_children=False, beside=[2])
    assert meter.peak == 605 * MB
    show({2: reading(400, 405)})
    meter.read([2], 1.0)
    assert meter.peak == 605 * MB


def test_a_worker_that_was_read_whole_was_held_beside_those_that_grew_since(show: Show) -> None:
    """Its end calls for a reading of the others too, and it is not forgotten before theirs."""
    meter = sv.RamMeter()
    show({1: reading(300, 310), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    show({})
    meter.ended(1, 310 * MB, had_children=False, beside=[2])
    meter.read([2], 1.0)
    meter.ended(2, 210 * MB, had_children=False)
    assert meter.peak == 505 * MB


def test_a_reading_while_a_worker_dies_forgets_none_that_died_with_it(show: Show) -> None:
    """A process that is past reading and not yet dead held its memory with those before it."""
    meter = sv.RamMeter()
    show({1: reading(5, 10), 2: reading(5, 10)})
    meter.read([1, 2], 0.0)
    show({})
    meter.ended(1, 310 * MB, had_children=False, beside=[2])
    meter.read([2], 1.0)
    meter.ended(2, 210 * MB, had_children=False)
    assert meter.peak == 510 * MB


def test_the_mark_of_a_child_is_not_counted_for_its_parent_again(show: Show) -> None:
    """A shell whose large child was read does not count as large itself."""
    meter = sv.RamMeter()
    show({1: reading(1, 3), 2: reading(800, 810)})
    meter.read([1, 2], 0.0)
    meter.ended(1, 810 * MB, had_children=True)
    assert meter.peak == 801 * MB


def test_a_process_that_was_never_read_counts_by_its_mark(show: Show) -> None:
    """A run that is over before its first reading has its mark for a peak."""
    meter = sv.RamMeter()
    show({})
    meter.ended(1, 64 * MB, had_children=False)
    assert meter.peak == 64 * MB


def test_a_reading_of_this_process_tells_files_from_memory() -> None:
    """Pages of a mapped file are shown as mapped; touched memory is held."""
    before = sv.read_memory(os.getpid())
    assert before is not None
    assert before.exact
    ballast = bytearray(40 * MB)
    ballast[::4096] = b"x" * len(ballast[::4096])
    after = sv.read_memory(os.getpid())
    assert after is not None
    assert after.held - before.held == pytest.approx(40 * MB, rel=0.1)
    assert abs(after.mapped - before.mapped) < 5 * MB


def test_without_a_rollup_resident_less_shared_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel shows no rollup the meter falls back, and the peak says so."""
    real = open

    def without_rollup(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).endswith("smaps_rollup"):
            raise PermissionError(path)
        return real(path, *rest, **more)

    monkeypatch.setattr("builtins.open", without_rollup)
    meter = sv.RamMeter()
    meter.read([os.getpid()], 0.0)
    assert not meter.exact
    assert meter.held == pytest.approx(sv.glance([os.getpid()])[1], rel=0.1)


def test_readings_never_cost_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that takes a second is not repeated within the fifty that it may cost."""
    times = iter([100.0, 100.0, 101.0])
    monkeypatch.setattr(sv, "awake_time", lambda: next(times))
    monkeypatch.setattr(sv, "read_memory", lambda _: reading(1, 2))
    meter = sv.RamMeter()
    meter.read([1], 100.0)
    meter.want()
    assert meter.due_at == 100.0 + 1.0 / sv.SHARE


def test_a_reading_that_takes_too_long_goes_on_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """When exact readings stall, the rest of the tree is read by what is cheap, and it shows."""
    clock = [0.0]

    def stall(_: int) -> sv.Reading:
        clock[0] += 0.7
        return reading(10, 20)

    monkeypatch.setattr(sv, "awake_time", lambda: clock[0])
    monkeypatch.setattr(sv, "read_memory", stall)
    monkeypatch.setattr(sv, "glance", lambda pids: (5 * MB * len(pids), 3 * MB * len(pids)))
    meter = sv.RamMeter()
    meter.read(list(range(10)), 0.0)
    assert meter.held == (2 * 10 + 8 * 3) * MB
    assert not meter.exact


# -- files


def test_lines_of_several_workers_stay_whole() -> None:
    """A line is written once it is complete, with its worker before it, progress bars too."""
    lines = sv.Lines(b"[3] ")
    assert lines.feed(b"one\ntw", ended=False) == b"[3] one\n"
    assert lines.feed(b"o\n10%\r20%", ended=False) == b"[3] two\n[3] 10%\r"
    assert lines.feed(b"", ended=True) == b"[3] 20%\n"


def test_a_line_without_an_end_is_not_held_back_for_ever() -> None:
    """A very long line comes out in pieces instead of filling the memory."""
    lines = sv.Lines(b"[0] ")
    assert lines.feed(b"x" * (sv.CHUNK + 1), ended=False) == b"[0] " + b"x" * (sv.CHUNK + 1) + b"\n"


def test_one_worker_prints_as_it_is() -> None:
    """Without a prefix nothing is changed and nothing is held back."""
    assert sv.Lines(b"").feed(b"half a li", ended=False) == b"half a li"


def test_output_past_the_cap_keeps_its_newest_part(tmp_path: Path) -> None:
    """The older half gives way to one line that says how many bytes are gone, to the byte."""
    log = sv.OutputLog(str(tmp_path / "output.log"), cap=10_000)
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
    records = sv.Records(str(path), durable=True)
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
        self.file = sv.Displays(str(self.path), alone=True, cap=cap, most=most)

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
    monkeypatch.setattr(sv, "STALE_BYTES", 10_000)
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
    monkeypatch.setattr(sv, "STALE_BYTES", 10_000)
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
    monkeypatch.setattr(sv, "STALE_BYTES", 10_000)
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
    messages = sv.Messages(str(tmp_path / "messages.jsonl"))
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
    lines = sv.EventLines(most=1_000)
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
    marks, printed, found = sv.Marks("s3cret"), b"", []
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    for number, piece in enumerate(pieces):
        for text, mark in marks.cut(piece, ended=number == len(pieces) - 1):
            printed += text
            found += [(len(printed), mark)] if mark else []
    first, second = b"a\x1b[31mb", b"\x1b]gpugate;other;2;\x07"
    assert printed == first + second + start[:-3] + b"c" + start + b"x\x07d\x1b"
    assert found == [
        (len(first), sv.Mark(1, "")),
        (len(first + second), sv.Mark(3, "wait")),
    ]


def test_output_that_a_full_disk_did_not_take_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is room again, the log says how many bytes are missing, to the byte."""
    log = sv.OutputLog(str(tmp_path / "output.log"))
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
    sv.write_whole(str(path), b"old")
    with pytest.raises(TypeError):
        sv.write_whole(str(path), "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"


# -- the environment of a worker


def launch(**fields: Any) -> dict[str, Any]:
    """Make what an environment depends on."""
    blank = {"run_id": "r", "attempt": 2, "workers": 2, "devices": [], "caps": {}}
    return {**blank, "device_totals": {}, **fields}


def test_a_worker_is_tagged_and_sees_its_devices_only() -> None:
    """The run's own environment passes, under the tags, the devices by UUID and the cap's share."""
    told = launch(devices=["GPU-a", "GPU-b"], caps={"GPU-a": 100, "GPU-b": 300})
    found = sv.worker_environment(told, {"KEY": "mine", "CUDA_VISIBLE_DEVICES": "7"}, 1)
    assert found["KEY"] == "mine"
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["PYTHONUNBUFFERED"] == "1"
    assert (found["GPUGATE_RUN_ID"], found["GPUGATE_ATTEMPT"]) == ("r", "2")
    assert (found["GPUGATE_WORKER"], found["GPUGATE_WORKERS"]) == ("1", "2")
    assert json.loads(found["GPUGATE_CAPS"]) == {"GPU-a": 50, "GPU-b": 150}


def test_a_run_without_devices_sees_none() -> None:
    """No device means an empty mask, which is not the same as no mask, and no framework is told."""
    found = sv.worker_environment(launch(), {"CUDA_VISIBLE_DEVICES": "0"}, 0)
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert not [name for name in found if name.startswith(("XLA_", "TF_"))]


def test_frameworks_are_told_the_cap_of_one_worker() -> None:
    """The fraction is the smallest share of a device that one worker may use."""
    told = launch(
        devices=["GPU-a", "GPU-b"],
        caps={"GPU-a": 800, "GPU-b": 500},
        device_totals={"GPU-a": 1000, "GPU-b": 1000},
    )
    found = sv.worker_environment(told, {}, 0)
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert float(found["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == 0.25
    assert found["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_the_users_own_framework_settings_stand() -> None:
    """What the user has set is merged with, never replaced."""
    own = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
    }
    told = launch(devices=["G"], caps={"G": 8}, device_totals={"G": 10})
    found = sv.worker_environment(told, own, 0)
    assert {name: found[name] for name in own} == own


# -- evidence


@pytest.mark.behaviour(154)
@pytest.mark.parametrize(
    ("code", "event", "kills", "shm_full", "expected"),
    [
        (3, None, 0, False, ("failed", "exit 3", None, "")),
        (3, None, 5, True, ("failed", "exit 3", None, "")),
        (-9, None, 0, False, ("failed", "signal SIGKILL", None, "")),
        (-9, None, 1, False, ("oom", "signal SIGKILL", "ram", "host_oom_killer")),
        (137, None, 1, False, ("oom", "exit 137", "ram", "host_oom_killer")),
        (-7, None, 0, False, ("failed", "signal SIGBUS", None, "")),
        (-7, None, 1, True, ("oom", "signal SIGBUS", "shm", "shm_full")),
        (-11, None, 1, True, ("failed", "signal SIGSEGV", None, "")),
        (
            1,
            {"event": "oom", "resource": "vram", "evidence": "own_cap"},
            0,
            False,
            ("oom", "exit 1", "vram", "own_cap"),
        ),
        (
            1,
            {"event": "oom", "resource": "ram", "evidence": "memory_error"},
            0,
            False,
            ("oom", "exit 1", "ram", "memory_error"),
        ),
        (1, {"event": "oom", "resource": "time"}, 0, False, ("failed", "exit 1", None, "")),
    ],
)
def test_a_failure_is_called_oom_by_evidence_only(
    code: int,
    event: dict[str, Any] | None,
    kills: int,
    shm_full: bool,
    expected: tuple[str, str, str | None, str],
) -> None:
    """The exit alone says nothing: a kill needs the kernel's count, a bus error a full /dev/shm."""
    found = sv.classify(code, event, kills=kills, shm_full=shm_full)
    names = ("outcome", "reason", "oom_resource", "oom_evidence")
    blank = {"oom_resource": None, "oom_evidence": ""}
    assert tuple({**blank, **found}[name] for name in names) == expected
    assert found["exit_code"] == code


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    """Real-time signals have no name of their own."""
    found = sv.classify(-40, None, kills=0, shm_full=False)
    assert found["reason"] == "signal 40"


def test_kills_are_counted_by_the_kernel() -> None:
    """The count of out-of-memory kills can be read on this machine, whatever its cgroups."""
    assert sv.oom_kills() >= 0


def test_a_workers_figures_are_not_trusted() -> None:
    """What is not {uuid: bytes} is left out, and what is adds up by device."""
    assert sv.bytes_by_device({"a": 1, "b": -1, "c": True, "d": "9", "e": 2.5}) == {"a": 1}
    assert sv.bytes_by_device([1]) == {}
    assert sv.summed([{"a": 1, "b": 2}, {"a": 3}]) == {"a": 4, "b": 2}


# -- the gate


def test_a_gate_that_is_away_is_asked_less_and_less_often(tmp_path: Path) -> None:
    """Failures double the wait up to five seconds, with jitter; an answer ends it."""
    answered = threading.Event()
    link = sv.GateLink(str(tmp_path / "nobody.sock"), answered.set)
    now, waits = 0.0, []
    for _ in range(7):
        assert link.ask("heartbeat", dict, now)
        assert not link.ask("heartbeat", dict, now)  # one at a time
        assert answered.wait(60)
        answered.clear()
        assert link.take(now) == ("heartbeat", 0, {})
        assert not link.ask("heartbeat", dict, now)
        waits.append(link._not_before - now)
        now = link._not_before
    limits = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
