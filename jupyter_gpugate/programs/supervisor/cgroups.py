"""Cgroups, other settings of the kernel, and its counts of out-of-memory kills."""

from __future__ import annotations

import os
from contextlib import suppress


def memberships(pid: int | str) -> dict[str, str]:
    """Return the cgroups of a process: its path by the controllers of each hierarchy, "" for v2."""
    own: dict[str, str] = {}
    with suppress(OSError, ValueError), open(f"/proc/{pid}/cgroup") as cgroups:
        for line in cgroups:
            _, names, path = line.rstrip("\n").split(":", 2)
            own[names] = path
    return own


def cgroup_directory(controller: str, cgroup: str | None = None) -> str | None:
    """Return the directory of a cgroup, this process's own by default, where it can be seen.

    ``controller`` is one of v1, or "" for the v2 tree.
    """
    if cgroup is None:
        own = memberships("self")
        found = [path for names, path in own.items() if controller in names.split(",")]
        if not found:
            return None
        cgroup = found[0]
    with suppress(OSError, ValueError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            place, _, what = line.partition(" - ")
            root, mount = place.split()[3:5]
            kind, _, options = what.split()[:3]
            fits = kind == "cgroup" and controller in options.split(",")
            if fits or (not controller and kind == "cgroup2"):
                below = os.path.relpath(cgroup, root)
                is_outside = ".." in f"{cgroup}/{below}".split("/")
                return None if is_outside else os.path.normpath(f"{mount}/{below}")
    return None


def join_cgroups(wanted: dict[str, str]) -> list[str]:
    """Move this process into cgroups, as `memberships` names them; return those that refuse it.

    The limits of its notebook then apply to a run, which the end of the gate's session does not
    end.
    """
    missed = []
    for names, cgroup in wanted.items():
        directory = cgroup_directory(names.split(",")[0], cgroup)
        if directory is None or not put(f"{directory}/cgroup.procs", 0):
            missed.append(cgroup)
    return missed


def make_cgroup(name: str) -> str | None:
    """Make a v2 cgroup for the workers, to kill them by; None where that is not permitted."""
    parent = cgroup_directory("")
    if parent is None:
        return None
    directory = f"{parent}/{name}"
    with suppress(OSError):
        os.mkdir(directory)
        if os.access(f"{directory}/cgroup.kill", os.W_OK):  # since Linux 5.14
            return directory
        os.rmdir(directory)
    return None


def put(path: str, value: int) -> bool:
    """Set one of the kernel's settings; False where that is not possible."""
    try:
        with open(path, "w") as setting:
            setting.write(str(value))
    except OSError:
        return False
    return True


def counter(path: str, key: str) -> int | None:
    """Read the number behind a word in a file of such lines; None where there is none."""
    with suppress(OSError, ValueError), open(path) as lines:
        for words in map(str.split, lines):
            if words[0] == key:
                return int(words[1])
    return None


def oom_kills() -> int:
    """Read how many kills this memory cgroup counts, or the machine where it counts none."""
    for controller, name in (("memory", "memory.oom_control"), ("", "memory.events")):
        directory = cgroup_directory(controller)
        count = counter(f"{directory}/{name}", "oom_kill") if directory else None
        if count is not None:
            return count
    return counter("/proc/vmstat", "oom_kill") or 0
