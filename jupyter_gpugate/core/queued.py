"""Requests in the queue, and what makes two of them equal to admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional

from jupyter_gpugate.core.estimates import NO_NEEDS, Estimates, Needs
from jupyter_gpugate.core.requests import Choice, Request, Retry, RetryCause
from jupyter_gpugate.core.resources import RAM


class RequestKey(NamedTuple):
    """Everything that admission looks at: requests with equal keys share a verdict."""

    owner: str
    run_side: str
    gpus: int
    exclusive: bool
    needs: Needs
    choice: Choice = Choice()
    cgroup: str = ""
    group: str = ""  # with a limit
    at_most: Optional[int] = None
    after: tuple[str, ...] = ()
    lacked_memory: bool = False  # an attempt had too little


def key_of(
    request: Request, run_side: str, needs: Needs, *, lacked_memory: bool = False
) -> RequestKey:
    """All of a request that admission looks at."""
    return RequestKey(
        owner=request.owner,
        run_side=run_side,
        gpus=request.gpus,
        exclusive=request.exclusive,
        needs=needs,
        choice=request.choice,
        cgroup=request.cgroup,
        group="" if request.at_most is None else request.group,
        at_most=request.at_most,
        after=request.after,
        lacked_memory=lacked_memory,
    )


@dataclass(frozen=True)
class Queued:
    """A request in the queue; ``order`` is its place for good."""

    request: Request
    order: int
    submitted_at: float
    run_side: str
    needs: Needs = NO_NEEDS  # as of now: what they rest on may change
    estimates: Estimates = ()
    attempts: int = 0
    unstarted_grants: int = 0
    retry: Optional[Retry] = None  # of an attempt that ran out of memory
    retried_at: Optional[float] = None

    @property
    def waits_since(self) -> float:
        """Return when it was queued, the last time."""
        return self.submitted_at if self.retried_at is None else self.retried_at

    @property
    def lacked_memory(self) -> bool:
        """Return whether an attempt was given too little: the next one is not given less."""
        return self.retry is not None and self.retry.cause is not RetryCause.PUSHED_OUT

    def retry_with(self, charges: Mapping[str, int]) -> Optional[Retry]:
        """Return its retry with what it is charged in fact, perhaps on another device."""
        if self.retry is None:
            return None
        charge = charges.get(self.retry.resource)
        if charge is None:
            charge = max(charge for resource, charge in charges.items() if resource != RAM)
        return replace(self.retry, charge_bytes=charge)

    @property
    def key(self) -> RequestKey:
        return key_of(self.request, self.run_side, self.needs, lacked_memory=self.lacked_memory)
