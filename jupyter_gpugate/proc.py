"""Processes: their names and states in /proc, the peer of a socket, and how ours are started.

Shared by all processes of the package: standard library only, CPython 3.9.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Optional, Union

#: For ``python -c``: runs the module named next as ``-m`` does, but imports nothing from the
#: working directory.  The option ``-P`` does so from Python 3.11 on only.
RUN_MODULE: Final = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); sys.argv.pop(0); import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
#: The folder that this package is imported from.
ROOT: Final = str(Path(__file__).resolve().parents[1])

#: Jupyter's servers and gateways, the Hub, its proxy and the gate begin their variables so.
_OF_A_SERVER: Final = re.compile(
    r"(JUPYTER|JUPYTERHUB|JUPYTERLAB|JPY|CONFIGPROXY|KG|EG|GPUGATE)_", re.IGNORECASE
)
#: A word in a variable's name that denotes a secret; headers carry an authorization.
_SECRET: Final = re.compile(
    r"_(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|KEY|CREDENTIAL|HEADER)S?(_|$)", re.IGNORECASE
)
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_FIELDS: Final = 20  # of /proc/PID/stat behind the name, up to the start


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used here."""

    state: bytes
    parent_pid: int
    flags: int
    threads: int
    start_ticks: int

    @property
    def is_dead(self) -> bool:
        """State Z is that of the first thread: while others live, so does the process."""
        return self.state in (b"Z", b"X") and self.threads <= 1

    @property
    def is_headless(self) -> bool:
        """Whether the first thread has ended and others live."""
        return self.state == b"Z" and self.threads > 1


class Peer(NamedTuple):
    """The process at the other end of a unix socket."""

    pid: int
    uid: int

    @property
    def is_trusted(self) -> bool:
        """Whether it is a process of this user, or of root, who can do anything anyway."""
        return self.uid in {0, os.geteuid()}


class Caller(NamedTuple):
    """A process that asks something of a gate, and the name of the user that it acts for."""

    uid: int
    pid: int
    start_ticks: Optional[int]  # None: its process cannot be seen from here
    name: str

    def run_side(self, label: str = "") -> str:
        """Name a run side of the caller's user: the only one, or one of several by its label."""
        own = f"uid-{self.uid}"
        return own if label in ("", own) else f"{own}/{label}"


def boot_id(proc: str = "/proc") -> str:
    """Return the kernel's name for this boot."""
    return Path(proc, "sys/kernel/random/boot_id").read_text("ascii", "replace").strip()


def parse_stat(text: bytes) -> Stat:
    """Read the text of /proc/PID/stat; the name in field 2 may contain blanks and brackets."""
    fields = text[text.rindex(b")") + 2 :].split(b" ", _FIELDS)
    if len(fields) < _FIELDS:
        raise ValueError(f"{len(fields)} fields behind the name")
    numbers = (int(fields[place]) for place in (1, 6, 17, 19))
    return Stat(fields[0], *numbers)


def stat_of(pid: Union[int, str], proc: str = "/proc") -> Stat:
    """Read a process's state; raise `OSError` if there is no such process."""
    return parse_stat(Path(proc, str(pid), "stat").read_bytes())


def start_ticks(pid: int) -> Optional[int]:
    """Return when a process started, in ticks since boot; None if it has ended.

    Raises `OSError` where that cannot be read.
    """
    try:
        stat = stat_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if stat.is_dead else stat.start_ticks


def peer_of(line: socket.socket) -> Peer:
    """Return the process at the other end of a unix socket."""
    packed = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(packed)
    return Peer(pid, uid)


def is_token(variable: str) -> bool:
    """Return whether an environment variable is a secret of a server, which no run may see.

    Names of the user and the server stay: programs of a notebook rely on them.
    """
    return _OF_A_SERVER.match(variable) is not None and _SECRET.search(variable) is not None


def isolation(environ: Mapping[str, str]) -> list[str]:
    """Return flags with which Python imports nothing but its own library.

    ``-I`` ignores PYTHONHOME too, without which some installations do not find that library.
    """
    return ["-s", "-S"] if environ.get("PYTHONHOME") else ["-I", "-S"]


def importable(environ: Mapping[str, str], root: str = ROOT) -> dict[str, str]:
    """Let a process that starts in another folder import the package from ``root``.

    Relative entries of PYTHONPATH are left out: they would name other folders there.
    """
    kept = [entry for entry in environ.get("PYTHONPATH", "").split(":") if entry.startswith("/")]
    if not root.endswith(("/site-packages", "/dist-packages")):
        kept.insert(0, root)
    others = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": ":".join(kept)} if kept else others
