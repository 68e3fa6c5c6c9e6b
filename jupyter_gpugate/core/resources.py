"""The kinds of resource and their units, and who can hold one.

A resource is ``"ram"`` or the UUID of a GPU or MIG slice.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

RAM: Final = "ram"
VRAM: Final = "vram"  # the kind of every GPU resource, before a run is placed on a device
MACHINE = "machine"  # the resource name of a lock on everything
MB: Final = 1 << 20
GB: Final = 1 << 30


class HolderKind(str, Enum):
    """The kind of a holder of memory."""

    RUN = "run"
    KERNEL = "kernel"
    MODEL_SERVER = "model_server"
    EXTERNAL = "external"


class Holder(NamedTuple):
    """One owner of memory: a run id, a kernel's notebook, a model server's name."""

    kind: HolderKind
    name: str
