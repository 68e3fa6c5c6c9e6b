"""The run directory: the only record of a run's source, environment, output, episodes and results.

Only the user's own processes write here, but a run is a program of any kind, so nothing is taken on
trust: what is torn, empty, huge or not a plain file is renamed aside and reported; it never raises.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import math
import os
import re
import secrets
import shutil
import stat
import string
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.core.model import AttemptOutcome, EndReport, ProcessKey
from jupyter_gpugate.core.protocol import ProtocolError, from_json, to_json
from jupyter_gpugate.runs.folder import Json, Torn, appear, decoded, encoded, opened

RUN_ID: Final = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z]{5}")
OUTPUT_TAIL_BYTES: Final = 64 << 10
#: More than a supervisor keeps of displays, which it does not let grow without end.
EVENTS_LIMIT: Final = 128 << 20
#: A draft of a run directory that is older belongs to nobody any more.
ABANDONED_S: Final = 3600.0

_STAGED: Final = re.compile(r"[^\W\d]\w*(\.buffers|\.pickle)")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_GONE: Final = re.compile(rb"\[gpugate: the first ([0-9]+) bytes are gone\]\n")
_EARLIER: Final = '[earlier lines: jupyter_gpugate.get("{}").output()]\n'
_HERE: Final = Path(__file__).parent


class NotStaged(ValueError):
    """What a client staged for a run cannot be taken over; the message says why."""


@dataclass(frozen=True)
class Found:
    """A run directory as `scan` read it."""

    run_id: str
    path: Path
    spec: Json
    summary: Json
    attempt: int  # the newest on disk, whatever the summary says; 0 before the first


@dataclass(frozen=True)
class Trouble:
    """Something that was not as it should be, and where it was moved to; None: it stays."""

    path: Path
    problem: str
    moved_to: Path | None

    def __str__(self) -> str:
        aside = f"moved to {self.moved_to}" if self.moved_to else "left where it is"
        return f"{self.path}: {self.problem}; {aside}"


@dataclass(frozen=True)
class Scan:
    """All runs of a user in the order of their submission, and what could not be read."""

    runs: tuple[Found, ...]
    troubles: tuple[Trouble, ...]


# -- a run ---------------------------------------------------------------------------------------


def new_run_id() -> str:
    """Return an id for a run that is submitted now: local time and five random letters."""
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(5))
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{letters}"


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
    _make_root(root)
    draft = root / f".new-{_checked(run_id)}"
    draft.mkdir(mode=0o700)
    try:
        (draft / "attempts").mkdir(mode=0o700)
        with opened(draft) as folder:
            for name, content in (("spec", spec), ("env", environment), ("summary", summary)):
                folder.write(f"{name}.json", encoded(content))
        _fill(draft / "inputs", staged, spec.get("inputs") or ())
        return appear(draft, root / run_id)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Replace a run's summary."""
    with opened(path) as folder:
        folder.write("summary.json", encoded(summary))


def write_detached(path: Path) -> None:
    """Note for good that nobody waits for this run any more."""
    with opened(path) as folder:
        folder.write("detached", b"")


def is_detached(path: Path) -> bool:
    """Tell whether `write_detached` was called for a run."""
    return (path / "detached").exists()


def forget_environment(path: Path) -> None:
    """Remove the environment, which may hold the user's keys, of a run that has ended."""
    with opened(path) as folder:
        folder.remove("env.json")


def newest_attempt(path: Path) -> int:
    """Return the number of a run's newest attempt; 0 before the first."""
    return max(_attempts(path), default=0)


def remove(path: Path) -> None:
    """Remove a run's directory; it is gone at once, its files a little later."""
    aside = path.with_name(f".gone-{_checked(path.name)}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def read_episodes(path: Path) -> list[Json]:
    """Return what the workers told of each finished episode, with its attempt, in order."""
    return [
        {"attempt": number, **event}
        for number in _attempts(path)
        for event in read_events(path / "attempts" / str(number), "episodes.jsonl")
    ]


# -- an attempt ----------------------------------------------------------------------------------


def create_attempt(
    path: Path, number: int, launch: Mapping[str, Any], source: str | None = None
) -> Path:
    """Make ``attempts/NUMBER`` with all that its supervisor needs, whole, and return its path.

    The programs are copied, so that an upgrade does not change them under a live run; ``source`` is
    a cell's body.  An attempt of that number that never began is replaced; for one that did, raises
    `FileExistsError`.
    """
    draft, place = path / "attempts" / f".new-{number}", path / "attempts" / str(number)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        with opened(draft) as folder:
            folder.write("launch.json", encoded(launch))
            for copy, program in (("supervisor.py", "supervisor.py"), ("worker.py", "cell.py")):
                folder.write(copy, (_HERE / program).read_bytes())
            if source is not None:
                folder.write("cell.py", source.encode("utf-8", "surrogatepass"))
        _make_way(place)
        return appear(draft, place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def launch_of(attempt: Path) -> Json | None:
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


def outcome_of(attempt: Path) -> Json | None:
    """Return how an attempt ended; None while there is no ``_DONE``.

    With ``_DONE`` the outcome stands, whatever any exit code was; a torn one is renamed aside and
    reads as ``lost``.
    """
    absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with absent, opened(*_steps(attempt)) as folder:
        if "_DONE" not in folder.names():
            return None
        try:
            outcome = folder.read_record("outcome.json")
            from_json(EndReport, outcome.get("end"), "end")
            return {"kill": None, **outcome}
        except (FileNotFoundError, ProtocolError, Torn) as torn:
            folder.put_aside("outcome.json")
            end = EndReport(AttemptOutcome.LOST, f"its outcome cannot be read: {_words(torn)}")
            return {"end": to_json(end), "kill": None}
    return None


def read_events(attempt: Path, name: str) -> list[Json]:
    """Return the lines of ``episodes.jsonl`` or ``display.jsonl`` that are whole."""
    found = []
    with contextlib.suppress(OSError, Torn), opened(*_steps(attempt)) as folder:
        for line in folder.read(name, EVENTS_LIMIT).splitlines():
            with contextlib.suppress(Torn):
                found.append(decoded(line))
    return found


def told_by_run(attempt: Path) -> Json:
    """Return what a summary keeps of a run's own words: error, warnings, end of the output."""
    events = read_events(attempt, "display.jsonl")
    errors = [event for event in events if event.get("event") == "error"]
    error = {k: errors[-1].get(k) for k in ("ename", "evalue", "traceback")} if errors else None
    warnings = [str(event.get("text", "")) for event in events if event.get("event") == "warning"]
    return {"error": error, "warnings": warnings, "output_tail": output_tail(attempt)}


def write_outcome(attempt: Path, outcome: Mapping[str, Any]) -> None:
    """Write an end that the attempt's own supervisor could not write."""
    with opened(*_steps(attempt)) as folder:
        folder.write("outcome.json", encoded(outcome))
        folder.write("_DONE", b"")


def write_stop(attempt: Path, stop: Mapping[str, Any]) -> None:
    """Say to an attempt's supervisor why it is about to get a SIGTERM."""
    with opened(*_steps(attempt)) as folder:
        folder.write("stop.json", encoded(stop))


def read_output(
    attempt: Path, start: int | None = None, limit: int = OUTPUT_TAIL_BYTES
) -> tuple[str, int]:
    """Return at most ``limit`` bytes of output from byte ``start`` on, and the byte after them.

    Without ``start``, the end of what there is.  Offsets count all bytes that the run has printed,
    also when a long log has lost its beginning: reading then goes on where the log does.  A
    character that is not whole yet is left for the next time.
    """
    with contextlib.suppress(OSError, Torn), opened(*_steps(attempt)) as folder:
        with os.fdopen(folder.open_file("output.log"), "rb") as log:
            note = _GONE.match(log.read(64))
            gone = int(note[1]) - note.end() if note else 0  # bytes before the file's first
            size = os.fstat(log.fileno()).st_size
            at = size - limit if start is None else min(start - gone, size)
            at = max(0, at)
            log.seek(at)
            data = log.read(limit)
        if start is None and at > 0:
            data, whole = data.lstrip(bytes(range(0x80, 0xC0))), data
            at += len(whole) - len(data)
        return _whole_characters(data, gone + at + len(data))
    return "", start or 0


def output_stamp(attempt: Path) -> tuple[int, int] | None:
    """What changes with an attempt's output; None where there is none yet."""
    try:
        found = (attempt / "output.log").stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def output_tail(attempt: Path) -> str:
    """Return the end of an attempt's output, from the beginning of a line on."""
    earlier = _EARLIER.format(attempt.parents[1].name)
    limit = OUTPUT_TAIL_BYTES - len(earlier)
    text, end = read_output(attempt, limit=limit)
    if end <= limit:
        return text
    first, _, rest = text.partition("\n")
    return earlier + (rest or first)


# -- at start-up -----------------------------------------------------------------------------------


def scan(root: Path, read_spec: Callable[[Json], object] | None = None) -> Scan:
    """Read every run directory below ``root``; never raises for what it finds there.

    A run whose spec is torn, or makes ``read_spec`` raise, is renamed aside into ``.quarantine``,
    and so is what is no run at all.  A torn summary is renamed aside inside its run, and one is
    made up from the attempts, so that the run's story goes on from its outcome.
    """
    runs, troubles = [], []
    try:
        _make_root(root)
        names = sorted(os.listdir(root))  # noqa: PTH208 - names are wanted
    except OSError as error:
        return Scan((), (Trouble(root, _words(error), None),))
    for name in names:
        if name.startswith("."):
            _clear_away(root / name)
            continue
        try:
            found, trouble = _read_run(root / _checked(name), read_spec)
            runs.append(found)
            troubles += [trouble] if trouble else []
        except Exception as error:  # noqa: BLE001 - one bad directory must not hide the others
            troubles.append(_quarantined(root, name, _words(error)))
    runs.sort(key=lambda run: (run.summary["submitted"], run.run_id))
    return Scan(tuple(runs), tuple(troubles))


def _read_run(
    path: Path, read_spec: Callable[[Json], object] | None
) -> tuple[Found, Trouble | None]:
    with opened(path) as folder:
        spec = folder.read_record("spec.json")
        if spec.get("run_id") != path.name or not _is_time(spec.get("submitted")):
            raise Torn("spec.json: is of another run")
        if read_spec is not None:
            read_spec(spec)
        try:
            summary, trouble = folder.read_record("summary.json"), None
            _check_summary(summary, path.name)
        except (OSError, Torn) as torn:
            moved_to = folder.put_aside("summary.json")
            trouble = Trouble(path / "summary.json", _words(torn), moved_to)
            summary = _made_up_summary(path, spec)
        return Found(path.name, path, spec, summary, newest_attempt(path)), trouble


def _check_summary(summary: Json, run_id: str) -> None:
    status, attempt = summary.get("status"), summary.get("attempt")
    right = (
        summary.get("run_id") == run_id
        and status in {"queued", "active", "ended"}
        and (status != "ended" or isinstance(summary.get("end"), str))
        and _is_time(summary.get("submitted"))
        and isinstance(attempt, int)
        and not isinstance(attempt, bool)
    )
    if not right:
        raise Torn("summary.json: has not the form of a summary")


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _made_up_summary(path: Path, spec: Json) -> Json:
    attempt = newest_attempt(path)
    status = "active" if attempt else "queued"
    facts = {"status": status, "submitted": spec["submitted"], "attempt": attempt}
    return {"run_id": path.name, **facts}


def _attempts(path: Path) -> list[int]:
    with contextlib.suppress(OSError), opened(path, "attempts") as folder:
        return sorted(int(name) for name in folder.names() if _NUMBER.fullmatch(name))
    return []


def _quarantined(root: Path, name: str, problem: str) -> Trouble:
    place = root / ".quarantine" / f"{name[:200]}.{secrets.token_hex(4)}"
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        (root / name).rename(place)
    except OSError as error:
        return Trouble(root / name, f"{problem} ({_words(error)})", None)
    return Trouble(root / name, problem, place)


def _clear_away(path: Path) -> None:
    """Remove a draft or a removed run that a process left behind when it was killed."""
    if path.name.startswith((".new-", ".gone-")):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > ABANDONED_S:
                shutil.rmtree(path)


# -- parts -----------------------------------------------------------------------------------------


def _make_root(root: Path) -> None:
    """Make the folder of all runs; it is the user's, and nobody else can enter it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to another user", str(root))
    if stat.S_IMODE(found.st_mode) & 0o077:
        root.chmod(0o700)


def _fill(place: Path, staged: str, named: Sequence[str]) -> None:
    """Make the folder of a run's inputs, with all that are named."""
    if staged:
        _take_over(Path(staged), place, named)
    elif named:
        raise NotStaged(_unstaged(named[0]))
    else:
        place.mkdir(mode=0o700)


def _unstaged(name: str) -> str:
    return f"no value was staged for {name}"


def _take_over(staged: Path, place: Path, named: Sequence[str]) -> None:
    """Move a client's staged inputs to ``place``; raise `NotStaged` where they are not as told."""
    if not staged.is_absolute():
        raise NotStaged(f"{staged} is no absolute path")
    try:
        with opened(staged) as folder:
            found = folder.names()
            for name in found:
                if not _STAGED.fullmatch(name):
                    raise NotStaged(f"{name!r} is no name of an input's file")
                os.close(folder.open_file(name))
            for name in named:
                if f"{name}.pickle" not in found:
                    raise NotStaged(_unstaged(name))
            folder.sync()
    except (OSError, Torn, ValueError) as error:
        raise NotStaged(f"{staged}: {_words(error)}") from error
    shutil.move(staged, place)  # also from another file system
    place.chmod(0o700)


def _make_way(place: Path) -> None:
    """Rename an attempt aside that was prepared but never began."""
    with contextlib.suppress(FileNotFoundError), opened(*_steps(place)) as old:
        if {"tree.json", "outcome.json", "_DONE"} & set(old.names()):
            raise FileExistsError(errno.EEXIST, "this attempt has begun", str(place))
        place.rename(place.with_name(f".unused-{place.name}-{secrets.token_hex(4)}"))


def _checked(run_id: str) -> str:
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(f"{run_id!r} is no run id")
    return run_id


def _steps(attempt: Path) -> tuple[Path, str, str]:
    """Return an attempt's run directory and the names that lead from there to the attempt."""
    return attempt.parents[1], attempt.parent.name, attempt.name


def _record(attempt: Path, name: str) -> Json | None:
    with contextlib.suppress(OSError, Torn), opened(*_steps(attempt)) as folder:
        return folder.read_record(name)
    return None


def _tree(attempt: Path) -> Json:
    """Return an attempt's tree.json; empty where it cannot be read or is of another boot."""
    tree = _record(attempt, "tree.json") or {}
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return tree if tree.get("boot_id") == boot_id else {}


def _processes(pairs: object) -> tuple[ProcessKey, ...]:
    """Return the pairs of numbers that are processes, whatever else is among them."""
    found = []
    for pair in pairs if isinstance(pairs, list) else ():
        with contextlib.suppress(ProtocolError):
            found.append(from_json(ProcessKey, pair, "process"))
    return tuple(key for key in found if key.pid > 1)


def _whole_characters(data: bytes, end: int) -> tuple[str, int]:
    """Decode UTF-8 but for a last character that is cut; return the text and where it ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, end - len(decoder.getstate()[0])


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
