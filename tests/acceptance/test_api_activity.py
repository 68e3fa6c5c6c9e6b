"""Figures and activity of a server with runs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from jupyter_gpugate.core.messages import (
    FinishedMessage,
    PresenceMessage,
    RequestMessage,
    StartedMessage,
    WithdrawMessage,
)
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.proc import start_ticks
from jupyter_gpugate.runs.lease_client import GateRefused, LeaseClient
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.controlled_runs import waits_for
from tests.kit.core_builders import request
from tests.kit.real_server import Places, Served, extensions, until


@pytest.mark.behaviour(113)
def test_figures_are_those_of_the_snapshot(
    start: Callable[..., Served], stand_in: StandIn, tmp_path: Path
) -> None:
    """Runs by status, waits, bytes and promises per resource, readers, and how many runs came, were
    let in, refused and evicted are where a site's monitoring looks; a server that forwards tells
    what it knows.
    """
    server, forwarding = start(), start()
    uuid = stand_in.uuid(0)
    release = tmp_path / "release"
    hold = f"import runpy\nrunpy.run_path({str(HOLDER)!r})['hold_gpu'](0, {3 * GB})\n"
    live = server.submit("live", hold + waits_for(release), hints={"vram_bytes": 4 * GB})
    server.active(live)
    waits = server.submit("waits", "pass", hints={"vram_bytes": 22 * GB})
    server.waiting(waits, "fit")
    never = {"name": "never", "source": "pass", "hints": {"vram_bytes": 30 * GB}}
    assert server.ask("POST", "/runs", never).status == 400
    until(lambda: server.queue()["free_bytes"][uuid] == 21 * GB)
    found = until(
        lambda: (f := server.figures())[f'gpugate_attributed_bytes{{resource="{uuid}"}}'] and f
    )
    assert_counts_and_readers(found, live)
    assert found['gpugate_runs{status="active"}'] == found['gpugate_runs{status="queued"}'] == 1
    assert found[f'gpugate_free_bytes{{resource="{uuid}"}}'] == 21 * GB
    assert found[f'gpugate_used_bytes{{resource="{uuid}"}}'] == 3 * GB
    assert found[f'gpugate_attributed_bytes{{resource="{uuid}"}}'] == 3 * GB
    assert found[f'gpugate_external_bytes{{resource="{uuid}"}}'] == 0
    promised = server.run(live)["charges"][uuid] - 3 * GB
    assert found[f'gpugate_reserved_bytes{{resource="{uuid}"}}'] == promised > 0
    assert found[f'gpugate_pending_reservations{{resource="{uuid}"}}'] == 1
    other = forwarding.figures()
    assert other["gpugate_hosts_gate"] == 0
    assert other['gpugate_runs{status="active"}'] == 1
    ticks = found["gpugate_ticks_total"]
    release.touch()
    server.ended(live)
    server.ended(waits)
    until(lambda: server.figures()['gpugate_ended_runs_total{end="completed"}'] == 2)
    after = server.figures()
    assert after["gpugate_ticks_total"] > ticks
    assert after[f'gpugate_pending_reservations{{resource="{uuid}"}}'] == 0
    assert (after["gpugate_admitted_runs_total"], after["gpugate_evicted_runs_total"]) == (2, 0)
    asyncio.run(evict("moves-over", server.places))
    assert server.figures()["gpugate_evicted_runs_total"] == 1


def assert_counts_and_readers(found: dict[str, float], live: str) -> None:
    """One run was admitted, one waits and one was refused; both readers work."""
    assert found["gpugate_queue_length"] == 1
    assert found["gpugate_oldest_wait_seconds"] > 0
    assert found["gpugate_submitted_runs_total"] == 2
    assert found["gpugate_admitted_runs_total"] == 1
    assert found['gpugate_refused_runs_total{error="impossible"}'] == 1
    assert found['gpugate_refused_runs_total{error="queue_full"}'] == 0
    for figure in ("free", "used", "attributed", "external"):
        assert found[f'gpugate_{figure}_bytes{{resource="ram"}}'] > 0
    assert found['gpugate_reader_healthy{reader="gpu"}'] == 1
    assert found['gpugate_reader_age_seconds{reader="machine"}'] >= 0
    assert found["gpugate_hosts_gate"] == 1
    assert "gpugate_live" not in json.dumps(found)  # a run's own words are no labels
    assert live not in json.dumps(found)


async def evict(run_id: str, places: Places) -> None:
    """Be the run side and the supervisor of a run that is evicted, and says so twice."""
    gate = LeaseClient(str(places.socket))
    asked = request(run_id, vram=None, ram=GB, gpus=0)
    await gate.ask(RequestMessage(asked, run_side="another"))
    present = PresenceMessage((run_id,), run_side="another")
    while not (news := await gate.ask(present)).grants:
        pass
    fence, ticks = news.grants[0].fence, start_ticks(os.getpid())
    await gate.ask(StartedMessage(run_id, fence, os.getpid(), ticks or 0, ""))
    evicted = FinishedMessage(run_id, fence, EndReport(AttemptOutcome.EVICTED, "evicted"))
    await gate.ask(evicted)
    with suppress(GateRefused):
        await gate.ask(evicted)
    await gate.ask(WithdrawMessage(run_id))
    gate.close()


#: The server looks for activity once a minute; a test does not wait for that.
IMPATIENT = """
from tornado.ioloop import PeriodicCallback

def _jupyter_server_extension_points():
    return [{"module": "impatient"}]

def _load_jupyter_server_extension(app):
    app.looks = PeriodicCallback(app.shutdown_no_activity, 200)
    app.looks.start()
"""


def test_a_server_with_live_runs_is_not_idle(
    start: Callable[..., Served], places: Places, tmp_path: Path
) -> None:
    """While runs are unfinished, here or at another host, no server of their user ends for want of
    activity, and its last activity moves on; afterwards it ends by itself.
    """
    folder = places.root / "site"
    folder.mkdir()
    (folder / "impatient.py").write_text(IMPATIENT)
    host = start()
    release, out = tmp_path / "release", tmp_path / "out"
    source = waits_for(release) + f"open({str(out)!r}, 'w').close()\n"
    run_id = host.submit("long", source)
    host.active(run_id)
    forwarding = Served(
        places,
        extensions(impatient=True),
        "--ServerApp.shutdown_no_activity_timeout=3",
        PYTHONPATH=str(folder),
    )
    seen = last_activity(forwarding)
    until(lambda: time.time() - seen > 10, "three times as long as it may be idle")
    assert forwarding.process.poll() is None
    again = host.submit("again", "pass")
    until(lambda: last_activity(forwarding) > seen, "what happens to runs is activity")
    release.touch()
    host.ended(run_id)
    host.ended(again)
    until(lambda: forwarding.process.poll() is not None, "without runs it is idle, and ends")
    assert forwarding.process.returncode == 0
    assert host.process.poll() is None


def last_activity(server: Served) -> float:
    """When something last happened in a server, as its own status has it; asking is nothing."""
    request = urllib.request.Request(  # noqa: S310 - a server of this test's own
        f"{server.url}/api/status?no_track_activity=1",
        headers={"Authorization": f"token {server.token}"},
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310
        told: str = json.load(response)["last_activity"]
    return datetime.fromisoformat(told).timestamp()


@pytest.mark.parametrize("alike", [True, False])
def test_who_waits_for_news_holds_up_nobody_who_acts(server: Served, alike: bool) -> None:
    """However many pages wait at a server, a submit and a cancel get through to the gate."""
    now = server.ask("GET", "/transitions").json
    lines = []
    try:
        for n in range(210):
            wait = 60 if alike else 60 - n / 1000
            query = f"wait={wait}&epoch={now['epoch']}&after={now['last']}"
            line = socket.create_connection(("127.0.0.1", server.port))
            lines.append(line)
            line.sendall(
                f"GET /gpugate/api/v1/transitions?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: token {server.token}\r\n\r\n".encode()
            )
        assert server.ask("GET", "/machine").status == 200
        run_id = server.submit("acts", "import time\ntime.sleep(600)", gpus=0)
        assert server.ask("POST", f"/runs/{run_id}/cancel").status == 200
        # What was waited for has come to each of them.
        assert all(line.recv(15) == b"HTTP/1.1 200 OK" for line in lines)
    finally:
        for line in lines:
            line.close()
