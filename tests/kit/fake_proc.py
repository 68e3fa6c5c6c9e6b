"""A /proc of plain files, with the one rule of the real one that files do not have by themselves.

A descriptor of a process that is gone answers ESRCH, also when its number is in use again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1 << 20
KERNEL_THREAD = 0x00200000


class FakeProc:
    """Processes as folders below ``root``; sizes in bytes, start in ticks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.start(1, ticks=1)

    def start(
        self,
        pid: int,
        *,
        ticks: int = 1000,
        parent: int = 1,
        private: int = 0,
        shared: int = 0,
        name: str = "python",
        flags: int = 0x00400000,
        command: tuple[str, ...] = (),
        environ: tuple[str, ...] = (),
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        self.place(pid, ticks=ticks, parent=parent, name=name, flags=flags)
        self.hold(pid, private=private, shared=shared)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in command), "utf-8")
        (folder / "environ").write_text("".join(f"{entry}\0" for entry in environ), "utf-8")

    def place(
        self, pid: int, *, ticks: int = 1000, parent: int, name: str = "python", flags: int = 0
    ) -> None:
        """Write ``stat``: 52 fields, of which only those that matter differ from their number."""
        fields = [str(number) for number in range(1, 53)]
        fields[0], fields[1], fields[2] = str(pid), f"({name})", "S"
        fields[3], fields[8], fields[21] = str(parent), str(flags), str(ticks)
        (self.root / str(pid) / "stat").write_text(" ".join(fields) + "\n", "utf-8")

    def hold(self, pid: int, *, private: int, shared: int = 0) -> None:
        """Write ``statm``, in pages: size, resident, shared, text, lib, data, dt."""
        resident, common = (private + shared) // PAGE, shared // PAGE
        text = f"{resident + 99} {resident} {common} 5 0 123 0\n"
        (self.root / str(pid) / "statm").write_text(text, "utf-8")

    def command(self, pid: int, *words: str) -> None:
        (self.root / str(pid) / "cmdline").write_text("".join(f"{word}\0" for word in words))

    def end(self, pid: int) -> None:
        folder = self.root / str(pid)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    def write(self, path: str, text: str) -> Path:
        """Write any other file below the root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


def gone_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read of a kept descriptor fail once the file that it belongs to was removed."""
    pread = os.pread

    def pread_of_the_living(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_nlink == 0:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread_of_the_living)


def open_descriptors() -> int:
    """Count the descriptors of this process, but for the one that counts."""
    return len(list(Path("/proc/self/fd").iterdir())) - 1
