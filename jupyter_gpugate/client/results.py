"""The values that a run hands back, read from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from jupyter_gpugate.client import values
from jupyter_gpugate.programs.worker.attempt import parsed


def attempt_folder(state: Mapping[str, Any]) -> Optional[Path]:
    """Return the folder of a run's newest attempt; None before the first."""
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


def kept(state: Mapping[str, Any]) -> list[Any]:
    """Load the values that episodes have kept, in their order, over all attempts.

    Raises `ValueCannotTravel` naming the file that cannot be loaded here.
    """
    files: dict[int, Path] = {}
    newest = attempt_folder(state)
    for attempt in range(1, int(state["attempt"]) + 1) if newest else ():
        folder = Path(state["directory"], "attempts", str(attempt), "episodes")
        found = (path for path in folder.glob("*.pickle") if path.stem.isdecimal())
        files.update((int(path.stem), path) for path in found)
    return [values.read(files[index]) for index in sorted(files)]


def parameters(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a run as its cell sees them: numbers where they are written so."""
    return {name: parsed(text) for name, text in (state.get("parameters") or {}).items()}
