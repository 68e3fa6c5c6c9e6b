"""Who the caller of a gate is, as the kernel says, and whom a gate of one user admits."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.web import HTTPError

from jupyter_gpugate.gate import door
from jupyter_gpugate.gate.door import Door
from jupyter_gpugate.proc import Caller, Peer, start_ticks


def request_over(line: socket.socket | None) -> Any:
    """A request that came over this line."""
    return SimpleNamespace(connection=SimpleNamespace(stream=SimpleNamespace(socket=line)))


def test_a_caller_is_the_process_at_the_other_end() -> None:
    """Its uid, pid and start are the kernel's, its name is that of the gate's user."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        caller = Door("ada").admit(request_over(ours))
    assert caller == Caller(os.geteuid(), os.getpid(), start_ticks(os.getpid()), "ada")


def test_a_caller_over_tcp_is_not_admitted() -> None:
    """Nothing says whose process it is; nor does a line that is closed already."""
    with socket.socket(socket.AF_INET) as line:
        for unknown in (line, None):
            with pytest.raises(HTTPError, match="another user"):
                Door("ada").admit(request_over(unknown))


@pytest.mark.parametrize(("uid", "is_admitted"), [(1000, True), (0, True), (1001, False)])
def test_a_gate_of_one_user_admits_this_user_and_root(
    monkeypatch: pytest.MonkeyPatch, uid: int, *, is_admitted: bool
) -> None:
    """Root acts for the gate's user; everybody else is refused."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(door, "peer_of", lambda _: Peer(os.getpid(), uid))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if is_admitted:
            caller = Door("ada").admit(request_over(ours))
            assert (caller.uid, caller.name) == (uid, "ada")
        else:
            with pytest.raises(HTTPError, match="another user"):
                Door("ada").admit(request_over(ours))


def test_a_run_side_is_its_users() -> None:
    """A label tells apart run sides of one user and never names another user's."""
    caller = Caller(1000, 7, 8, "ada")
    assert caller.run_side() == caller.run_side("uid-1000") == "uid-1000"
    for label in ("second", "uid-1001", "uid-10001"):
        assert caller.run_side(label) == f"uid-1000/{label}"
