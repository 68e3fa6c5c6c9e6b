"""The run directory: what is on disk of one run, written whole and read with suspicion.

(First version, by the lead, so that `launcher.py` and `starting.py`, which call these functions,
can run: its owner makes it right, keeping these names and signatures.)
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Found:
    """A run on disk."""

    run_id: str
    path: Path
    spec: dict[str, Any]
    summary: dict[str, Any]


@dataclass
class Scan:
    """All runs on disk, oldest first, and what could not be read."""

    runs: list[Found] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def new_run_id() -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{stamp}-{''.join(secrets.choice(LETTERS) for _ in range(5))}"


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def as_json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def create(
    root: Path,
    run_id: str,
    spec: Mapping[str, Any],
    environ: Mapping[str, str],
    summary: Mapping[str, Any],
    staged: str,
) -> Path:
    """Make a run's directory whole or not at all; staged inputs are moved into it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = root / f".new-{run_id}"
    try:
        temporary.mkdir(mode=0o700)
        (temporary / "attempts").mkdir(mode=0o700)
        write_whole(temporary / "spec.json", as_json(spec))
        write_whole(temporary / "summary.json", as_json(summary))
        write_whole(temporary / "env.json", as_json(environ))
        if staged:
            Path(staged).rename(temporary / "inputs")
        temporary.rename(root / run_id)
        sync(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return root / run_id


def create_attempt(path: Path, attempt: int, launch: Mapping[str, Any], source: str | None) -> Path:
    made = path / "attempts" / str(attempt)
    if made.exists():
        made.rename(made.with_name(f"{attempt}.not-started-{secrets.token_hex(2)}"))
    made.mkdir(mode=0o700)
    here = Path(__file__).parent
    shutil.copyfile(here / "supervisor.py", made / "supervisor.py")
    shutil.copyfile(here / "cell.py", made / "worker.py")
    if source is not None:
        (made / "cell.py").write_text(source, encoding="utf-8")
    write_whole(made / "launch.json", as_json(launch))
    return made


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def launch_of(attempt: Path) -> dict[str, Any] | None:
    found = _read(attempt / "launch.json")
    return found if isinstance(found, dict) else None


def outcome_of(attempt: Path) -> dict[str, Any] | None:
    if not (attempt / "_DONE").exists():
        return None
    found = _read(attempt / "outcome.json")
    return found if isinstance(found, dict) else None


def tree_of(attempt: Path) -> list[tuple[int, int]]:
    found = _read(attempt / "tree.json") or {}
    return [(int(p), int(t)) for p, t in found.get("tree", [])]


def supervisor_of(attempt: Path) -> tuple[int, int] | None:
    found = _read(attempt / "tree.json") or {}
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    if found.get("boot_id") != boot or not found.get("supervisor"):
        return None
    pid, ticks = found["supervisor"]
    return int(pid), int(ticks)


def write_outcome(attempt: Path, outcome: Mapping[str, Any]) -> None:
    write_whole(attempt / "outcome.json", as_json(outcome))
    write_whole(attempt / "_DONE", b"")


def write_stop(attempt: Path, stop: Mapping[str, Any]) -> None:
    write_whole(attempt / "stop.json", as_json(stop))


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    write_whole(path / "summary.json", as_json(summary))


def forget_environment(path: Path) -> None:
    (path / "env.json").unlink(missing_ok=True)


def read_output(attempt: Path, start: int, limit: int) -> tuple[str, int]:
    """Text from a byte on, at most ``limit`` bytes of it, and where the next read goes on."""
    try:
        with (attempt / "output.log").open("rb") as file:
            file.seek(start)
            data = file.read(limit)
    except OSError:
        return "", start
    return data.decode(errors="replace"), start + len(data)


def output_tail(attempt: Path, limit: int = 64 * 1024) -> str:
    try:
        size = (attempt / "output.log").stat().st_size
    except OSError:
        return ""
    return read_output(attempt, max(0, size - limit), limit)[0]


def read_events(attempt: Path, name: str) -> list[dict[str, Any]]:
    """The lines of episodes.jsonl or display.jsonl that are whole."""
    try:
        lines = (attempt / name).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def told_by_run(attempt: Path) -> dict[str, Any]:
    """What a summary keeps of a run's own words: its error, its warnings, the end of its output."""
    events = read_events(attempt, "display.jsonl")
    errors = [e for e in events if e.get("event") == "error"]
    error = {k: errors[-1].get(k) for k in ("ename", "evalue", "traceback")} if errors else None
    warnings = [str(e.get("text", "")) for e in events if e.get("event") == "warning"]
    return {"error": error, "warnings": warnings, "output_tail": output_tail(attempt)}


def read_episodes(path: Path) -> list[dict[str, Any]]:
    attempts = sorted((path / "attempts").iterdir(), key=lambda p: p.name)
    return [{"attempt": a.name, **e} for a in attempts for e in read_events(a, "episodes.jsonl")]


def scan(root: Path) -> Scan:
    found = Scan()
    if not root.is_dir():
        return found
    for path in sorted(root.iterdir()):
        if path.name.startswith("."):
            continue
        spec, summary = _read(path / "spec.json"), _read(path / "summary.json")
        if not isinstance(spec, dict) or not isinstance(summary, dict):
            found.troubles.append(f"{path} is no run directory")
            continue
        found.runs.append(Found(path.name, path, spec, summary))
    found.runs.sort(key=lambda run: run.summary.get("submitted") or 0)
    return found


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
