"""Answers about a run, for tests of its card."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from jupyter_gpugate.faces import card

MB = 1 << 20


def run(**changes: Any) -> dict[str, Any]:
    """Return a run's state as the gate answers it."""
    state = {"run_id": "20261129-143600-abcde", "name": "resnet-val", "status": "queued"}
    return {**state, **changes}


def running(**changes: Any) -> dict[str, Any]:
    """Return the state of a run that is on GPU 0."""
    state = {
        "status": "active",
        "phase": "running",
        "attempt": 1,
        "devices": [{"uuid": "GPU-1", "model": "NVIDIA L4", "index": 0}],
        "charges": {"GPU-1": 2174 * MB, "ram": 3771 * MB},
        "held": {"GPU-1": 1812 * MB},
        "caps": {"GPU-1": 1900 * MB},
        "basis": {"GPU-1": "calibrated"},
        "enforcement": "enforced",
        "episodes": {"done": 37, "of": 100},
    }
    return run(**{**state, **changes})


class _Page(HTMLParser):
    """Collects what a browser would see: elements, their attributes, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def both(state: dict[str, Any], note: str = "") -> list[str]:
    """Return the card's text and the text of its page."""
    return [card.text(state, note), _Page(card.html(state, note)).text]
