"""Keeps one card up to date while its cell waits."""

from __future__ import annotations

from typing import Any

from IPython.display import display

from jupyter_gpugate.faces import card
from jupyter_gpugate.faces.words import Json

_display: Any = display  # IPython gives it no types


class LiveCard:
    """A display that is updated in place; in a plain terminal, a print at every turn of events."""

    def __init__(self, shell: Any) -> None:
        # A terminal cannot update what it has printed.
        self._updates = getattr(shell, "kernel", None) is not None
        self._handle: Any = None
        self._shown: Any = None

    def show(self, run: Json, note: str = "") -> None:
        """Show the run's state and a note below it; nothing happens when both look the same."""
        bundle = card.bundle(card.without_traceback(run), note)
        seen = bundle if self._updates else _turn(run, note)
        if seen == self._shown:
            return
        self._shown = seen
        if not self._updates:
            print(bundle["text/plain"])  # noqa: T201 - the terminal's display
        elif self._handle is None:
            self._handle = _display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _turn(run: Json, note: str) -> tuple[Any, ...]:
    reasons = run.get("reasons") or [{}]
    return (run.get("status"), run.get("phase"), reasons[0].get("kind"), note)
