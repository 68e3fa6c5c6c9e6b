"""The commands that show runs: `runs` and `show`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.finding import find_run, is_group
from jupyter_gpugate.client.groups import MOST_EXPLAINED
from jupyter_gpugate.client.verb_options import STATUSES
from jupyter_gpugate.faces import groups
from jupyter_gpugate.faces import runs as faces
from jupyter_gpugate.terminal.answers import show, width
from jupyter_gpugate.terminal.exits import OK
from jupyter_gpugate.terminal.follow import say

Row = dict[str, Any]


def list_runs(options: argparse.Namespace) -> int:
    """Print the newest runs, or those that were asked for."""
    client = connect()
    most = None if options.all else options.newest
    # One more shows whether there are others.
    found = client.runs(None if most is None else most + 1, **_asked(options))
    rows = _sorted(found if most is None else found[:most], options.sort)
    if options.json or not rows:
        show(options, {"runs": rows}, _nothing(options))
        return OK
    show(options, rows, faces.table(rows, _live(client, rows), time.time(), width()))
    if len(found) > len(rows):
        say(f"the newest {most}; `-n {10 * len(rows)}` shows more, `--all` shows all")
    return OK


def show_run(options: argparse.Namespace) -> int:
    """Print one run whole."""
    client = connect()
    if is_group(options.run):
        return _show_group(options, client, options.run)
    run_id = find_run(client, options.run)
    run, attempts = client.run(run_id).body or {}, client.attempts(run_id)
    text = faces.whole(run, attempts, time.time(), width())
    show(options, {**run, "attempts": attempts}, text)
    return OK


def _show_group(options: argparse.Namespace, client: Client, group: str) -> int:
    """Print a group whole: its runs, and why some of them did not complete."""
    state = client.group(group).body or {}
    failed = [str(row["run_id"]) for row in groups.unsuccessful(state)[:MOST_EXPLAINED]]
    states = {run_id: client.run(run_id).body or {} for run_id in failed}
    show(options, state, groups.explained(state, states, width()))
    return OK


def _asked(options: argparse.Namespace) -> dict[str, str]:
    status = STATUSES.get(options.status or "")
    asked = {"name": options.name, "status": status, "group": options.group}
    return {name: value for name, value in asked.items() if value}


def _live(client: Client, rows: list[Row]) -> Mapping[str, Row]:
    """Return the gate's current rows of runs that have not ended."""
    if all(row["status"] == "ended" for row in rows):
        return {}
    snapshot = client.queue()
    return {row["run_id"]: row for key in ("running", "queued") for row in snapshot.get(key) or ()}


def _sorted(rows: list[Row], by: str) -> list[Row]:
    if by == "oldest":
        return rows[::-1]
    if by == "name":
        return sorted(rows, key=lambda row: str(row["name"]))
    if by == "took":
        return sorted(rows, key=lambda row: -(row.get("duration_s") or 0.0))
    if by == "peak":
        return sorted(rows, key=lambda row: -sum((row.get("peaks") or {}).values()))
    return rows


def _nothing(options: argparse.Namespace) -> str:
    if options.name or options.status or options.group:
        asked = [f"named {options.name}"] if options.name else []
        asked += [f"of group {options.group}"] if options.group else []
        asked += [f"{options.status}"] if options.status else []
        return f"no run is {' and '.join(asked)}"
    return "there is no run yet: `jupyter gpugate run NAME -- COMMAND` submits one"
