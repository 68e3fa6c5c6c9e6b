"""The run directory: the only record of a run's source, environment, output, episodes and results.

Only the user's own processes write here, but a run is a program of any kind, so nothing is taken on
trust: what is torn, empty, huge or not a plain file is put aside within the run and reported.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.core.model import AttemptOutcome, EndReport, ProcessKey
from jupyter_gpugate.core.protocol import ProtocolError, from_json, to_json
from jupyter_gpugate.runs.folder import (
    Json,
    TooLarge,
    Torn,
    appear,
    decoded,
    in_words,
    opened,
    own_root,
)
from jupyter_gpugate.runs.ids import checked
from jupyter_gpugate.runs.removal import make_accessible, remove_tree
from jupyter_gpugate.runs.staging import fill

OUTPUT_TAIL_BYTES: Final = 64 << 10
#: Of the output below a card while it grows.
REST_BYTES: Final = 16 << 10
#: Of a file of events, what is read at once.
EVENTS_LIMIT: Final = 128 << 20
EPISODES_LIMIT: Final = 32 << 20
#: What a summary keeps of a run's own words: each text, and all texts of one kind together.
TEXT_LIMIT: Final = 16 << 10
TEXTS_LIMIT: Final = 256 << 10

#: Of a run, in its summary.
MOST_WARNINGS: Final = 100

#: What of a summary is never too large.
_ESSENCE: Final = (
    *("run_id", "name", "key", "machine"),
    *("status", "submitted", "attempt", "end", "ended"),
)

_CHUNK: Final = 1 << 20
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_GONE: Final = re.compile(rb"\[gpugate: the first ([0-9]+) bytes are gone\]\n")
_EARLIER: Final = '[earlier lines: jupyter_gpugate.get("{}").output()]\n'
_HERE: Final = Path(__file__).parent
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
    """Replace a run's summary; one that nobody could read is written without the run's words."""
    with opened(path) as folder:
        try:
            folder.write_record("summary.json", summary)
        except TooLarge:
            short = {name: summary[name] for name in _ESSENCE if name in summary}
            reason = _clip(summary.get("reason", ""))
            folder.write_record("summary.json", {**short, "reason": reason})


def write_detached(path: Path) -> None:
    """Note for good that nobody waits for this run any more."""
    with opened(path) as folder:
        folder.write("detached", b"")


def is_detached(path: Path) -> bool:
    """Tell whether `write_detached` was called for a run."""
    return (path / "detached").exists()


def forget_environment(path: Path) -> None:
    """Remove the environment, which may hold the user's keys, of a run that has ended.

    It goes last of all that goes at an end: a directory with an environment is one to look at.
    """
    with opened(path) as folder:
        folder.remove("env.json")


def may_be_unfinished(path: Path) -> bool:
    """Tell from afar whether a run may be one that has not ended."""
    return os.path.lexists(path / "env.json")


def newest_attempt(path: Path) -> int:
    """Return the number of a run's newest attempt; 0 before the first."""
    return max(attempts_of(path), default=0)


def read_episodes(path: Path) -> tuple[list[Json], int]:
    """Return what the workers told of each finished episode, with its attempt, in order.

    Of a history without end the newest; the number is that of the earlier ones left out.
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

    The programs are copied, so that an upgrade does not change them under a live run; ``source`` is
    a cell's body.  An attempt of that number that never began is replaced; for one that did, raises
    `FileExistsError`.
    """
    draft, place = path / "attempts" / f".new-{number}", path / "attempts" / str(number)
    remove_tree(draft)
    draft.mkdir(mode=0o700)
    try:
        with opened(draft) as folder:
            folder.write_record("launch.json", launch)
            for copy, program in (("supervisor.py", "supervisor.py"), ("worker.py", "cell.py")):
                folder.write(copy, (_HERE / program).read_bytes())
            if source is not None:
                folder.write("cell.py", source.encode("utf-8", "surrogatepass"))
        _make_way(place)
        return appear(draft, place)
    except BaseException:
        remove_tree(draft)
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
            end = EndReport(AttemptOutcome.LOST, f"its outcome cannot be read: {in_words(torn)}")
            return {"end": to_json(end), "kill": None}
    return None


def read_events(attempt: Path, name: str, limit: int = EVENTS_LIMIT) -> tuple[list[Json], int]:
    """Return the whole lines of an attempt's file of events, and how many earlier ones it has.

    Of a file that is larger than ``limit`` bytes the end is read, and the rest is only counted.
    """
    found: list[Json] = []
    earlier = 0
    with contextlib.suppress(OSError, Torn), contextlib.ExitStack() as open_ones:
        folder = open_ones.enter_context(opened(*_steps(attempt)))
        file = open_ones.enter_context(os.fdopen(folder.open_file(name), "rb"))
        beyond = os.fstat(file.fileno()).st_size - limit
        if beyond > 0:
            while beyond > 0 and (skipped := file.read(min(beyond, _CHUNK))):
                earlier += skipped.count(b"\n")
                beyond -= len(skipped)
            earlier += file.readline().endswith(b"\n")  # its beginning was skipped
        for line in file:
            with contextlib.suppress(Torn):
                found.append(decoded(line))
    return found, earlier


def told_by_run(attempt: Path) -> Json:
    """Return what a summary keeps of a run's own words: error, warnings, end of the output."""
    # A supervisor of an earlier version keeps all events in one file.
    name = "messages.jsonl" if (attempt / "messages.jsonl").exists() else "display.jsonl"
    events, _ = read_events(attempt, name)
    errors = [event for event in events if event.get("event") == "error"]
    said = [str(event.get("text", "")) for event in events if event.get("event") == "warning"]
    warnings = list(dict.fromkeys(said))
    if len(warnings) > MOST_WARNINGS:
        more = len(warnings) - MOST_WARNINGS
        # The last ones are the supervisor's own, about what it could not keep.
        half = MOST_WARNINGS // 2
        warnings[half:-half] = [f"{more:,} more warnings are not shown"]
    return {
        "error": _error_of(errors[-1]) if errors else None,
        "warnings": _clipped(warnings),
        "output_tail": output_tail(attempt),
    }


def _error_of(event: Json) -> Json:
    """Return an error as a run told it, of a size that a summary can hold."""
    lines = event.get("traceback")
    kept = _clipped(lines[::-1])[::-1] if isinstance(lines, list) else lines and _clip(lines)
    words = {name: _clip(event[name]) if name in event else None for name in ("ename", "evalue")}
    return {**words, "traceback": kept}


def _clip(text: object) -> str:
    """Return the beginning and the end of a text that is too long for a summary."""
    text = str(text)
    half = TEXT_LIMIT // 2
    return text if len(text) <= TEXT_LIMIT else f"{text[:half]} [...] {text[-half:]}"


def _clipped(texts: Sequence[object]) -> list[str]:
    """Return texts, each clipped, up to where they are too long together."""
    kept: list[str] = []
    size = 0
    for text in map(_clip, texts):
        size += len(text) + 1
        if size > TEXTS_LIMIT:
            return [*kept, f"[{len(texts) - len(kept)} more]"]
        kept.append(text)
    return kept


def write_outcome(attempt: Path, outcome: Mapping[str, Any]) -> None:
    """Write an end that the attempt's own supervisor could not write."""
    with opened(*_steps(attempt)) as folder:
        folder.write_record("outcome.json", outcome)
        folder.write("_DONE", b"")


def write_stop(attempt: Path, stop: Mapping[str, Any]) -> None:
    """Say to an attempt's supervisor why it is about to get a SIGTERM."""
    with opened(*_steps(attempt)) as folder:
        folder.write_record("stop.json", stop)


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


def output_from(attempt: Path, start: int) -> str:
    """Return an attempt's output from a byte on; of a long one its end, from a line's start."""
    text, end = read_output(attempt, start, REST_BYTES)
    if end - start < REST_BYTES - 3:  # a character may be cut
        return text
    text, _ = read_output(attempt, limit=REST_BYTES)
    first, _, rest = text.partition("\n")
    return _EARLIER.format(attempt.parents[1].name) + (rest or first)


def output_tail(attempt: Path, until: int | None = None) -> str:
    """Return the end of an attempt's output, or of its part before a byte, from a line's start."""
    earlier = _EARLIER.format(attempt.parents[1].name)
    limit = OUTPUT_TAIL_BYTES - len(earlier)
    if until is None:
        text, end = read_output(attempt, limit=limit)
    else:
        start = max(0, until - limit)
        text, end = read_output(attempt, start, until - start)
    if end <= limit:
        return text
    first, _, rest = text.partition("\n")
    return earlier + (rest or first)


# -- parts -----------------------------------------------------------------------------------------


def cgroup_of(attempt: Path) -> str:
    """Return the cgroup of an attempt of this boot, as its supervisor named it; "": it had none."""
    told = _tree(attempt).get("cgroup")
    return told if isinstance(told, str) else ""


def regain(attempt: Path) -> None:
    """Let this user into an attempt's directory again, whatever the run has forbidden."""
    for place in (*reversed(attempt.parents[:2]), attempt):
        with contextlib.suppress(OSError):
            make_accessible(place)


def is_gone(attempt: Path) -> bool:
    """Tell whether an attempt's directory is no longer there: a run may remove its own."""
    try:
        with opened(*_steps(attempt)):
            return False
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _make_way(place: Path) -> None:
    """Rename an attempt aside that was prepared but never began."""
    with contextlib.suppress(FileNotFoundError), opened(*_steps(place)) as old:
        if {"tree.json", "outcome.json", "_DONE"} & set(old.names()):
            raise FileExistsError(errno.EEXIST, "this attempt has begun", str(place))
        place.rename(place.with_name(f".unused-{place.name}-{secrets.token_hex(4)}"))


def attempts_of(path: Path) -> list[int]:
    """Return the numbers of a run's attempts, in order."""
    with contextlib.suppress(OSError), opened(path, "attempts") as folder:
        return sorted(int(name) for name in folder.names() if _NUMBER.fullmatch(name))
    return []


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
    return tuple(key for key in found if 1 < key.pid <= _MOST_PID)


def _whole_characters(data: bytes, end: int) -> tuple[str, int]:
    """Decode UTF-8 but for a last character that is cut; return the text and where it ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, end - len(decoder.getstate()[0])
