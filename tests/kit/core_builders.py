"""Requests, states and samples of the core in a line each, for tests of single rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.flow.lifecycle import apply
from jupyter_gpugate.core.reports import (
    AttemptOutcome,
    EndReport,
    Peaks,
    Phase,
    RunReport,
)
from jupyter_gpugate.core.requests import (
    Basis,
    Enforcement,
    Family,
    Grant,
    Hints,
    Request,
    Setting,
)
from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    GpuProcess,
    KernelProcess,
    Process,
    ProcessKey,
    RamReading,
    ReaderHealth,
    Sample,
)
from jupyter_gpugate.core.state import GateState, Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jupyter_gpugate.core.decisions import Decisions, Reason
    from jupyter_gpugate.core.leases import RunLease, Usage

GPU: Final = "GPU-0"
L4: Final = "NVIDIA L4"
BOOT: Final = "this-boot"
NOW: Final = 1000.0


def board(index: int = 0, total: int = 24 * GB, model: str = L4, **fields: Any) -> Device:
    """A device; its UUID is ``GPU-<index>``."""
    return Device(f"GPU-{index}", model, total, index, **fields)


def request(
    run_id: str = "run", vram: int | None = 2 * GB, ram: int | None = GB, **fields: Any
) -> Request:
    """A request whose hints say what it needs; None: nothing is known.

    ``fields`` are those of the family, the setting or the request itself.
    """
    family = Family(
        owner=fields.pop("owner", "ada"),
        name=fields.pop("name", "eval"),
        source_hash=fields.pop("source", "one"),
        gpus=fields.pop("gpus", 1),
    )
    parts = {k: fields.pop(k) for k in tuple(fields) if k in Setting.__dataclass_fields__}
    setting = Setting(**{"workers": 1, **parts})
    return Request(run_id, family, setting, hints=Hints(vram, ram), **fields)


def gate(
    *requests: Request,
    boards: Iterable[Device] | None = None,
    traits: Traits | None = None,
    at: float = NOW,
) -> GateState:
    """A gate with these requests in its queue, submitted at ``at`` by a run side that is there."""
    known = [board()] if boards is None else list(boards)
    return apply(
        GateState(traits=traits or Traits()),
        [
            ev.Restarted(0.0, BOOT),
            *(ev.DeviceSeen(0.0, device) for device in known),
            *(ev.Requested(at, one, "side") for one in requests),
            ev.Present(NOW, "side"),
        ],
    )


def grant(run_id: str = "run", charges: Mapping[str, int] | None = None, **fields: Any) -> Grant:
    """A grant of these charges, by what earlier runs needed."""
    charges = {RAM: GB, GPU: 2 * GB} if charges is None else charges
    devices = tuple(resource for resource in charges if resource != RAM)
    given: dict[str, Any] = {
        "attempt": 1,
        "fence": 1,
        "devices": devices,
        "basis": dict.fromkeys(charges, Basis.CALIBRATED),
        "caps": {uuid: charges[uuid] for uuid in devices},
        "enforcement": Enforcement.ENFORCED,
        **fields,
    }
    return Grant(run_id, charges=charges, **given)


def key_of(run_id: str, place: int = 0) -> ProcessKey:
    """The process of a run's tree at this place; its supervisor stands at 0."""
    pid = 10_000 + 100 * sum(map(ord, run_id)) % 20_000 + place
    return ProcessKey(pid, pid * 7)


def start(state: GateState, run_id: str = "run", at: float = NOW, **fields: Any) -> GateState:
    """Grant a queued run and start it; ``fields`` are those of the grant."""
    granted = grant(run_id, **{"fence": state.fence + 1, **fields})
    started = ev.Started(at, run_id, granted.fence, key_of(run_id), BOOT)
    return apply(state, [ev.Granted(at, granted), started])


def using(lease: RunLease, usage: Mapping[str, Usage]) -> RunLease:
    """A live lease that was measured to use this."""
    assert lease.live is not None
    measured = replace(lease.live.measured, usage=usage)
    return replace(lease, stage=replace(lease.live, measured=measured))


def beat(state: GateState, run_id: str = "run", at: float = NOW, **fields: Any) -> ev.Beat:
    """A heartbeat of a live run; ``ram``, of that ``shared``, and ``vram`` are its report."""
    report = RunReport(
        ram_held_bytes=fields.pop("ram", None),
        ram_shared_bytes=fields.pop("shared", 0),
        ram_age_s=fields.pop("ram_age_s", 0.0),
        vram_held_bytes=fields.pop("vram", {}),
    )
    given = {"tree": (key_of(run_id), key_of(run_id, 1)), "phase": Phase.RUNNING, **fields}
    return ev.Beat(at, run_id, state.leases[run_id].terms.fence, report=report, **given)


def finish(
    state: GateState,
    run_id: str = "run",
    at: float = NOW,
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED,
    **fields: Any,
) -> ev.Finished:
    """The end of a live run; ``fields`` are those of the report or of its peaks."""
    parts = {k: fields.pop(k) for k in tuple(fields) if k in Peaks.__dataclass_fields__}
    end = EndReport(outcome, **{"episodes_done": 1, **fields, "peaks": Peaks(**parts)})
    return ev.Finished(at, run_id, state.leases[run_id].terms.fence, end)


def process(key: ProcessKey, private: int = 0, parent: int = 1, uid: int = 1000) -> Process:
    """One row of the process table."""
    return Process(*key, parent, uid, private)


def sample(
    at: float = NOW,
    *,
    boards: Iterable[Device] | None = None,
    free: Mapping[str, int] | None = None,
    ram: int | None = 60 * GB,
    ram_total: int = 64 * GB,
    processes: Sequence[Process] = (process(ProcessKey(1, 0)),),
    lists: Mapping[str, Sequence[tuple[int, int | None]] | None] | None = None,
    kernels: tuple[KernelProcess, ...] = (),
    unmovable: int = 0,
    huge_pool: int = 0,
) -> Sample:
    """What the readers read at ``at``: all of each device is free unless ``free`` says less.

    ``lists`` gives the (pid, bytes) rows of a device; None for one that lists nobody.
    """
    known = [board()] if boards is None else list(boards)
    rows = lists or {}
    readings = tuple(
        DeviceReading(
            device,
            at,
            (free or {}).get(device.uuid, device.total_bytes),
            driver_reserved_bytes=0,
            processes=_listed(rows.get(device.uuid, ())),
        )
        for device in known
    )
    ram_reading = replace(
        RamReading(at, ram_total, ram or 0, ram or 0),
        shared_bytes=unmovable,
        unmovable_bytes=unmovable,
        huge_pool_bytes=huge_pool,
    )
    return Sample(
        ram=None if ram is None else ram_reading,
        processes={row.pid: row for row in processes},
        devices=readings,
        readers=(ReaderHealth("gpu", present=bool(known), taken_at=at),),
        kernels=kernels,
        boot_id=BOOT,
    )


def _listed(rows: Sequence[tuple[int, int | None]] | None) -> tuple[GpuProcess, ...] | None:
    return None if rows is None else tuple(GpuProcess(pid, held, "C") for pid, held in rows)


def reasons(
    state: GateState, seen: Sample | None = None, at: float = NOW
) -> dict[str, tuple[Reason, ...]]:
    """Why each queued run that gets no grant is kept waiting, by run id."""
    decisions = decide(state, seen or sample(at), at)
    granted = granted_to(decisions)
    return {
        run_id: decisions.reasons_of(queued.key)
        for run_id, queued in state.queue.items()
        if run_id not in granted
    }


def granted_to(decisions: Decisions) -> dict[str, Grant]:
    """The grants of a tick by run id."""
    return {one.run_id: one for one in decisions.grants}
