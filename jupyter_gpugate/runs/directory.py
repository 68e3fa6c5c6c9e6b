"""The run directory: the only record of a run's source, environment, output, episodes and results.

Only the user's own processes write here, but a run may be any program, so nothing is trusted: files
that are torn, empty, huge or not regular are renamed within the run and reported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.core.codec import ProtocolError, from_json, to_json
from jupyter_gpugate.core.endings import Stop, read_stop
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import boot_id
from jupyter_gpugate.runs.events import clip, read_events
from jupyter_gpugate.runs.folder import (
    Stored,
    TooLarge,
    Torn,
    appear,
    in_words,
    opened,
    opened_attempt,
    own_root,
)
from jupyter_gpugate.runs.ids import checked
from jupyter_gpugate.runs.removal import make_accessible, remove_tree
from jupyter_gpugate.runs.staging import fill

#: The most bytes of one attempt's episodes that are read.
EPISODES_LIMIT: Final = 32 << 20

#: Fields that are kept when a summary is too large.
_ESSENCE: Final = (
    *("run_id", "name", "parameters", "command", "group", "key", "machine"),
    *("status", "submitted", "attempt", "end", "ended"),
)

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_MOST_PID: Final = 1 << 22  # the kernel's own limit


# -- a run ---------------------------------------------------------------------------------------


def create(  # noqa: PLR0917 - the parts of a run, in the order in which they are written
    root: Path,
    run_id: str,
    spec: Mapping[str, Any],
    environment: Mapping[str, str],
    summary: Mapping[str, Any],
    staged: str = "",
) -> Path:
    """Make a run's directory, whole or not at all, and return its path.

    ``staged`` is a folder that a client of this user has written, with all inputs that the spec
    names; it becomes the run's.  Raises `NotStaged`, or `OSError` from the disk: `FileExistsError`
    where the id is taken.
    """
    own_root(root)
    draft = root / f".new-{checked(run_id)}"
    draft.mkdir(mode=0o700)
    try:
        (draft / "attempts").mkdir(mode=0o700)
        with opened(draft) as folder:
            for name, content in (("spec", spec), ("env", environment), ("summary", summary)):
                folder.write_record(f"{name}.json", content)
        fill(draft / "inputs", staged, spec.get("inputs") or ())
        return appear(draft, root / run_id)
    except BaseException:
        remove_tree(draft)
        raise


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Replace a run's summary; one that is too large is written without the run's own texts."""
    with opened(path) as folder:
        try:
            folder.write_record("summary.json", summary)
        except TooLarge:
            short = {name: summary[name] for name in _ESSENCE if name in summary}
            reason = clip(summary.get("reason", ""))
            folder.write_record("summary.json", {**short, "reason": reason})


def write_detached(path: Path) -> None:
    """Record permanently that the run is detached."""
    with opened(path) as folder:
        folder.write("detached", b"")


def is_detached(path: Path) -> bool:
    """Return whether `write_detached` was called for a run."""
    return (path / "detached").exists()


def forget_environment(path: Path) -> None:
    """Remove the environment, which may hold the user's keys, of a run that has ended.

    It is removed last: a directory with an environment may be of an unfinished run.
    """
    with opened(path) as folder:
        folder.remove("env.json")


def may_be_unfinished(path: Path) -> bool:
    """Return, without reading any record, whether a run may be unfinished."""
    return os.path.lexists(path / "env.json")


def newest_attempt(path: Path) -> int:
    """Return the number of a run's newest attempt; 0 before the first."""
    return max(attempts_of(path), default=0)


def read_episodes(path: Path) -> tuple[list[Stored], int]:
    """Return the reports of the finished episodes, each with its attempt, in order.

    If there are too many, only the newest; the number counts the earlier ones left out.
    """
    found, left_out = [], 0
    for number in attempts_of(path):
        attempt = path / "attempts" / str(number)
        events, earlier = read_events(attempt, "episodes.jsonl", EPISODES_LIMIT)
        found += [{"attempt": number, **event} for event in events]
        left_out += earlier
    return found, left_out


# -- an attempt ----------------------------------------------------------------------------------


def create_attempt(
    path: Path, number: int, launch: Mapping[str, Any], source: str | None = None
) -> Path:
    """Make ``attempts/NUMBER`` with all that its supervisor needs, whole, and return its path.

    ``source`` is a cell's body.  An attempt of that number that never began is replaced; for one
    that did, raises `FileExistsError`.
    """
    draft, place = path / "attempts" / f".new-{number}", path / "attempts" / str(number)
    remove_tree(draft)
    draft.mkdir(mode=0o700)
    try:
        with opened(draft) as folder:
            folder.write_record("launch.json", launch)
            if source is not None:
                folder.write("cell.py", source.encode("utf-8", "surrogatepass"))
        _make_way(place)
        return appear(draft, place)
    except BaseException:
        remove_tree(draft)
        raise


def launch_of(attempt: Path) -> Stored | None:
    """Return an attempt's launch.json; None where there is none or it cannot be read."""
    return _record(attempt, "launch.json")


def supervisor_of(attempt: Path) -> ProcessKey | None:
    """Return the supervisor that an attempt of this boot has written down; None: there is none."""
    tree = _tree(attempt)
    found = _processes([tree.get("supervisor")])
    return found[0] if found else None


def tree_of(attempt: Path) -> tuple[ProcessKey, ...]:
    """Return the processes that an attempt of this boot was last known to have."""
    tree = _tree(attempt)
    return _processes(tree.get("tree"))


def outcome_of(attempt: Path) -> Stored | None:
    """Return the end of an attempt; None while there is no ``_DONE``.

    With ``_DONE`` the outcome is final, whatever the exit code; a torn one is renamed and
    reads as ``lost``.
    """
    absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with absent, opened_attempt(attempt) as folder:
        if "_DONE" not in folder.names():
            return None
        try:
            outcome = folder.read_record("outcome.json")
            from_json(EndReport, outcome.get("end"), "end")
            return {"kill": None, **outcome}
        except (FileNotFoundError, ProtocolError, Torn) as torn:
            folder.put_aside("outcome.json")
            end = EndReport(AttemptOutcome.LOST, f"its outcome cannot be read: {in_words(torn)}")
            return {"end": to_json(end), "kill": None}
    return None


def end_of(attempt: Path) -> Stored:
    """Return the recorded end of an attempt as it is; empty where there is none to be read."""
    if not (attempt / "_DONE").exists():
        return {}
    end = (_record(attempt, "outcome.json") or {}).get("end")
    return end if isinstance(end, dict) else {}


def write_outcome(attempt: Path, outcome: Mapping[str, Any]) -> None:
    """Write an end that the attempt's own supervisor could not write."""
    with opened_attempt(attempt) as folder:
        folder.write_record("outcome.json", outcome)
        folder.write("_DONE", b"")


def write_stop(attempt: Path, stop: Stop) -> None:
    """Say to an attempt's supervisor why it is about to get a SIGTERM."""
    with opened_attempt(attempt) as folder:
        # Supervisors of former versions read the reason.
        folder.write_record("stop.json", {**to_json(stop), "reason": stop.reason})


def stop_of(attempt: Path) -> Stop | None:
    """Return the stop that `write_stop` has recorded, in this or a former version."""
    record = _record(attempt, "stop.json") or {}
    with contextlib.suppress(ProtocolError):
        fields = {name: record[name] for name in ("kind", "by", "detail") if name in record}
        return from_json(Stop, fields, "stop")
    return read_stop(str(record.get("reason", "")))[0]


# -- parts -----------------------------------------------------------------------------------------


def cgroup_of(attempt: Path) -> str:
    """Return the cgroup of an attempt of this boot, as its supervisor named it; "": it had none."""
    cgroup = _tree(attempt).get("cgroup")
    return cgroup if isinstance(cgroup, str) else ""


def regain(attempt: Path) -> None:
    """Restore this user's access to an attempt's directory."""
    for place in (*reversed(attempt.parents[:2]), attempt):
        with contextlib.suppress(OSError):
            make_accessible(place)


def is_gone(attempt: Path) -> bool:
    """Return whether an attempt's directory was removed: a run may remove its own."""
    try:
        with opened_attempt(attempt):
            return False
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _make_way(place: Path) -> None:
    """Rename an attempt aside that was prepared but never began."""
    with contextlib.suppress(FileNotFoundError), opened_attempt(place) as old:
        if {"tree.json", "outcome.json", "_DONE"} & set(old.names()):
            raise FileExistsError(errno.EEXIST, "this attempt has begun", str(place))
        place.rename(place.with_name(f".unused-{place.name}-{secrets.token_hex(4)}"))


def attempts_of(path: Path) -> list[int]:
    """Return the numbers of a run's attempts, in order."""
    with contextlib.suppress(OSError), opened(path, "attempts") as folder:
        return sorted(int(name) for name in folder.names() if _NUMBER.fullmatch(name))
    return []


def _record(attempt: Path, name: str) -> Stored | None:
    with contextlib.suppress(OSError, Torn), opened_attempt(attempt) as folder:
        return folder.read_record(name)
    return None


def _tree(attempt: Path) -> Stored:
    """Return an attempt's tree.json; empty where it cannot be read or is of another boot."""
    tree = _record(attempt, "tree.json") or {}
    return tree if tree.get("boot_id") == boot_id() else {}


def _processes(pairs: object) -> tuple[ProcessKey, ...]:
    """Return the pairs of numbers that are processes; other entries are ignored."""
    found = []
    for pair in pairs if isinstance(pairs, list) else ():
        with contextlib.suppress(ProtocolError):
            found.append(from_json(ProcessKey, pair, "process"))
    return tuple(key for key in found if 1 < key.pid <= _MOST_PID)
