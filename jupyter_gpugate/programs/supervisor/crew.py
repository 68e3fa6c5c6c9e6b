"""The workers of an attempt: their start, and the ends of all children of the supervisor."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .attempt import Attempt
from .cgroups import put
from .environment import limit, worker_environment
from .processes import Proc, stat_fields
from .workers import Worker, summed

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
PROGRAMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Ended(NamedTuple):
    """A child that has ended, which may be an adopted orphan."""

    pid: int
    code: int  # negative for a signal
    mark: int  # the most resident bytes of it, or of a child that it has waited for
    had_children: bool


class Crew:
    """The workers, and whether this process has any child left."""

    def __init__(self, attempt: Attempt, supervisor: Proc, umask: int) -> None:
        self.workers: list[Worker] = []
        self.is_childless = False
        self._attempt = attempt
        self._launch = attempt.launch
        self._supervisor = supervisor
        self._umask = umask if self._launch["umask"] is None else self._launch["umask"]

    def start(self, cgroup: str | None, visible_devices: Sequence[str] = ()) -> Iterator[Worker]:
        """Start the workers one by one; raises OSError, ValueError or SubprocessError."""
        base = self._attempt.environment()
        for index in range(self._launch["workers"]):
            own = worker_environment(self._launch, base, index, visible_devices)
            worker = self._start(own, cgroup)
            self.workers.append(worker)
            yield worker

    def living(self) -> list[int]:
        """Return the pids of the workers that have not ended."""
        return [worker.process.pid for worker in self.workers if worker.code is None]

    def failed(self) -> Worker | None:
        """Return a worker that has failed; None while there is none."""
        return next(filter(self._has_failed, self.workers), None)

    def have_results(self) -> bool:
        """Return whether every worker has reported that its cell has come to its end."""
        return self._launch["kind"] == "cell" and all(w.has_result for w in self.workers)

    def report(self) -> dict[str, Any]:
        """Return the workers' own figures of GPU memory for a heartbeat."""
        return {
            "vram_held_bytes": summed(w.torch.get("vram_held", {}) for w in self.workers),
            "device_overhead_bytes": summed(w.torch.get("overhead", {}) for w in self.workers),
        }

    def peaks(self) -> dict[str, Any]:
        """Return the peaks of GPU memory, covered where every worker has reported one."""
        reports = [worker.torch.get("vram_peak") for worker in self.workers]
        return {
            "vram_bytes": summed(report for report in reports if report),
            "vram_covered": bool(reports) and None not in reports,
        }

    def reap(self) -> Iterator[tuple[Ended, Worker | None]]:
        """Wait for every child that has ended, each with the worker that it was, if it was one."""
        self.is_childless = False
        while True:
            try:
                status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self.is_childless = True
                return
            if status is None:
                return
            ended = wait_for(status.si_pid)
            worker = next((w for w in self.workers if w.process.pid == ended.pid), None)
            if worker is not None:
                worker.code = worker.process.returncode = ended.code
            yield ended, worker

    def _start(self, environment: dict[str, str], cgroup: str | None) -> Worker:
        launch = self._launch
        argv = list(launch["argv"])
        if launch["kind"] == "cell":
            environment = {**environment, "GPUGATE_MARK": os.urandom(8).hex()}
            worker = os.path.join(PROGRAMS, "worker", "__main__.py")
            program = [worker, self._attempt.path, environment["GPUGATE_WORKER"]]
            argv = [launch["interpreter"], *launch["flags"], *program]

        def before_exec() -> None:
            """Prepare a forked worker; it is the only thread, so this is safe."""
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self._supervisor.pid:
                os._exit(1)
            put("/proc/self/oom_score_adj", launch["oom_score_adj"])
            if cgroup:
                put(f"{cgroup}/cgroup.procs", 0)
            limit(launch.get("limits", {}))

        how: dict[str, Any] = {"cwd": launch["cwd"], "umask": self._umask}
        return Worker(argv, environment, preexec_fn=before_exec, **how)

    def _has_failed(self, worker: Worker) -> bool:
        is_silent = self._launch["kind"] == "cell" and not worker.has_result
        return worker.code is not None and (worker.code != 0 or is_silent)


def wait_for(pid: int) -> Ended:
    """Wait for a child that has ended."""
    fields = stat_fields(pid)  # readable until the process is waited for
    had_children = bool(fields) and int(fields[8]) > 0  # their page faults
    _, status, usage = os.wait4(pid, 0)
    return Ended(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10, had_children)
