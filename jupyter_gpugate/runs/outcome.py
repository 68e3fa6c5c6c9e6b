"""The content of ``outcome.json``: how an attempt ended, and the stop that ended it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from jupyter_gpugate.core.codec import JsonObject, ProtocolError, from_json, to_json
from jupyter_gpugate.core.endings import Stop, StopKind
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.samples import ProcessKey

KILLED: Final = "its supervisor was killed"
REMOVED: Final = "its directory was removed while it ran: its output, and how it ended, are lost"

#: The beginnings of reasons in the records of versions that wrote no stop.
_FORMER: Final = (
    ("terminated", StopKind.TERMINATED),
    (KILLED, StopKind.KILLED),
    (REMOVED, StopKind.REMOVED),
)


class Lost(NamedTuple):
    """How an attempt has ended whose supervisor left no record, for all that can be found out."""

    outcome: AttemptOutcome
    reason: str
    stop: Stop | None = None


def lost_outcome(lost: Lost, survivors: Sequence[ProcessKey], took_s: float) -> JsonObject:
    """Return the record that such an attempt gets."""
    reason, kill = lost.reason, None
    if survivors:
        reason += f"; still there: {', '.join(str(one.pid) for one in survivors)}"
        kill = {"means": "kill", "ms": round(took_s * 1000), "survivors": to_json(survivors)}
    end = to_json(EndReport(lost.outcome, reason))
    return {"end": end, "stop": to_json(lost.stop), "kill": kill}


def stop_in(outcome: Mapping[str, object]) -> Stop | None:
    """Return the stop that has ended an attempt, by its record; None where nobody asked for one."""
    stop = outcome.get("stop")
    if "stop" not in outcome:
        return _former_stop(outcome)
    try:
        return None if stop is None else from_json(Stop, stop, "stop")
    except ProtocolError:  # of a later version
        return None


def _former_stop(outcome: Mapping[str, object]) -> Stop | None:
    end = outcome.get("end")
    reason = str(end.get("reason", "")) if isinstance(end, Mapping) else ""
    kinds = (kind for beginning, kind in _FORMER if reason.startswith(beginning))
    kind = next(kinds, None)
    return None if kind is None else Stop.of(kind)
