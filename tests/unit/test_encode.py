"""Dataclasses as the JSON that clients read."""

from __future__ import annotations

import json
from types import MappingProxyType

from jupyter_gpugate.core.admission.decide import decide
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.estimates import Origin
from jupyter_gpugate.core.explaining.snapshot import snapshot
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.runs.reading import Output
from jupyter_gpugate.server.http.encode import as_json, encode
from tests.kit.core_builders import GPU, NOW, gate, request, sample, start


def test_a_snapshot_is_one_json_however_it_is_made() -> None:
    """Text, the values of that text, and the values that the core makes are the same."""
    state = start(
        gate(request("runs"), *(request(f"waits{n}", vram=20 * GB) for n in range(3))), "runs"
    )
    seen = sample(free={GPU: GB})
    shown = snapshot(state, seen, decide(state, seen, NOW), NOW)
    assert shown.queued[0].reasons is shown.queued[1].reasons  # equal parts are made once
    assert json.loads(encode(shown)) == as_json(shown) == to_json(shown)
    assert as_json(shown)["queued"][0]["class"] == "normal"


def test_what_is_no_dataclass_is_encoded_too() -> None:
    """Enums are their values, and any mapping is an object."""
    assert as_json({"origin": Origin.HINT, "read": MappingProxyType({"n": 1})}) == {
        "origin": "hint",
        "read": {"n": 1},
    }
    assert encode(Output(7, 9, "ab", ended=False, attempt=1)) == (
        '{"from": 7, "next": 9, "text": "ab", "ended": false, "attempt": 1}'
    )
