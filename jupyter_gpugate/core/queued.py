"""Requests in the queue, and what makes two of them equal to admission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jupyter_gpugate.core.estimates import NO_NEEDS, Estimates, Needs
from jupyter_gpugate.core.requests import Choice, Request


class GroupKey(NamedTuple):
    """Everything that admission looks at: requests with equal keys share a verdict."""

    owner: str
    run_side: str
    gpus: int
    exclusive: bool
    needs: Needs
    choice: Choice = Choice()
    cgroup: str = ""


def key_of(request: Request, run_side: str, needs: Needs) -> GroupKey:
    """All of a request that admission looks at."""
    return GroupKey(
        owner=request.owner,
        run_side=run_side,
        gpus=request.gpus,
        exclusive=request.exclusive,
        needs=needs,
        choice=request.choice,
        cgroup=request.cgroup,
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

    @property
    def key(self) -> GroupKey:
        return key_of(self.request, self.run_side, self.needs)
