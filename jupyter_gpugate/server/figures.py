"""Metrics for the server's own ``/metrics``, collected on request.

The process that hosts the gate has all of them; one that forwards has only those that it keeps,
because a scrape must not wait for another process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jupyter_gpugate.core.explaining.rows import ReaderRow, Snapshot
from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.gate.port import Gate, Totals
from jupyter_gpugate.server.feed import Feed
from jupyter_gpugate.server.follower import TransitionFollower
from jupyter_gpugate.server.http.services import Services


class Figures(Collector):
    """One server's metrics of its user's gate."""

    def __init__(self, services: Services, follower: TransitionFollower) -> None:
        self._services = services
        self._follower = follower

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration collects nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the current values."""
        backend = self._services.backend
        yield GaugeMetricFamily(
            "gpugate_hosts_gate", "Whether this server hosts its user's gate", backend is not None
        )
        runs = GaugeMetricFamily("gpugate_runs", "Unfinished runs", labels=["status"])
        for status, count in self._follower.counts().items():
            runs.add_metric([status], count)
        yield runs
        if backend is not None:
            yield from _of_gate(backend.gate, backend.feed)


def _of_gate(gate: Gate, feed: Feed) -> Iterator[Metric]:
    figures = gate.figures()
    if figures is None:
        return
    shown = figures.snapshot
    yield CounterMetricFamily("gpugate_ticks", "Ticks of the gate", shown.tick)
    ends = CounterMetricFamily("gpugate_ended_runs", "Ended runs", labels=["end"])
    for end in RunEnd:
        ends.add_metric([end.value], feed.ends[end.value])
    yield ends
    yield from _counts(figures.totals)
    waits = [row.waited_s for row in shown.queued]
    yield GaugeMetricFamily("gpugate_queue_length", "Runs in the queue", len(waits))
    yield GaugeMetricFamily(
        "gpugate_oldest_wait_seconds",
        "Longest wait of a queued run",
        max(waits, default=0),
    )
    yield from _bytes(shown)
    yield from _reservations(shown)
    yield from _readers(shown.readers)


def _counts(totals: Totals) -> Iterator[Metric]:
    for name, words, count in (
        ("submitted", "Runs accepted into the queue", totals.submitted),
        ("admitted", "Leases granted to runs", totals.admitted),
        ("evicted", "Attempts stopped to make room for another run", totals.evicted),
    ):
        yield CounterMetricFamily(f"gpugate_{name}_runs", words, count)
    refused = CounterMetricFamily("gpugate_refused_runs", "Refused submits", labels=["error"])
    for error, count in totals.refused.items():
        refused.add_metric([error], count)
    yield refused


def _reservations(shown: Snapshot) -> Iterator[Metric]:
    """Return the memory that is promised and not held yet, in bytes and in runs."""
    reserved = GaugeMetricFamily(
        "gpugate_reserved_bytes", "Memory promised to runs and not held yet", labels=["resource"]
    )
    pending = GaugeMetricFamily(
        "gpugate_pending_reservations",
        "Active runs that do not hold all of their promised memory",
        labels=["resource"],
    )
    for resource, size in shown.reservations.items():
        reserved.add_metric([resource], size)
        left = [row.reservations.get(resource, 0) for row in shown.running]
        pending.add_metric([resource], sum(one > 0 for one in left))
    yield reserved
    yield pending


def _bytes(shown: Snapshot) -> Iterator[Metric]:
    free = GaugeMetricFamily("gpugate_free_bytes", "Measured free memory", labels=["resource"])
    for resource, size in shown.free_bytes.items():
        free.add_metric([resource], size)
    yield free
    attribution = shown.attribution
    shares = {**attribution.devices}
    if "ram" in attribution.resources:
        shares["ram"] = attribution.resources["ram"]
    for field, name, words in (
        ("used_total", "used", "Memory in use"),
        ("attributed", "attributed", "Memory of runs and kernels"),
        ("external", "external", "Memory used outside gpugate"),
    ):
        family = GaugeMetricFamily(f"gpugate_{name}_bytes", words, labels=["resource"])
        for resource, row in shares.items():
            family.add_metric([resource], getattr(row, field))
        yield family


def _readers(readers: Sequence[ReaderRow]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "gpugate_reader_age_seconds", "Age of the newest reading", labels=["reader"]
    )
    healthy = GaugeMetricFamily(
        "gpugate_reader_healthy", "Whether a reader works, if it is needed", labels=["reader"]
    )
    for reader in readers:
        if reader.age_s is not None:
            age.add_metric([reader.name], reader.age_s)
        if reader.present:
            healthy.add_metric([reader.name], reader.fault is None)
    yield age
    yield healthy
