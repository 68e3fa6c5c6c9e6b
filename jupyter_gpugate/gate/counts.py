"""Counts of events since this gate started, for a site's monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.tick import Tick
from jupyter_gpugate.core.reports import AttemptOutcome

#: The errors of well-formed requests.
REFUSALS = ("impossible", "queue_full")


@dataclass
class Counts:
    """The numbers of one gate, none of which ever falls."""

    submitted: int = 0
    admitted: int = 0
    evicted: int = 0
    refused: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REFUSALS, 0)))

    def add(self, tick: Tick, *, written: bool) -> None:
        """Count a tick; of one that could not be written down the ends alone have happened."""
        if written:
            self.submitted += tick.decided.order - tick.before.order
            self.admitted += len(tick.decisions.grants)
        self.evicted += len(set(_evicted(tick)))


def _evicted(tick: Tick) -> Iterator[str]:
    """The runs that have lost their lease to another one; who says so again changes nothing."""
    for event in tick.events:
        if isinstance(event, ev.Finished) and event.end.outcome is AttemptOutcome.EVICTED:
            lease = tick.before.leases.get(event.run_id)
            if lease is not None and lease.terms.fence == event.fence:
                yield event.run_id
