"""The devices of an attempt are looked at once more when it starts."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.runs import attempts, starting
from tests.fake_nvml import GB
from tests.integration.gpu_reading import Driver
from tests.integration.hosted import Hosted, Hosting


def test_an_attempt_does_not_start_without_its_device(
    hosting: Hosting, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU falls off the bus between grant and start: no user code runs, the run waits for the GPU
    in its place, and its first attempt is the one that starts later.
    """
    gpus = driver()
    uuid = gpus.gpu(total=24 * GB)
    begin, lost = starting.begin, False

    async def body(hosted: Hosted) -> None:
        async def late(*given: Any) -> Any:
            nonlocal lost
            if not lost:
                lost = True
                gpus.lose(0)
                while _is_well(hosted, uuid):
                    await hosted.gate.changed(hosted.gate.version, 1)
            return await begin(*given)

        monkeypatch.setattr(attempts, "begin", late)
        submitted = {"name": "late", "argv": ["true"], "hints": {"vram_bytes": GB}}
        run = (await hosted.ask("POST", "/runs", submitted))[1]["run_id"]
        shown: dict[str, Any] = {}
        while "missing" not in [reason["kind"] for reason in shown.get("reasons", ())]:
            await hosted.gate.changed(hosted.gate.version, 1)
            shown = (await hosted.ask("GET", f"/runs/{run}"))[1]
        story = (await hosted.ask("GET", f"/runs/{run}/story"))[1]["story"]
        assert "started" not in [entry["event"] for entry in story]
        (ended,) = [entry["end"] for entry in story if entry["event"] == "finished"]
        assert ended["outcome"] == "not_started"
        assert "GPU 0 (NVIDIA A10) is missing" in ended["reason"]
        gpus.heal()
        while shown["status"] != "ended":
            await hosted.gate.changed(hosted.gate.version, 1)
            shown = (await hosted.ask("GET", f"/runs/{run}"))[1]
        assert (shown["end"], shown["attempt"]) == ("completed", 1)

    hosting(body)


def _is_well(hosted: Hosted, uuid: str) -> bool:
    reading = hosted.gate.sample.device(uuid)
    return reading is not None and reading.fault is None
