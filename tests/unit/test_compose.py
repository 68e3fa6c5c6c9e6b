"""Answers that join the run side's records with the gate's rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.explaining.snapshot import snapshot
from jupyter_gpugate.runs.life import Life, Live
from jupyter_gpugate.runs.record import Record, Records
from jupyter_gpugate.server.http.compose import _shared
from tests.kit.core_builders import NOW, gate, request, sample, start


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_cancel_is_what_the_run_side_has_recorded(*, is_cancelled: bool) -> None:
    """The list of runs shows a cancel as the run itself does, whatever a heartbeat has said."""
    asked = request("run")
    state, seen = start(gate(asked)), sample()
    made = snapshot(state, seen, decide(state, seen, NOW), NOW)
    row = replace(made.running[0], cancel_requested=not is_cancelled)
    records = Records(lambda _run_id: None)
    life = Life(1, Live(1), cancelled=is_cancelled)
    spec = {"name": "eval"}
    records.add(Record("run", Path("/runs/run"), spec, {"submitted": 1.0}, asked, life))
    (shown,) = _shared(replace(made, running=(row,)), records, "ada").running
    assert shown.cancel_requested is is_cancelled
