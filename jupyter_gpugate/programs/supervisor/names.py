"""Names of programs by their command lines, and what is known of some of them."""

from __future__ import annotations

import os

from .processes import read_proc

#: Programs that have a daemon or another machine do their work, outside the tree.
CLIENTS = frozenset(
    (
        *("docker", "docker-compose", "podman", "nerdctl", "ctr", "crictl", "kubectl"),
        *("machinectl", "incus", "lxc", "systemd-run", "at", "batch"),
        *("srun", "sbatch", "salloc", "qsub", "bsub", "condor_submit", "ray"),
    )
)
#: The same, but widely used otherwise: counts only while it is alive.
REMOTE_SHELLS = frozenset(("ssh", "mosh-client"))
INTERPRETERS = ("python", "pypy", "sh", "bash", "dash", "zsh", "ksh", "perl", "ruby", "node")
COMMAND_CAP = 1 << 16  # bytes


def command_of(pid: int) -> list[str]:
    """Return the command line of a process."""
    words = read_proc(pid, "cmdline")[:COMMAND_CAP].split(b"\0")
    return [os.fsdecode(word) for word in words if word]


def program_of(words: list[str]) -> str:
    """Name a program by its command line: a script by its own name, not its interpreter's."""
    names = [word.rpartition("/")[2] for word in words[:2]]
    if len(names) > 1 and names[0].startswith(INTERPRETERS) and not words[1].startswith("-"):
        return names[1]
    return names[0] if names else ""


def name_of(pid: int) -> str:
    """Name a process for people."""
    return f"{pid} ({program_of(command_of(pid)) or 'a process'})"


def is_helper(words: list[str]) -> bool:
    """Whether Python started it for its own housekeeping, and it ends with the rest."""
    starts = " ".join(words[1:4])
    return "resource_tracker" in starts or "multiprocessing.forkserver" in starts


def listed(names: list[str], most: int = 5) -> str:
    """List a few names, and count the rest."""
    more = len(names) - most
    return ", ".join([*names[:most], *([f"{more} more"] if more > 0 else [])])
