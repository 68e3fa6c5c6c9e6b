"""Chosen amounts of memory through HTTP, the magic and the terminal, with a stand-in GPU."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import gpugate
from tests.acceptance.evaluations import MB, vram
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.front_end import notebook
from tests.kit.real_server import Places, Served, until

#: Holds what its first argument says, prints the others, and ends once the last one is a file.
SERVER = f"""
import os, runpy, sys, time
hold = runpy.run_path({str(HOLDER)!r})["hold_gpu"]
size, *words, more, end = sys.argv[1:]
hold(0, int(size))
print(*words, flush=True)
while not os.path.exists(end):
    if os.path.exists(more):
        hold(0, 15 << 30)
    time.sleep(0.05)
"""


@pytest.mark.behaviour(164, 29)
def test_a_choice_is_charged_capped_and_put_into_the_command(
    server: Served, stand_in: StandIn, tmp_path: Path
) -> None:
    """Exactly, with nothing estimated; a run that holds more is an overrun like any other."""
    uuid = stand_in.uuid(0)
    words = ["{vram_bytes}", "--share={vram_fraction}", "{vram_mb}", "{ram_bytes}", "{{kept}}"]
    program = SERVER.replace("{", "{{").replace("}", "}}")
    argv = [sys.executable, "-c", program, *words, str(tmp_path / "more"), str(tmp_path / "end")]
    chosen = {"vram_bytes": 10 * GB, "ram_bytes": GB}
    body = {"name": "server", "argv": argv, "chosen": chosen, "hints": {"ram_bytes": 2 * GB}}
    run_id = server.ask("POST", "/runs", body).json["run_id"]
    row = server.active(run_id)
    assert row["charges"] == {uuid: 10 * GB, "ram": GB}
    assert row["caps"] == {uuid: 10 * GB}
    assert row["basis"] == {uuid: "chosen", "ram": "chosen"}
    terms = {term["resource"]: term for term in row["estimate"]["terms"]}
    assert {r: (t["origin"], t["need_bytes"]) for r, t in terms.items()} == {
        "vram": ("chosen", 10 * GB),
        "ram": ("chosen", GB),
    }
    assert "the hint of RAM has no effect: its amount is chosen" in row["warnings"]
    said = f"--share=0.416666 {10 * 1024} {GB} {{kept}}"
    until(lambda: server.output(run_id).strip() == said, "the command got the amounts")
    (shown,) = server.queue()["running"]
    assert shown["admit_basis"] == {uuid: "chosen", "ram": "chosen"}
    assert not shown["overrun"]
    (tmp_path / "more").touch()
    until(lambda: server.queue()["running"][0]["overrun"] == [uuid], "it overruns")
    assert server.run(run_id)["charges"][uuid] == int(1.25 * 15 * GB)
    (tmp_path / "end").touch()
    assert server.ended(run_id)["end"] == "completed"


@pytest.mark.behaviour(164, 4)
@pytest.mark.usefixtures("stand_in")
def test_a_choice_that_no_run_can_have_is_refused(server: Served) -> None:
    """At submit, naming the field; so is a placeholder that cannot be replaced."""
    refused = partial(refusal, server)
    assert refused(chosen={"vram_bytes": 24 * GB})["detail"] == {
        "field": "chosen.vram_bytes",
        "need_bytes": 24 * GB,
        "limit_bytes": 24 * GB - 256 * MB,
    }
    assert field(refused(chosen={"ram_bytes": 1 << 49})) == "chosen.ram_bytes"
    assert field(refused(chosen={"vram_bytes": 0})) == "chosen.vram_bytes"
    assert field(refused(chosen={"ram_bytes": -GB})) == "chosen.ram_bytes"
    assert field(refused(chosen={"ram_bytes": "8GB"})) == "chosen.ram_bytes"
    assert field(refused(chosen={"disk_bytes": GB})) == "chosen.disk_bytes"
    assert field(refused(chosen={"vram_bytes": GB}, gpus=0)) == "chosen.vram_bytes"
    unknown = refused(argv=["true", "{vram}"], chosen={"vram_bytes": GB})
    assert (field(unknown), unknown["detail"]["argument"]) == ("argv", 1)
    assert "{vram}" in unknown["message"]
    assert "--vram" in refused(argv=["true", "{vram_mb}"])["message"]
    assert server.queue()["queued"] == []


def refusal(server: Served, **fields: Any) -> dict[str, Any]:
    """The answer to a submit that is refused."""
    body = {"name": "never", **({} if "argv" in fields else {"source": "pass"}), **fields}
    answer = server.ask("POST", "/runs", body)
    assert answer.status == 400, answer.body
    told: dict[str, Any] = answer.json
    return told


def field(told: dict[str, Any]) -> str:
    """The field that a refusal names."""
    return str(told["detail"]["field"])


@pytest.mark.behaviour(164, 70)
@pytest.mark.usefixtures("stand_in", "server")
def test_a_choice_is_the_enforced_cap_of_a_torch_cell(places: Places) -> None:
    """The card says where the number is from; a mistake in the line is told in one sentence."""
    cell = "if False:\n    import torch\nimport os\nprint(os.environ['GPUGATE_CAPS'])"
    with notebook(places) as front_end:
        done = front_end.run(f"%%gated_eval net --vram 6GB --ram 1GB\n{cell}")
        assert not done.error, done.error
        card = done.texts[-1]
        assert "VRAM 6,144 MB as you chose" in card
        assert "RAM 1,024 MB as you chose" in card
        assert str(6 * GB) in card
        (run_id,) = done.run_ids
        (limits,) = until(lambda: list((places.runs / run_id).glob("attempts/1/launch.json")))
        launch = json.loads(limits.read_text())
        assert (list(launch["caps"].values()), launch["enforcement"]) == ([6 * GB], "enforced")
        wrong = front_end.run("%%gated_eval net --vram 6GB --gpus 0\npass")
        assert (
            "UsageError: --vram chooses GPU memory, but --gpus 0 asks for no GPU" in wrong.printed
        )


@pytest.mark.behaviour(164)
@pytest.mark.usefixtures("stand_in")
def test_a_choice_in_a_terminal(places: Places) -> None:
    """The command sees it in its arguments; a mistake names the argument, with exit code 2."""
    done = gpugate(places, "run", "echo", "--vram", "18GB", "--", "echo", "{vram_fraction}")
    assert (done.returncode, done.stdout) == (0, "0.750000\n"), done.stderr
    ran = gpugate(places, "run", "echo", "--vram", "18GB", "--json", "--", "true")
    assert vram(json.loads(ran.stdout)["charges"]) == 18 * GB
    for words, named in (
        (("--vram", "18GB", "--", "echo", "{vram}"), "argument 1 ('{vram}')"),
        (("--", "echo", "{vram_mb}"), "--vram SIZE"),
        (("--vram", "0GB", "--", "echo"), "0GB"),
        (("--vram", "30GB", "--", "echo"), "30,720 MB"),
        (("--vram", "1GB", "--gpus", "0", "--", "echo"), "--gpus 0"),
    ):
        done = gpugate(places, "run", "echo", *words)
        assert done.returncode == 2, done.stderr
        assert named in done.stderr
        assert "Traceback" not in done.stderr
