"""What the server extension makes of its settings, and of a gate that does not start."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets import TraitError

from jupyter_gpugate.server.extension import GpuGate


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    """The name of something that is no function is a mistake in the configuration."""
    with pytest.raises(TraitError, match=r"'os\.sep' cannot be called"):
        GpuGate(run_ended_hook="os.sep")
    assert GpuGate(run_ended_hook="os.getpid").run_ended_hook is os.getpid


def test_a_gate_that_does_not_start_keeps_nobody_waiting() -> None:
    """Whoever asks is told at once what was wrong, and nothing is followed."""

    async def fail() -> None:
        raise RuntimeError("no gate today")

    async def begun() -> Any:
        app: Any = GpuGate()
        app.fault, app._following = "", None
        app.host = SimpleNamespace(start=fail, ready=asyncio.Event(), backend=None)
        app._begin()
        await asyncio.wait_for(app.host.ready.wait(), 60)
        return app

    app = asyncio.run(begun())
    assert (app.fault, app._following) == ("no gate today", None)
