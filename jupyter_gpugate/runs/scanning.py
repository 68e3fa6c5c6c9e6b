"""Finds the runs of a user on the disk, their machines, and damaged records.

The folder of all runs may contain other files, on a disk that other machines use as well.  Entries
that are not runs are left alone, and so are runs of other machines.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_gpugate.runs.directory import (
    is_detached,
    launch_of,
    may_be_unfinished,
    newest_attempt,
)
from jupyter_gpugate.runs.folder import Folder, Stored, Torn, in_words, opened, own_root
from jupyter_gpugate.runs.ids import RUN_ID
from jupyter_gpugate.runs.machine import Machine

#: Fields of the spec that launch.json repeats, in case the spec is lost.
_OF_SPEC: Final = ("kind", "interpreter", "argv", "cwd", "workers", "episodes", "inputs", "outputs")
UNKNOWN: Final = "?"


@dataclass(frozen=True)
class Found:
    """A run directory as it was read."""

    run_id: str
    path: Path
    spec: Stored
    summary: Stored
    attempt: int  # the newest on disk, whatever the summary says; 0 before the first
    here: bool = True  # submitted on this machine
    detached: bool = False
    problem: str = ""  # why the spec had to be made up


@dataclass(frozen=True)
class Trouble:
    """A problem with a file, and the place it was moved to; None: it stays."""

    path: Path
    problem: str
    moved_to: Path | None

    def __str__(self) -> str:
        aside = f"moved to {self.moved_to}" if self.moved_to else "left where it is"
        return f"{self.path}: {self.problem}; {aside}"


@dataclass(frozen=True)
class Scan:
    """Runs of a user in the order of their submission, and what could not be read."""

    runs: tuple[Found, ...]
    troubles: tuple[Trouble, ...]


class Scanner:
    """Reads the directories below one root as one machine sees them."""

    def __init__(
        self,
        root: Path,
        machine: Machine | None = None,
        read_spec: Callable[[Stored], object] | None = None,
    ) -> None:
        self._root = root
        self._machine = machine
        self._read_spec = read_spec

    def run_ids(self) -> list[str]:
        """Return the ids of all runs, sorted; raise `OSError` where the root cannot be used."""
        own_root(self._root)
        return sorted(filter(RUN_ID.fullmatch, os.listdir(self._root)))  # noqa: PTH208 - names

    def unfinished_first(self) -> tuple[list[str], list[str]]:
        """Return the ids of runs that may be unfinished, and those of all others."""
        ids = self.run_ids()
        unfinished = {run_id for run_id in ids if may_be_unfinished(self._root / run_id)}
        return sorted(unfinished), [run_id for run_id in ids if run_id not in unfinished]

    def scan(self, run_ids: Iterable[str] | None = None) -> Scan:
        """Read these runs, or all; content never makes it raise.

        A torn summary is renamed aside inside its run, and one is made up from the attempts, so
        that the run's story goes on from its outcome.  A torn spec is made up from what else is
        known of the run.  Where nothing is, the directory is reported and stays as it is.
        """
        runs, troubles = [], []
        try:
            ids = self.run_ids() if run_ids is None else run_ids
        except OSError as error:
            return Scan((), (Trouble(self._root, in_words(error), None),))
        for run_id in ids:
            try:
                found, trouble = self.read(run_id)
                runs.append(found)
                troubles += [trouble] if trouble else []
            except Exception as error:  # noqa: BLE001 - one bad directory must not hide the others
                troubles.append(Trouble(self._root / run_id, in_words(error), None))
        runs.sort(key=lambda run: (run.summary["submitted"], run.run_id))
        return Scan(tuple(runs), tuple(troubles))

    def read(self, run_id: str) -> tuple[Found, Trouble | None]:
        """Read one run; raise `OSError` or `Torn` if no record can be read."""
        path = self._root / run_id
        with opened(path) as folder:
            if not folder.is_own():
                raise PermissionError(errno.EPERM, "belongs to another user", str(path))
            spec, problem = _read(folder, "spec.json", run_id, self._spec_of)
            summary, worse = _read(folder, "summary.json", run_id, _summary_of)
            attempt = newest_attempt(path)
            if spec is None:
                spec = self._made_up_spec(path, summary, attempt)
            here = self._machine is None or self._machine.owns(spec.get("machine"))
            trouble = Trouble(path / "spec.json", problem, None) if problem else None
            if summary is None:
                summary = _made_up_summary(path, spec, attempt)
                moved_to = folder.put_aside("summary.json") if here else None
                trouble = Trouble(path / "summary.json", worse, moved_to)
            left = is_detached(path)
            return Found(run_id, path, spec, summary, attempt, here, left, problem), trouble

    def row(self, run_id: str) -> Stored | None:
        """Return the summary of a run that has ended, if a list needs no more than that."""
        with opened(self._root / run_id) as folder:
            summary, _ = _read(folder, "summary.json", run_id, _summary_of)
        whole = summary is not None and isinstance(summary.get("name"), str)
        return summary if whole and summary and summary["status"] == "ended" else None

    def _spec_of(self, spec: Stored, run_id: str) -> Stored:
        if spec.get("run_id") != run_id or not _is_time(spec.get("submitted")):
            raise Torn("belongs to another run")
        if self._read_spec is not None:
            try:
                self._read_spec(spec)
            except Exception as error:
                raise Torn(f"cannot be read: {in_words(error)}") from error
        return spec

    def _made_up_spec(self, path: Path, summary: Stored | None, attempt: int) -> Stored:
        """Return a spec made from a run's other records; raise `Torn` if there are none."""
        launch = launch_of(path / "attempts" / str(attempt)) if attempt else None
        known = {**(launch or {}), **(summary or {})}
        if known.get("run_id") != path.name:
            raise Torn("neither spec.json, summary.json nor launch.json can be read")
        submitted, devices = known.get("submitted"), known.get("devices")
        spec = {
            **blank_spec(path.name),
            "submitted": submitted if _is_time(submitted) else _changed_at(path),
            "name": known["name"] if isinstance(known.get("name"), str) else UNKNOWN,
            "gpus": len(devices) if isinstance(devices, list) else 0,
            "machine": known.get("machine"),
        }
        told: Stored = {field: known[field] for field in _OF_SPEC if field in known}
        with contextlib.suppress(Torn):
            return self._spec_of({**spec, **told}, path.name)
        return spec


def _read(
    folder: Folder, name: str, run_id: str, check: Callable[[Stored, str], Stored]
) -> tuple[Stored | None, str]:
    """Return a record, or the reason why there is none; raise temporary errors of the disk."""
    try:
        return check(folder.read_record(name), run_id), ""
    except (FileNotFoundError, Torn) as torn:
        return None, in_words(torn)


def _summary_of(summary: Stored, run_id: str) -> Stored:
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
        raise Torn("does not have the form of a summary")
    return summary


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _made_up_summary(path: Path, spec: Stored, attempt: int) -> Stored:
    facts = {"run_id": path.name, "submitted": spec["submitted"], "attempt": attempt}
    if attempt:
        return {**facts, "status": "active"}
    if may_be_unfinished(path):
        return {**facts, "status": "queued"}
    # Without an environment and without an attempt it had ended, and is not to begin again.
    lost = {"status": "ended", "end": "lost", "reason": "its summary cannot be read"}
    return {**facts, **lost, "ended": spec["submitted"]}


def blank_spec(run_id: str) -> Stored:
    """Return a spec for a run of which only the id is known."""
    return {
        "run_id": run_id,
        "name": UNKNOWN,
        "kind": "program",
        "argv": [UNKNOWN],
        "cwd": "/",
        "interpreter": "",
        "inputs": [],
        "outputs": [],
        "source_hash": "",
        "workers": 1,
        "episodes": 1,
        "gpus": 0,
        "submitted": 0.0,
    }


def _changed_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
