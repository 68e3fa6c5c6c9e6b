"""Checks the gate's attribution against readings of the driver's stand-in and of /proc."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import psutil

from tests.fake_nvml import StandIn
from tests.kit.real_server import Served, until

#: A sample is at most this old when a snapshot shows it; younger changes are not compared.
SETTLED_S = 2.5


def family(pid: int) -> set[int]:
    """A process and all its descendants, as the kernel has them."""
    try:
        process = psutil.Process(pid)
        return {pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.Error:
        return {pid}


class Oracle:
    """Looks at every tick of a server in a thread, until it is closed."""

    def __init__(self, server: Served, stand_in: StandIn) -> None:
        self._server = server
        self._stand_in = stand_in
        self._seen: object = None
        self._since = time.monotonic()
        self._closed = threading.Event()
        self.ticks = 0
        self.compared = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until it has compared while nothing moved."""
        before = self.compared
        until(lambda: self.compared > before or self.wrong, "the oracle compares")

    def close(self) -> None:
        """Stop looking; fail if anything was wrong at any tick, or nothing was looked at."""
        self._closed.set()
        self._thread.join()
        assert not self.wrong, self.wrong[0]
        assert self.ticks

    def _watch(self) -> None:
        last = -1
        while not self._closed.wait(0.3):
            try:
                answer = self._server.ask("GET", "/queue")
            except OSError:
                self._closed.wait(0.2)  # the server was stopped or killed by the test
                continue
            if answer.status != 200:
                continue
            if answer.json["tick"] != last:
                last = answer.json["tick"]
                self._check(answer.json)

    def _check(self, snapshot: Mapping[str, Any]) -> None:
        self.ticks += 1
        rows = {**snapshot["attribution"]["devices"], **snapshot["attribution"]["resources"]}
        for resource, row in rows.items():
            explained = row["attributed"] + row["external"] - row["overlap"]
            if explained != row["used_total"]:
                self.wrong.append(f"{resource}: {explained} explained of {row}")
        for run in snapshot["running"]:
            for resource, reserved in run["reservations"].items():
                expected = max(0, run["charges"].get(resource, 0) - run["held"][resource])
                if reserved != expected:
                    self.wrong.append(f"{run['run_id']} {resource}: {reserved} != {expected}")
        state = self._stand_in.state()
        if state != self._seen:
            self._seen, self._since = state, time.monotonic()
        if time.monotonic() - self._since > SETTLED_S:
            self._compare(snapshot, state)

    def _compare(self, snapshot: Mapping[str, Any], state: Any) -> None:
        """Nothing has moved for a while: every byte must be where the stand-in says it is."""
        for uuid, row in snapshot["attribution"]["devices"].items():
            held = state.held_by_pid(uuid)
            if row["used_total"] != state.used_bytes(uuid):
                self.wrong.append(f"{uuid}: used {row['used_total']}, not {state.used_bytes(uuid)}")
            for run in snapshot["running"]:
                of_run = sum(held.get(pid, 0) for pid in family(run["pid"]))
                told = row["runs"].get(run["run_id"], 0)
                if told != of_run:
                    self.wrong.append(f"{run['run_id']} on {uuid}: {told}, not {of_run}")
            self.compared += 1
