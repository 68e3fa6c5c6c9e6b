"""The parent of one run's process tree: it starts, measures and stops it, and records the end.

Its instructions are in ``launch.json`` in the attempt's directory.

*The tree.*  As a child subreaper it inherits every orphan below it, so no descendant leaves the
tree by a new session, a new group or a second fork; "the kernel says that I have no child" is the
proof that the tree is gone.  Processes that a completed program leaves in the background are part
of the run, which goes on while they work.  All others that are left have `LINGER_S` to end by
themselves and are then stopped like any tree; the outcome stays the workers' own, and a warning
names what was stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from .attempt import Attempt
from .background import Background
from .caps import Caps
from .cgroups import join_cgroups, make_cgroup
from .clock import awake_time
from .crew import Crew, Ended
from .ending import (
    end_report,
    kill_record,
    remove_cgroup,
    sweep,
    warning_of_clients,
    warning_of_files,
    warning_of_stopped,
)
from .failure import Evidence, said_of
from .gate_outside import start_wanted_gate
from .inbox import Inbox
from .lease import Lease
from .processes import Proc, kill_all, process
from .readiness import Readiness
from .stop_request import Stop, StopRequest
from .stopping import LINGER_S, Stopping
from .transcript import Transcript
from .watch import GLANCE_S, Watch
from .workers import Worker

FINISH_S = 600.0  # an end is reported for so long; by then its record is on the disk
PR_SET_CHILD_SUBREAPER = 36
COMPLETED: dict[str, Any] = {"outcome": "completed", "exit_code": 0}
STOPPED = "stopped"  # the reason of a service that was ready until then
PORT_IN_USE = "port_in_use: another process answered at its ready URL before it had started"
ENDED_BY_ITSELF = "exit 0: the service ended by itself"


class Supervisor:
    """One attempt, from the question whether to go to the record of its end."""

    def __init__(self, path: str) -> None:
        umask = os.umask(0o077)
        self.attempt = Attempt(path)
        self.launch = self.attempt.launch
        self.me = process(os.getpid()) or Proc(os.getpid(), 0)
        self.started_at: float | None = None
        self.wall_started = time.time()
        self.end: dict[str, Any] | None = None  # outcome, reason and stop, once they are certain
        self.phase = "starting"
        self.stopping: Stopping | None = None
        self.background: Background | None = None  # since all workers have completed
        self.inbox = Inbox()
        self.stop = StopRequest(self.attempt.file("stop.json"))
        self.watch = Watch(self.attempt, self.me, self.wall_started)
        self.transcript = Transcript(self.attempt, self.inbox, self.watch.meter.want)
        self.crew = Crew(self.attempt, self.me, umask)
        self.lease = Lease(self.attempt, self.me, self.inbox, self.stop)
        self.caps = Caps(self.attempt)
        self.readiness = Readiness(self.launch, self.inbox.wake, self.transcript.warn)
        self.evidence = Evidence()

    def run(self) -> None:
        """Live the attempt's whole life."""
        self._settle_in()
        try:
            self.end = self.lease.wait_for_go()
            if not self.end:
                self._execute()
        except Exception as error:  # noqa: BLE001 - whatever broke here, nothing may stay behind
            sys.excepthook(type(error), error, error.__traceback__)
            self.end = {"outcome": "failed", "reason": f"supervisor: {error!r}"}
            kill_all(self.me.pid)
        self._finish()

    def _execute(self) -> None:
        self._start()
        while self.end is None or not self.crew.is_childless:
            self._step()

    # -- the beginning

    def _settle_in(self) -> None:
        wanted = self.launch.get("cgroups") or {}
        missed = join_cgroups(wanted)
        if missed:
            self.transcript.warn(
                f"the run could not join cgroup {missed[0]}: its limits do not bind the run"
            )
        if wanted:
            self.evidence = Evidence()  # kills are counted by cgroup
        with suppress(PermissionError):  # the leader of a group cannot, and need not
            os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self.inbox.wake_on_signals()
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the run's own processes.
        for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(ignored, lambda *_: None)
        signal.signal(signal.SIGTERM, self.stop.terminate)

    def _start(self) -> None:
        self.started_at, self.wall_started = awake_time(), time.time()
        self.watch.cgroup = make_cgroup(f"gpugate-{self.launch['run_id']}-{self.launch['attempt']}")
        if self.readiness.is_taken():
            self._stop({"outcome": "failed", "reason": PORT_IN_USE})
            return
        try:
            for worker in self.crew.start(self.watch.cgroup, self.lease.visible_devices):
                self.transcript.listen(worker)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._stop({"outcome": "failed", "reason": f"cannot start: {error}"})
            return
        self.phase = "running"
        self._look(awake_time())

    # -- the loop

    def _step(self) -> None:
        due_at = self.watch.due_at
        if self.stopping is not None:
            due_at = min(due_at, self.stopping.next_at)
        self.inbox.wait(min(due_at - awake_time(), GLANCE_S))
        for ended, worker in self.crew.reap():
            self._note_end(ended, worker)
        now = awake_time()
        self._judge(now)
        if self.crew.is_childless:
            return
        if now >= self.watch.due_at:
            self._look(now)
        if self.stopping is not None:
            self.stopping.advance(now)
        elif not self.lease.is_busy and "gate" in self.launch:
            start_wanted_gate(self.attempt.file("gate.json"), self.launch["gate"])
        self._report(now)

    def _look(self, now: float) -> None:
        self.watch.look(now, self._age(now))
        self.evidence.look()

    def _age(self, now: float) -> float:
        return now - (self.started_at or now)

    def _note_end(self, ended: Ended, worker: Worker | None) -> None:
        """Measure a worker that has ended; warn of background processes that have failed."""
        is_single = worker is not None and not ended.had_children
        self.watch.is_alone = self.watch.is_alone and is_single
        if worker is not None:
            had_children, beside = ended.had_children, self.crew.living()
            self.watch.meter.ended(ended.pid, ended.mark, had_children=had_children, beside=beside)
            self.transcript.read_last_events(worker)
        elif self.background is not None and self.end is None and ended.code:
            # The program's own end does not show it.
            name = self.background.names.get(ended.pid)
            how = said_of(ended.code)
            if name:
                self.transcript.warn(f"{name}, which it left in the background, ended with {how}")

    # -- the verdict

    def _judge(self, now: float) -> None:
        """Decide, once, how the attempt ends, and stop what is still there."""
        if self.end is not None:
            return
        failed = self.crew.failed()
        limit_s = self.launch["time_limit_s"]
        if failed is None and not self.crew.living() and not self._goes_on(now):
            self._stop(self._end_by_itself(), linger_s=LINGER_S)
        elif self.stop.made or (self.stop.is_terminated and self.stop.is_made()):
            self._stop(self._stopped())
        elif failed is not None:
            self._stop(self.evidence.failure(failed.code or 0, failed.oom))
        elif limit_s is not None and self._age(now) > limit_s:
            self._stop(self._late())

    def _end_by_itself(self) -> dict[str, Any]:
        """Return the end of a run whose workers have ended with 0; a service goes on for ever."""
        if self.readiness.is_service:
            return {"outcome": "failed", "reason": ENDED_BY_ITSELF, "exit_code": 0}
        return COMPLETED

    def _stopped(self) -> dict[str, Any]:
        """Return the end of a run that was stopped: for a service that was ready, the usual one."""
        end = self.stop.end()
        if end["outcome"] == "cancelled" and self.readiness.is_ready:
            return {**end, "outcome": "completed", "reason": STOPPED}
        return end

    def _late(self) -> dict[str, Any]:
        """Return the end of a run that has reached its time limit.

        A cell that has ended with its outputs stored only waits for what it has left running.
        """
        if self.crew.have_results() and not self.readiness.is_service:
            return COMPLETED
        outcome = "completed" if self.readiness.is_ready else "failed"
        return {"outcome": outcome, "reason": "time_limit"}

    def _goes_on(self, now: float) -> bool:
        """Whether a completed program has left processes in the background that work."""
        if self.launch["kind"] != "program" or self.crew.is_childless:
            return False
        if self.readiness.is_service:  # which may wait for requests for ever
            return True
        if self.background is None:
            sessions = {worker.process.pid for worker in self.crew.workers}
            cwd = os.path.realpath(self.launch["cwd"])
            self.background = Background(self.me.pid, sessions, cwd, self.transcript, now)
        return self.background.goes_on(now)

    def _stop(self, end: dict[str, Any], linger_s: float = 0.0) -> None:
        now = awake_time()
        self.watch.look_last(now, self._age(now))
        self.end, self.phase = end, "stopping"
        self.lease.hurry()
        grace_s, begin_at = self.launch["grace_s"], now + linger_s
        self.stopping = Stopping(self.me.pid, grace_s, self.watch.cgroup, begin_at)

    # -- reports to the gate

    def _report(self, now: float) -> None:
        self.lease.take_answer(now)
        self.caps.follow(self.lease.caps)
        if self.readiness.look(now, gate_says_so=self.lease.says_ready):
            self.lease.hurry()
        if self.lease.is_due(now):
            self.stop.is_made()
            self.transcript.write()
            self.lease.beat(lambda: self._heartbeat(now), now)

    def _heartbeat(self, now: float) -> dict[str, Any]:
        ready = {"ready": self.readiness.is_ready} if self.readiness.is_service else {}
        return {
            **self.attempt.identity(),
            **ready,
            "tree": [self.me, *sorted(self.watch.tree)],
            "report": {**self.watch.report(now), **self.crew.report()},
            "peaks": self._peaks(),
            "episode": len(self.transcript.episodes),
            "resumed": self.transcript.resumed,
            "phase": self.phase,
            "stop_reason": self._stop_reason(),
        }

    def _stop_reason(self) -> str:
        end = self.end or {}
        reason = Stop(**end["stop"]).reason if "stop" in end else str(end.get("reason", ""))
        stuck = self.stopping.survivors if self.stopping else []
        pids = ", ".join(str(one.pid) for one in stuck)
        return f"{reason} (kill_pending: {pids})" if stuck else reason

    def _peaks(self) -> dict[str, Any]:
        return {**self.watch.peaks(is_over=self.crew.is_childless), **self.crew.peaks()}

    # -- the end

    def _finish(self) -> None:
        """Write the end to the disk, report it to the gate, and go."""
        ended_at = awake_time()
        self.transcript.close(self.crew.workers)
        self.watch.clear()
        left = self.watch.meter.left_behind(self.me.pid)
        end = self._end_report(ended_at)
        record = {"end": end, "stop": (self.end or {}).get("stop")}
        record.update(wall_started=self.wall_started, wall_ended=time.time())
        swept = sweep(self.launch["run_id"], self.inbox.wait)
        remove_cgroup(self.watch.cgroup)
        record["kill"] = kill_record(self.stopping, swept, self.watch.clients, ended_at)
        self._warn_of_rest(end, left)
        self._hand_over(record, ended_at)

    def _end_report(self, ended_at: float) -> dict[str, Any]:
        end = self.end or {"outcome": "failed", "reason": "supervisor: no end"}
        duration_s = None if self.started_at is None else ended_at - self.started_at
        if self.readiness.is_service:
            end = {**end, "ready": self.readiness.is_ready}
        done, resumed = len(self.transcript.episodes), self.transcript.resumed
        return end_report(end, done, resumed, self._peaks(), duration_s)

    def _warn_of_rest(self, end: dict[str, Any], left: int) -> None:
        """Warn of what the outcome does not show."""
        stopped = self.stopping.stopped if self.stopping else []
        is_left = end["outcome"] == "completed" and not self.readiness.is_service
        warnings = (
            *warning_of_stopped(stopped if is_left else [], self.background),
            *warning_of_clients(self.watch.clients),
            *warning_of_files(self.watch.meter.files, left),
        )
        for warning in warnings:
            self.transcript.warn(warning)

    def _hand_over(self, record: dict[str, Any], ended_at: float) -> None:
        """Record the end and report it, each until it is taken; a SIGTERM ends the reports."""
        self.stop.is_terminated = False
        is_recorded, is_taken = False, self.stop.is_fenced
        while (now := awake_time()) < ended_at + FINISH_S:
            is_recorded = is_recorded or self._is_recorded(record)
            is_taken = is_taken or self.lease.is_end_taken(record["end"], now)
            if is_recorded and (is_taken or self.stop.is_terminated):
                return
            self.inbox.wait(GLANCE_S)

    def _is_recorded(self, record: dict[str, Any]) -> bool:
        """Record the end, unless the directory is gone: then nothing can be recorded."""
        if self.attempt.is_gone():
            return True
        self.transcript.write()
        return self.attempt.is_recorded(record)


def main() -> None:
    """Supervise the attempt that the command line names."""
    Supervisor(os.path.abspath(sys.argv[1])).run()
