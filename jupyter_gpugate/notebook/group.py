"""A handle on a group of runs: its state, its end, and its results by parameters."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any, Final, Optional

from jupyter_gpugate.client import results
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError, RunCancelled, RunFailed
from jupyter_gpugate.client.following import GroupFollower, State
from jupyter_gpugate.client.groups import MOST_EXPLAINED
from jupyter_gpugate.client.values import ValueCannotTravel
from jupyter_gpugate.faces import groups, words
from jupyter_gpugate.notebook.run import Explanation, Run, connected

#: Runs that an exception names.
_MOST_NAMED: Final = 5


class Group:
    """Several runs that were submitted as one, by the id of their group."""

    def __init__(self, group_id: str, client: Optional[Client] = None) -> None:
        self.group_id = group_id
        self._client = client

    def state(self) -> State:
        """Return everything that the gate knows of the group; raise `GateError` if it cannot."""
        return self._asked().group(self.group_id).body or {}

    def status(self) -> str:
        """Return "queued", "active" or "ended"."""
        return str(self.state()["status"])

    @property
    def runs(self) -> list[Run]:
        """Handles on the runs, in the order of their submits."""
        return [Run(str(row["run_id"]), self._client) for row in self.state()["runs"]]

    def wait(self, timeout_s: Optional[float] = None) -> Group:
        """Wait until all runs have ended, and return this handle.

        Raises `RunFailed` naming the parameters of those that did not complete, `RunCancelled`,
        or `TimeoutError`; an interrupt ends the wait, not the runs.
        """
        raise_for_ends(self._ended(timeout_s))
        return self

    def cancel(self) -> dict[str, Any]:
        """Stop all runs for certain."""
        return self._asked().cancel_group(self.group_id)

    def table(self) -> Any:
        """Return one row for each run: its parameters, how it ended, its results and its peaks.

        It is a pandas DataFrame where pandas is installed, otherwise a list of dicts.  Outputs have
        columns of their names; ``kept`` has the values that episodes have kept, one value for a run
        of one episode.  If they cannot be loaded here, ``outputs`` or ``kept`` has the error.
        """
        rows = [_row(run) for run in self.state()["runs"]]
        try:
            pandas: Any = importlib.import_module("pandas")
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def explain(self) -> Explanation:
        """Show all runs, and for each that did not complete how it ended, with its traceback."""
        state = self.state()
        failed = [str(row["run_id"]) for row in groups.unsuccessful(state)[:MOST_EXPLAINED]]
        states = {run_id: Run(run_id, self._client).state() for run_id in failed}
        return Explanation(groups.explained(state, states))

    def follow(self) -> GroupFollower:
        """Start to follow the group; the caller closes the follower."""
        return GroupFollower(Client(self._asked().socket_path), self.group_id)

    def __repr__(self) -> str:
        return f"<Group {self.group_id}>"

    def _repr_mimebundle_(self, **_choice: Any) -> dict[str, str]:
        from jupyter_gpugate.notebook import live

        try:
            return live.group_bundle(self.state())
        except GateError as error:
            return {"text/plain": f"{self!r}: {error}"}

    def _asked(self) -> Client:
        self._client = connected(self._client)
        return self._client

    def _ended(self, timeout_s: Optional[float]) -> State:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        follower = self.follow()
        try:
            while deadline is None or time.monotonic() < deadline:
                state = follower.next(timeout_s=1.0)
                if state is not None and state.get("status") == "ended":
                    return state
        finally:
            follower.close()
        raise TimeoutError(f"group {self.group_id} has not ended within {timeout_s:g} s")


def raise_for_ends(state: Mapping[str, Any]) -> None:
    """Return if all runs of an ended group completed; else raise `RunFailed` or `RunCancelled`."""
    runs, failed = state.get("runs") or (), groups.unsuccessful(state)
    who = f"{state.get('name')} ({state.get('group')})"
    if failed:
        named = [f"{groups.setting(row)} ({_how(row)})" for row in failed[:_MOST_NAMED]]
        more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
        said = f"{len(failed)} of {len(runs)} runs of {who} did not complete"
        why = f'jupyter_gpugate.get("{state.get("group")}").explain() shows why'
        raise RunFailed(f"{said}: {', '.join(named)}{more}; {why}", state)
    cancelled = sum(row.get("end") == "cancelled" for row in runs)
    if cancelled:
        raise RunCancelled(f"{cancelled} of {len(runs)} runs of {who} were cancelled", state)


def _how(row: Mapping[str, Any]) -> str:
    return str(row.get("error") or words.ended(row))


def _row(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's row of the table of results."""
    peaks: Mapping[str, int] = run.get("peaks") or {}
    vram = [peak for resource, peak in peaks.items() if resource != "ram"]
    return {
        **results.parameters(run),
        "status": run.get("end") or run.get("status"),
        **_values(run),
        "last_line": run.get("last_line") or None,
        "error": run.get("error"),
        "duration_s": run.get("duration_s"),
        "peak_ram_bytes": peaks.get("ram"),
        "peak_vram_bytes": sum(vram) if vram else None,
        "run_id": run.get("run_id"),
    }


def _values(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run has handed back: its outputs by name, and its kept values."""
    found: dict[str, Any] = {}
    try:
        found.update(results.load(run))
    except (OSError, ValueCannotTravel) as error:
        found["outputs"] = error
    try:
        kept = results.kept(run)
    except (OSError, ValueCannotTravel) as error:
        return {**found, "kept": error}
    several = ((run.get("episodes") or {}).get("of") or 1) > 1
    return {**found, **({"kept": kept if several else kept[0]} if kept else {})}
