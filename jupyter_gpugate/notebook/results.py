"""What a run hands back from its directory: the values that it named, and what it displayed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from jupyter_gpugate.notebook import values


def attempt_folder(state: Mapping[str, Any]) -> Optional[Path]:
    """Where the newest attempt of a run lies; None before the first."""
    if not state.get("directory") or not state.get("attempt"):
        return None
    return Path(state["directory"], "attempts", str(state["attempt"]))


def load(state: Mapping[str, Any]) -> dict[str, Any]:
    """Load every output of a completed run by name: its value, or a list by worker.

    Raises `ValueCannotTravel` naming the file that cannot be loaded here.
    """
    folder = attempt_folder(state)
    found: dict[str, dict[int, Path]] = {}
    for path in folder.glob("result.*.pickle") if folder else ():
        _, name, worker, _ = path.name.split(".")
        found.setdefault(name, {})[int(worker)] = path
    loaded = {}
    for name, files in sorted(found.items()):
        by_worker = [values.read(files[worker]) for worker in sorted(files)]
        loaded[name] = by_worker[0] if len(by_worker) == 1 else by_worker
    return loaded


class Replay:
    """Shows in this notebook what the run displays, as it comes.

    A run that clears its output clears its own displays only: the card stays.
    """

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._path: Optional[Path] = None
        self._read_to = 0
        self._slots: list[str] = []
        self._next_slot = 0

    def catch_up(self, state: Mapping[str, Any]) -> None:
        """Show what has been displayed since the last call."""
        folder = attempt_folder(state)
        if folder is None:
            return
        path = folder / "display.jsonl"
        if path != self._path:
            self._path, self._read_to = path, 0
        for event in self._new_events(path):
            self._show(event)

    def _new_events(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            with path.open("rb") as file:
                file.seek(self._read_to)
                # A line without its end is still being written.
                for line in file:
                    if line.endswith(b"\n"):
                        self._read_to += len(line)
                        yield json.loads(line)
        except FileNotFoundError:
            return

    def _show(self, event: dict[str, Any]) -> None:
        # Warnings and errors of a run are on its card.
        if event.get("event") != "display":
            return
        if event.get("clear"):
            self._clear(now=not event.get("wait"))
        else:
            self._display(event)

    def _display(self, event: dict[str, Any]) -> None:
        transient = dict(event.get("transient") or {})
        update = bool(event.get("update"))
        if "display_id" not in transient:
            slot, update = self._slot()
            transient["display_id"] = slot
        self._publisher.publish(
            data=event.get("data") or {},
            metadata=event.get("metadata") or {},
            transient=transient,
            update=update,
        )

    def _slot(self) -> tuple[str, bool]:
        """Return a display to fill, and whether it is on the page already."""
        known = self._next_slot < len(self._slots)
        if not known:
            self._slots.append(f"gpugate-{id(self)}-{self._next_slot}")
        self._next_slot += 1
        return self._slots[self._next_slot - 1], known

    def _clear(self, *, now: bool) -> None:
        self._next_slot = 0
        for slot in self._slots if now else ():
            blank = {"text/plain": ""}
            self._publisher.publish(data=blank, transient={"display_id": slot}, update=True)
