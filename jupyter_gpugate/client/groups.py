"""Submits the runs of a sweep as one group."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError, GateUnreachable, Interrupted
from jupyter_gpugate.client.finding import with_ids
from jupyter_gpugate.client.following import Background
from jupyter_gpugate.client.sweeps import (
    Point,
    bodies,
    new_group,
    refuse_without_placeholders,
)
from jupyter_gpugate.client.waiting import Interrupts, Patience, Show, Verdict, submitted

#: Runs of a group of which an explanation has the output.
MOST_EXPLAINED: Final = 20

T = TypeVar("T")
Body = Mapping[str, Any]


class Sweep(NamedTuple):
    """The runs of a group: what they have in common, and the parameters in which they differ."""

    body: Body
    points: Sequence[Point]


class SubmittedGroup(NamedTuple):
    """A group with the runs of it that were submitted."""

    group: str
    run_ids: Sequence[str]
    size: int


def submit_group(
    client: Client,
    sweep: Sweep,
    interrupts: Interrupts,
    patience: Patience,
    *,
    show: Show = lambda _state, _note: None,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body,
) -> SubmittedGroup:
    """Queue every run of a sweep; ``prepare`` completes each body just before its submit.

    An interrupt that cancels ends the submits.  If the gate refuses one of the runs, those that
    were queued before it are cancelled, and `GateError` names its parameters.
    """
    _in_thread(lambda: _refuse_unswept_repetition(client, sweep))
    group, size = new_group(), len(sweep.points)
    run_ids: list[str] = []
    shared = _in_thread(lambda: with_ids(client, sweep.body))  # the same runs for all
    for point, body in zip(sweep.points, bodies(shared, sweep.points, group)):
        if _is_cancelled(interrupts, patience):
            break
        show({"name": body["name"], "group": group}, f"submitted {len(run_ids)} of {size} runs")
        try:
            answer = submitted(client, prepare(body), interrupts, patience)
        except GateUnreachable as error:
            raise _cut_off(error, group, len(run_ids), size) from None
        except GateError as error:
            raise _refused(client, error, group, point, len(run_ids)) from None
        run_ids.append(str(answer["run_id"]))
    if not run_ids:
        raise Interrupted("nothing was queued yet")
    return SubmittedGroup(group, run_ids, size)


def _refuse_unswept_repetition(client: Client, sweep: Sweep) -> None:
    """Refuse to sweep over a command that is repeated, if it does not contain the parameters."""
    body = sweep.body
    if body.get("source") is not None or body.get("argv") is not None:
        return
    for newest in client.runs(1, name=body["name"]):
        command = str(newest.get("command") or "")
        if command and not command.endswith("…"):  # a very long one is cut
            refuse_without_placeholders([command], sweep.points)


def _is_cancelled(interrupts: Interrupts, patience: Patience) -> bool:
    verdict = patience.verdict(interrupts.count, time.monotonic())
    return verdict in (Verdict.CANCEL, Verdict.ENOUGH)


def _refused(client: Client, error: GateError, group: str, point: Point, queued: int) -> GateError:
    """Cancel the runs that were queued before a refused one; return the error that says so."""
    setting = " ".join(f"{name}={value}" for name, value in point.items())
    message = f"{setting}: {error}"
    if queued:
        with contextlib.suppress(GateError):  # they have ended
            _in_thread(lambda: client.cancel_group(group))
        which = "run that was" if queued == 1 else f"{queued} runs that were"
        message += f"; the {which} queued before it {'is' if queued == 1 else 'are'} cancelled"
    return GateError(message, code=error.code, status=error.status, detail=error.detail)


def _in_thread(call: Callable[[], T]) -> T:
    """Make a call where no signal interrupts it, and wait for its result."""
    work = Background(call)
    work.done(timeout_s=None)
    return work.result()


def _cut_off(error: GateUnreachable, group: str, queued: int, size: int) -> GateUnreachable:
    if not queued:
        return error
    told = f"{error}; {queued} of {size} runs were submitted, as group {group}"
    return GateUnreachable(told, code=error.code, status=error.status)
