"""Events of a worker: JSON lines from its pipe."""

from __future__ import annotations

import json
from typing import Any

EVENT_CAP = 32 << 20  # of one event; a longer one is dropped
HEAD_CAP = 1 << 20  # of one event beyond which only what precedes its data is parsed


class EventLines:
    """Cuts a worker's events into whole lines; one that is too long is counted, not kept."""

    def __init__(self, most: int = EVENT_CAP) -> None:
        self._most = most
        self._rest = bytearray()
        self._is_too_long = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, each without its end."""
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            self._grow(end)
            if self._is_too_long:
                self.dropped += 1
            else:
                lines.append(bytes(self._rest))
            self._rest, self._is_too_long = bytearray(), False
        self._grow(rest)
        return lines

    def _grow(self, data: bytes) -> None:
        if self._is_too_long or len(self._rest) + len(data) > self._most:
            self._rest, self._is_too_long = bytearray(), True
        else:
            self._rest += data


def event_in(line: bytes) -> dict[str, Any] | None:
    """Parse an event; of a very long one what precedes its data."""
    is_long = len(line) > HEAD_CAP
    head = line[: line.find(b', "data": ', 0, HEAD_CAP)] + b"}" if is_long else line
    try:
        event = json.loads(head)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("event"), str)
    return event if is_event and (not is_long or line.endswith(b"}")) else None
