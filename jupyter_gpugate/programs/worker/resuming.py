"""Values that earlier attempts of the run have kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .attempt import Attempt, read_json
from .episodes import kept_files
from .events import Events
from .loop_state import carried
from .wording import error_text


def resumable(attempt: Attempt, events: Events) -> dict[int, Path]:
    """Return the values kept by earlier attempts; none, with a warning, if the run must start anew.

    It continues only if every finished episode kept a value and the loop carries nothing else from
    one episode to the next.
    """
    found: dict[int, Path] = {}
    reason = ""
    try:
        for folder in _earlier(attempt):
            found = {**kept_files(folder / "episodes"), **found}
            if (folder / "episodes" / "unkept").exists():
                reason = "an episode ended without `keep`"
    except (OSError, ValueError, KeyError) as error:
        reason = f"an earlier attempt cannot be read: {error_text(error)}"
    if found and not reason:
        reason = carried(ast.parse(attempt.source()))
    if reason and attempt.worker == 0:
        events.warn(f"the run starts again at episode 0: {reason}")
    if reason:
        return {}
    if found and attempt.worker == 0:
        events.send("resumed", episodes=len(found))
    return found


def _earlier(attempt: Attempt) -> Iterator[Path]:
    """Yield the attempts that this one continues, the newest first."""
    before = attempt.launch["resume_from"]
    while before is not None:
        folder = attempt.run / before
        yield folder
        before = read_json(folder / "launch.json")["resume_from"]
