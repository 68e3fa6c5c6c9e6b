"""The state of a process in /proc, the peer of a socket, and this boot."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from jupyter_gpugate.proc import boot_id, parse_stat, peer_of, start_ticks, stat_of
from tests.kit.external_processes import running
from tests.kit.headless_process import headless

FIELDS = b"S 7 1 1 0 -1 64 0 0 0 0 0 0 0 0 20 0 3 0 4711 0 0"


@pytest.mark.parametrize("name", [b"python", b"a b", b") S 1 (", b"x)) R 2 "])
def test_a_processes_name_is_never_taken_for_its_state(name: bytes) -> None:
    """The fields are counted from the last bracket: a name may contain blanks and brackets."""
    stat = parse_stat(b"12 (" + name + b") " + FIELDS)
    assert stat == (b"S", 7, 64, 3, 4711)
    assert not stat.is_dead
    assert not stat.is_headless


@pytest.mark.parametrize("text", [b"", b"12 (x", b"12 (x) S 7", b"12 (x) " + FIELDS[:-12]])
def test_half_a_line_is_an_error(text: bytes) -> None:
    """A line that was cut off gives no numbers at all."""
    with pytest.raises(ValueError, match=r"fields|subsection"):
        parse_stat(text)


def test_a_process_is_dead_when_its_last_thread_is() -> None:
    """A zombie has no start; a process that has lost its first thread only has one."""
    with running(["sleep", "1000"]) as process:
        started = start_ticks(process.pid)
        assert started == stat_of(process.pid).start_ticks
        assert stat_of(process.pid).parent_pid == os.getpid()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert stat_of(process.pid).is_dead
        assert start_ticks(process.pid) is None
    assert start_ticks(process.pid) is None
    with headless(1) as left:
        assert stat_of(left.pid).is_headless
        assert start_ticks(left.pid) is not None


def test_the_peer_is_the_process_that_connected(tmp_path: Path) -> None:
    """The system names the process and its user, whatever it sends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        code = f"import socket; s = socket.socket(1); s.connect({str(tmp_path / 'socket')!r})"
        with subprocess.Popen(["python3", "-c", f"{code}; s.recv(1)"]) as caller:
            line, _ = listener.accept()
            with line:
                assert peer_of(line) == (caller.pid, os.geteuid())


def test_the_boot_has_one_name(tmp_path: Path) -> None:
    """It is the kernel's own, without the line's end; another /proc may be read as well."""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("another\n")
    assert boot_id(str(tmp_path)) == "another"
