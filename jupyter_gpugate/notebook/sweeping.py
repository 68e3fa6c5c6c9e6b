"""A gated cell that sweeps parameters: submits its runs as a group, shows them, waits for all."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from jupyter_gpugate.client import results, values
from jupyter_gpugate.client.errors import RunCancelled, RunDetached
from jupyter_gpugate.client.following import State
from jupyter_gpugate.client.groups import SubmittedGroup, Sweep, submit_group
from jupyter_gpugate.client.waiting import Interrupts, Patience, Verdict, connected, until_end
from jupyter_gpugate.notebook.group import Group, raise_for_ends
from jupyter_gpugate.notebook.live import LiveGroup, is_interactive


class SweptCell(NamedTuple):
    """The runs of a cell, and the values that each of them gets."""

    sweep: Sweep
    inputs: Sequence[str] = ()
    staged: Optional[Path] = None  # with these inputs


def run_sweep(shell: Any, options: Namespace, cell: SweptCell) -> Optional[Group]:
    """Submit every run, and wait for all of them unless they are detached."""
    interrupts = Interrupts()
    patience = Patience(interactive=is_interactive(shell))
    shown = LiveGroup(shell)
    with interrupts.taken():
        group, submitted = submit_sweep(cell, interrupts, patience, shown)
        if options.detach:
            if interrupts.count:
                message = f"{len(submitted.run_ids)} runs were queued before the interrupt"
                raise RunDetached(message, {"group": group.group_id})
            return group
        state, verdict = _follow(group, interrupts, patience, shown)
    _finish(group, state, verdict, shown)
    if options.output:
        shell.push(_outputs(state))
    if interrupts.count:
        again = f'jupyter_gpugate.get("{group.group_id}")'
        raise RunDetached(f"the runs completed before the interrupt; {again} has them", state)
    return None


def submit_sweep(
    cell: SweptCell, interrupts: Interrupts, patience: Patience, shown: Optional[LiveGroup] = None
) -> tuple[Group, SubmittedGroup]:
    """Submit every run of a cell; each gets staged inputs of its own."""
    unused: list[Path] = []

    def prepare(body: dict[str, Any]) -> dict[str, Any]:
        if cell.staged is None:
            return body
        unused[:] = [values.staged_again(cell.staged)]  # that of the last run is taken over
        return {**body, "inputs": {"names": list(cell.inputs), "staged": str(unused[0])}}

    try:
        client = connected(interrupts)
        # A terminal would get a line for each submit.
        more = {"show": shown.show} if shown is not None and shown.updates else {}
        submitted = submit_group(client, cell.sweep, interrupts, patience, prepare=prepare, **more)
    except BaseException:
        for folder in unused:
            values.discard(folder)
        raise
    finally:
        if cell.staged is not None:
            values.discard(cell.staged)
    return Group(submitted.group, client), submitted


def _follow(
    group: Group, interrupts: Interrupts, patience: Patience, shown: LiveGroup
) -> tuple[State, Verdict]:
    follower = group.follow()
    try:
        return until_end(follower, interrupts, patience, shown.show)
    finally:
        follower.close()


def _finish(group: Group, state: State, verdict: Verdict, shown: LiveGroup) -> None:
    """Raise for any other end than that all runs have completed."""
    again = f'jupyter_gpugate.get("{group.group_id}")'
    if state.get("status") == "ended":
        raise_for_ends(state)
    elif verdict is Verdict.LEAVE:
        message = f"the runs go on without this cell; {again} follows them"
        shown.show(state, message)
        raise RunDetached(message, state)
    else:
        raise RunCancelled(f"{group.group_id} is being stopped; {again} follows it", state)


def _outputs(state: State) -> dict[str, list[Any]]:
    """Return each output as a list in the order of the sweep."""
    found: dict[str, list[Any]] = {}
    for run in state["runs"]:
        for name, value in results.load(run).items():
            found.setdefault(name, []).append(value)
    return found
