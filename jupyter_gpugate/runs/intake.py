"""The entrance for submits: refuses what cannot be taken in now, and answers in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.proc import boot_id
from jupyter_gpugate.runs.pending_submits import PendingSubmits
from jupyter_gpugate.runs.presence import Presence
from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.runs.submitting import Submissions
from jupyter_gpugate.runs.waited_for import WaitedFor


class Intake:
    """Takes in the submits of one user, while this process serves and older runs are queued."""

    def __init__(self, submissions: Submissions, presence: Presence, waited_for: WaitedFor) -> None:
        self._submissions = submissions
        self._presence = presence
        self._waited_for = waited_for
        self._pending = PendingSubmits(self.submit)
        self._closing = False

    def close(self) -> None:
        """Take in nothing more."""
        self._closing = True

    async def submit(self, body: Mapping[str, Any]) -> tuple[str, bool]:
        """Queue a run; return its id, and whether it is a new one.  Raises `Refused`."""
        if self._closing:
            raise Refused(503, "stopping", "this gate is stopping", retry_after="1")
        if self._presence.queues_again():
            raise Refused(503, "starting", "older runs are queued again first", retry_after="1")
        _refuse_stranger(body.get("kernel") or {})
        record, is_new = await self._submissions.submit(body)
        if is_new:
            self._waited_for.watch(record)
        return record.run_id, is_new

    async def submit_within(
        self, body: Mapping[str, Any], wait_s: float
    ) -> tuple[str, bool] | None:
        """As `submit`, or None after ``wait_s``; it goes on, and the same body asks again."""
        return await self._pending.submit(body, wait_s)

    def reads(self, key: str) -> bool:
        """Return whether the sources of the submit with this key are being read."""
        return self._submissions.reads(key)

    async def whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a body with everything that it leaves to the run that it repeats, if any."""
        return await self._submissions.whole(body)

    async def request_of(self, body: Mapping[str, Any]) -> Request:
        """Return the request that a body would become; nothing is queued."""
        return await self._submissions.request_of(body)


def _refuse_stranger(kernel: Mapping[str, Any]) -> None:
    """Refuse a notebook of another machine: its interpreter and files are not here."""
    if kernel.get("boot_id", "") not in ("", boot_id()):
        raise Refused(
            400,
            "bad_request",
            "kernel.boot_id: this notebook's kernel runs on another machine than this gate: start "
            "a gate on the kernel's machine (`jupyter gpugate serve --user`), and unset "
            "GPUGATE_USER_SOCKET there if it is set",
            field="kernel.boot_id",
            gate=boot_id(),
        )
