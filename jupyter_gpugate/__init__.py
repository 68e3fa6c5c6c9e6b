"""Starts an evaluation when the memory it needs is measured to be free, and says why it waits.

In a notebook: ``%load_ext jupyter_gpugate``, then ``%%gated_eval NAME --episodes N``.
Importing the package loads nothing but this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_gpugate._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyter_gpugate.client.connection import Client, connect
    from jupyter_gpugate.client.errors import GateError, RunCancelled, RunDetached, RunFailed
    from jupyter_gpugate.notebook.group import Group
    from jupyter_gpugate.notebook.run import Run

__all__ = [
    "Client",
    "GateError",
    "Group",
    "Run",
    "RunCancelled",
    "RunDetached",
    "RunFailed",
    "__version__",
    "connect",
    "get",
    "load_ipython_extension",
    "submit",
    "unload_ipython_extension",
]

_HOMES = {
    "Client": "client.connection",
    "GateError": "client.errors",
    "Group": "notebook.group",
    "Run": "notebook.run",
    "RunCancelled": "client.errors",
    "RunDetached": "client.errors",
    "RunFailed": "client.errors",
    "connect": "client.connection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def submit(
    work: str | Sequence[str] | None = None,
    *,
    name: str,
    inputs: Mapping[str, object] | None = None,
    **options: Any,
) -> Any:
    """Queue a run, and return a handle on it without waiting.

    ``work`` is a string, the source of a cell, or a list, the words of a command; without it the
    newest run of this name is repeated.  The options are those of the magic and of the terminal:
    ``episodes=10, workers=2, gpus=0, hint_vram="6GB", max_wait="30m", outputs=["score"]``,
    ``parameters={"batch": 8}, free_parameters={"seed": 1}``; ``inputs`` are values by name.
    With ``sweep={"batch": [8, 16, 32]}`` it queues a run for each value and returns a `Group`.
    """
    from jupyter_gpugate.notebook.submitting import submit as submit_

    return submit_(work, name, inputs, options)


def get(run_id: str) -> Any:
    """Return a handle on a run, live or ended, submitted from wherever: a `Run`.

    For the id of a group it is a `Group`.
    """
    from jupyter_gpugate.client.finding import is_group
    from jupyter_gpugate.notebook.group import Group
    from jupyter_gpugate.notebook.run import Run

    return Group(run_id) if is_group(run_id) else Run(run_id)


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics; called by ``%load_ext jupyter_gpugate``."""
    from jupyter_gpugate.notebook.magics import GpuGateMagics

    ipython.register_magics(GpuGateMagics)


def unload_ipython_extension(ipython: Any) -> None:
    """Take the magics back; called by ``%unload_ext jupyter_gpugate``."""
    from jupyter_gpugate.notebook.magics import GpuGateMagics

    for kind, names in GpuGateMagics.magics.items():
        for name in names:
            ipython.magics_manager.magics[kind].pop(name, None)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from jupyter_gpugate.server.extension import GpuGate

    return [{"module": "jupyter_gpugate.server.extension", "app": GpuGate}]
