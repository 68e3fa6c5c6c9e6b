"""The cgroup for a run: that of its notebook, not that of the gate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_gpugate.proc import boot_id, start_ticks
from jupyter_gpugate.programs.supervisor.cgroups import cgroup_directory, memberships

_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class NotebookCgroup(NamedTuple):
    """The cgroups for a run to join, by hierarchy, and the one for its memory."""

    joins: Mapping[str, str]
    memory: str = ""  # "": the gate's
    note: str = ""  # how its limits differ from its notebook's, in one sentence


def notebook_cgroup_of(kernel: Mapping[str, Any] | None) -> NotebookCgroup:
    """Find the cgroups of the process that submits, as far as a run may be moved there."""
    theirs = _of(kernel or {})
    own = memberships("self")
    if theirs in ({}, own):
        return NotebookCgroup({})
    others = {names: path for names, path in theirs.items() if path != own.get(names, path)}
    joins = {names: path for names, path in others.items() if _may_join(names, path, own[names])}
    memory = next((names for names in own if "memory" in names.split(",")), "")
    if memory not in others:
        return NotebookCgroup(joins)
    if memory in joins:
        return NotebookCgroup(joins, joins[memory])
    return NotebookCgroup(joins, note=_difference(memory, others[memory], own[memory]))


def _of(kernel: Mapping[str, Any]) -> dict[str, str]:
    """The cgroups of a process of this machine; none where it is gone or lives elsewhere."""
    pid = kernel.get("pid")
    if not isinstance(pid, int) or kernel.get("boot_id") not in ("", boot_id()):
        return {}
    found = memberships(pid)
    try:
        is_ours = os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116 - one call
    except OSError:
        return {}
    return found if is_ours and start_ticks(pid) == kernel.get("start_ticks") else {}


def _may_join(names: str, cgroup: str, own: str) -> bool:
    """Whether the kernel will let this user move a process there from its own cgroup."""
    controller = names.split(",", maxsplit=1)[0]
    places = [cgroup] if controller else [cgroup, os.path.commonpath([cgroup, own])]
    for place in places:
        directory = cgroup_directory(controller, place)
        if directory is None or not os.access(f"{directory}/cgroup.procs", os.W_OK):
            return False
    return bool(controller) or not _gives_controllers(cgroup)


def _gives_controllers(cgroup: str) -> bool:
    """Whether a v2 cgroup passes controllers on: then only those below it take processes."""
    try:
        text = Path(f"{cgroup_directory('', cgroup)}/cgroup.subtree_control").read_text()
    except OSError:
        return True
    return bool(text.strip()) and cgroup != "/"


def _difference(names: str, cgroup: str, own: str) -> str:
    """Say how the limits of the two differ; "" if they are the same."""
    controller = names.split(",", maxsplit=1)[0]
    theirs, ours = (dict(_limits(controller, place)) for place in (cgroup, own))
    lost = {place: limit for place, limit in theirs.items() if place not in ours}
    added = {place: limit for place, limit in ours.items() if place not in theirs}
    if not lost and not added:
        return ""
    words = f"the run cannot be moved into cgroup {cgroup} of its notebook"
    if lost:
        words += f", so its limit of {min(lost.values()) >> 20:,} MB does not apply"
    if added:
        place = min(added, key=added.__getitem__)
        words += f"; the limit of {added[place] >> 20:,} MB of the gate's cgroup {place} applies"
    return words


def _limits(controller: str, cgroup: str) -> Iterator[tuple[str, int]]:
    """Each level from a cgroup up that limits memory, with its limit."""
    while True:
        directory = cgroup_directory(controller, cgroup)
        known = [limit for name in _LIMITS if (limit := _limit(f"{directory}/{name}"))]
        if directory is not None and known:
            yield cgroup, min(known)
        if cgroup in ("/", ""):
            return
        cgroup = os.path.dirname(cgroup)  # noqa: PTH120 - a name of the kernel's, not a path


def _limit(file: str) -> int | None:
    try:
        limit = int(Path(file).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return limit if limit < _MACHINE_BYTES else None
