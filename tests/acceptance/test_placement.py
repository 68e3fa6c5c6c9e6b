"""Where runs go on a machine with several devices, and by what names they see them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import gpugate, told
from tests.acceptance.evaluations import MB, evaluation, holds
from tests.fake_nvml import GB, HOLDER, StandIn
from tests.kit.external_processes import external_process
from tests.kit.real_server import Places, Served, until
from tests.kit.user_notebook import UserNotebook

#: A launcher: it reads its mask as numbers, and holds memory of each device that it finds.
LAUNCHER = f"""
import json, os, runpy
hold_gpu = runpy.run_path({str(HOLDER)!r})["hold_gpu"]
ranks = [int(x) for x in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
print(json.dumps([ranks, [hold_gpu(place, 1 << 30) for place in range(len(ranks))]]))
"""
MASK = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
SUBMITS = (
    "import os, subprocess, sys\n"
    "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    "inner = [sys.executable, '-m', 'jupyter_gpugate', 'run', 'inner', '--', sys.executable]\n"
    f"sys.exit(subprocess.call([*inner, '-c', {MASK!r}], stderr=-3))\n"
)


@pytest.fixture
def gpus(stand_in: StandIn) -> list[str]:
    """Four equal GPUs."""
    return [stand_in.uuid(0), *(stand_in.gpu(total=24 * GB, name="NVIDIA L4") for _ in range(3))]


def devices_of(row: dict[str, Any]) -> list[str]:
    """The devices that a run was placed on."""
    return [device["uuid"] for device in row["devices"]]


# -- which device ---------------------------------------------------------------------------------


@pytest.mark.behaviour(166)
def test_the_gpu_of_an_idle_stranger_is_not_preferred_to_an_empty_one(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """Though it would be the tighter fit: neither for a first run, nor for one whose need is known,
    and however often it is its turn.
    """
    taken, empty = stand_in.uuid(0), stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    with external_process() as pid:
        stand_in.hold(pid, taken, 600 * MB)
        server = start()
        until(lambda: _neighbours(server) == {taken: 1, empty: 0}, "the stranger is counted")
        for n in range(2):
            assert devices_of(server.completed(f"first-{n}", "pass")) == [empty]
            hinted = server.completed(f"known-{n}", "pass", hints={"vram_bytes": 2 * GB})
            assert devices_of(hinted) == [empty]


def _neighbours(server: Served) -> dict[str, int]:
    return {device["uuid"]: device["neighbours"] for device in server.queue()["devices"]}


@pytest.mark.behaviour(166)
def test_thirty_first_runs_on_seven_equal_slices_are_taken_in_turn(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """One at a time, each finds all slices empty; no slice has more than one run more than any
    other, a restart of the server in between included.
    """
    stand_in.change(0, total=80 * GB)
    slices = [stand_in.mig_slice(stand_in.uuid(0), 10 * GB) for _ in range(7)]
    placed: Counter[str] = Counter()
    for part in range(2):
        server = start("--GpuGate.max_running_per_user=1")
        until(partial(_has_devices, server, 7), "the slices are there")
        bodies = [{"name": f"first-{part}-{n}", "argv": ["true"]} for n in range(15)]
        runs = [server.ask("POST", "/runs", body).json["run_id"] for body in bodies]
        placed.update(uuid for run in runs for uuid in devices_of(server.ended(run)))
        server.kill()
    assert sorted(placed) == sorted(slices)
    assert sorted(placed.values()) == [4, 4, 4, 4, 4, 5, 5]


def _has_devices(server: Served, count: int) -> bool:
    return len(server.queue()["devices"]) == count


# -- by what name ---------------------------------------------------------------------------------


@pytest.mark.behaviour(168)
def test_a_launcher_reads_the_mask_of_its_run(
    stand_in: StandIn, gpus: list[str], start: Callable[..., Served]
) -> None:
    """The entries are numbers, and mean the devices that the run was given; also when the driver
    counts them in another order than at an earlier time.
    """
    server = start()
    pair = server.completed("pair", LAUNCHER, gpus=2, hints={"vram_bytes": 2 * GB})
    ranks, held = json.loads(server.output(pair["run_id"]))
    assert held == devices_of(pair) == [gpus[rank] for rank in ranks]

    order = [gpus[3], gpus[0], gpus[1], gpus[2]]
    stand_in.reorder(*order)
    until(partial(_counts, server, order), "the new order is seen")
    moved = server.completed("moved", LAUNCHER, device=gpus[3], hints={"vram_bytes": 2 * GB})
    assert json.loads(server.output(moved["run_id"])) == [[0], [gpus[3]]]


def _counts(server: Served, order: list[str]) -> bool:
    shown = {device["index"]: device["uuid"] for device in server.queue()["devices"]}
    return shown == dict(enumerate(order))


@pytest.mark.behaviour(168)
def test_slices_are_named_by_uuid_and_so_is_everything_where_the_site_prefers_it(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """With a board in slices on the machine no number is certain, that of another board neither."""
    uuid = stand_in.uuid(0)
    server = start("--GpuGate.device_mask=uuid")
    row = server.completed("preferred", MASK)
    assert server.output(row["run_id"]).split() == [uuid, "PCI_BUS_ID"]
    server.kill()

    part, whole = stand_in.mig_slice(uuid, 10 * GB), stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    server = start()
    until(partial(_has_devices, server, 2), "the slice and the other board are there")
    for device in (part, whole):
        row = server.completed("sliced", MASK, device=device)
        assert server.output(row["run_id"]).split() == [device, "PCI_BUS_ID"]


@pytest.mark.behaviour(168)
def test_the_mask_of_a_notebook_is_obeyed_by_its_runs_and_by_theirs(
    gpus: list[str], places: Places, start: Callable[..., Served]
) -> None:
    """A terminal that sees GPUs 2 and 3 gives each of its runs one of those, by the machine's
    number; a run that submits another one passes on the mask of its terminal, not its own.
    """
    until(partial(_has_devices, start(), len(gpus)), "all GPUs are seen")
    words = ("run", "outer", "--", sys.executable, "-c", SUBMITS)
    done = gpugate(places, *words, more={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert done.returncode == 0, done.stderr
    outer, inner = done.stdout.split("\n")[:2]
    assert {outer, inner.removesuffix(" PCI_BUS_ID")} == {"2", "3"}


def test_memory_on_a_device_that_a_run_was_not_given_is_charged_and_flagged(
    stand_in: StandIn, start: Callable[..., Served], tmp_path: Path
) -> None:
    """A program that replaces its mask is measured where it really is: memory there counts as its
    own, its charge covers it, and its answer says so while it runs and afterwards.
    """
    own, other = stand_in.uuid(0), stand_in.gpu(total=24 * GB, name="NVIDIA L4")
    server, release = start(), tmp_path / "release"
    source = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n" + evaluation(2, release)
    run = server.submit("strays", source, device="0", hints={"vram_bytes": GB})
    until(partial(holds, server, run, other, 2 * GB), "its memory is found")
    until(lambda: server.run(run)["charges"].get(other, 0) > 2 * GB, "it is charged there")
    (row,) = server.queue()["running"]
    assert (row["elsewhere"], devices_of(row)) == ([other], [own])
    said = "it held 2,048 MB of GPU 1 (NVIDIA L4), which it was not given"
    assert [w for w in server.run(run)["warnings"] if w.startswith(said)]
    release.touch()
    assert [w for w in server.ended(run)["warnings"] if w.startswith(said)]


# -- by choice ---------------------------------------------------------------------------------


@pytest.mark.behaviour(169)
def test_a_run_gets_the_device_or_the_model_that_it_names(
    stand_in: StandIn, gpus: list[str], start: Callable[..., Served]
) -> None:
    """By number, by UUID and by a part of the model's name; while its device is full it waits, with
    others empty.
    """
    large = stand_in.gpu(total=80 * GB, name="NVIDIA H100 80GB HBM3")
    server = start()
    for choice, wanted in (
        ({"device": "2"}, [gpus[2]]),
        ({"device": gpus[1]}, [gpus[1]]),
        ({"device_model": "h100"}, [large]),
        ({"device": "1,3", "gpus": 2}, [gpus[1], gpus[3]]),
    ):
        assert devices_of(server.completed("named", "pass", **choice)) == wanted
    with external_process() as pid:
        stand_in.hold(pid, gpus[2], 23 * GB)
        until(lambda: server.queue()["free_bytes"][gpus[2]] == GB, "it is full")
        waits = server.submit("waits", "pass", device="2", hints={"vram_bytes": 4 * GB})
        (reason,) = server.waiting(waits, "external_holds")["reasons"]
        assert reason["resource"] == gpus[2]
        assert server.run(waits)["visible"] == "device=2 leaves GPU 2 (NVIDIA L4)"
    assert devices_of(server.ended(waits)) == [gpus[2]]


@pytest.mark.behaviour(169)
def test_an_estimate_is_asked_for_the_device_that_is_named(
    stand_in: StandIn, places: Places, start: Callable[..., Served]
) -> None:
    """What a run would need there, and whether it would start there now."""
    stand_in.gpu(total=80 * GB, name="NVIDIA H100 80GB HBM3")
    server = start()
    until(partial(_has_devices, server, 2), "both GPUs are seen")
    server.completed("eval", "pass", device="0", hints={"vram_bytes": 2 * GB})
    with external_process() as pid:
        stand_in.hold(pid, 0, 23 * GB)
        until(lambda: server.queue()["free_bytes"][stand_in.uuid(0)] == GB, "it is full")
        assert not server.ask("GET", "/estimate?name=eval").json["would_start"]
        assert server.ask("GET", "/estimate?name=eval&device_model=h100").json["would_start"]
        asked = ("estimate", "eval", "--json")
        assert told(places, *asked, "--gpu", "1")["would_start"]
        (reason,) = told(places, *asked, "--gpu", "7")["reasons"]
        assert reason["message"] == "asks for 1 GPU, device=7 leaves no GPU, so it has 0"


@pytest.mark.behaviour(169)
@pytest.mark.parametrize(
    ("choice", "field", "problem"),
    [
        ({"device": "7"}, "device", "no GPU here is '7'; this machine has GPU 0 (NVIDIA L4)"),
        ({"device": "0", "gpus": 0}, "device", "the run asks for no GPU (gpus: 0)"),
        ({"device_model": "H100"}, "device_model", "no GPU with 'H100' in the name of its model; "),
        ({"device": "0", "gpus": 2}, "gpus", "asks for 2 GPUs, but device=0 leaves GPU 0"),
        ({"device": ""}, "device", "at least 1"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_a_choice_that_no_device_satisfies_is_refused_at_submit(
    server: Served, choice: dict[str, Any], field: str, problem: str
) -> None:
    """The answer names the field and the devices that are there, and nothing is queued."""
    answer = server.ask("POST", "/runs", {"name": "x", "source": "pass", **choice})
    assert answer.status == 400, answer.body
    assert answer.json["detail"]["field"] == field
    assert answer.json["message"].startswith(f"{field}: ")
    assert problem in answer.json["message"]
    assert server.ask("GET", "/runs").json["runs"] == []


@pytest.mark.behaviour(169)
def test_a_device_is_chosen_from_a_terminal_and_from_a_notebook(
    gpus: list[str], places: Places, start: Callable[..., Served]
) -> None:
    """The same options in both; a mistake is one line that lists the devices."""
    words = ("run", "chosen", "--gpu", "3", "--", sys.executable, "-c", MASK)
    server = start()
    until(partial(_has_devices, server, len(gpus)), "all GPUs are seen")
    assert gpugate(places, *words).stdout.split() == ["3", "PCI_BUS_ID"]
    refused = gpugate(places, "run", "chosen", "--gpu-model", "A100", "--", "true")
    assert refused.returncode == 2
    assert "no GPU with 'A100' in the name of its model; this machine has GPU 0" in refused.stderr

    notebook = UserNotebook(server)
    try:
        notebook.run(f"%%gated_eval chosen --gpu 1 --gpu-model l4 --output mask\n{MASK}\nmask = 1")
        (newest, *_) = server.ask("GET", "/runs").json["runs"]
        assert server.output(newest["run_id"]).split() == ["1", "PCI_BUS_ID"]
        told = notebook.refused("%%gated_eval chosen --gpu second\n1")
        assert "`second` is not a GPU: write its number as in nvidia-smi, or its UUID" in told
    finally:
        notebook.close()


@pytest.mark.usefixtures("server")
def test_a_program_that_uses_no_gpu_is_advised_to_ask_for_none(
    stand_in: StandIn, places: Places
) -> None:
    """After two complete attempts in which the gate measured no memory there."""
    words = (sys.executable, "-c", "import time; time.sleep(2.5)")
    first, second = (gpugate(places, "run", "idle", "--", *words) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert "--gpus 0" not in first.stderr
    assert (
        "2 complete attempts of such runs used no memory of their GPU: with --gpus 0"
        in second.stderr
    )
    assert not stand_in.state().holds


@pytest.mark.behaviour(169, 171)
def test_a_repetition_keeps_the_choice_unless_another_one_is_given(
    stand_in: StandIn, start: Callable[..., Served]
) -> None:
    """A name alone goes where its newest run was to go; a device, a model or no GPU replaces that
    choice as a whole.
    """
    first, second = stand_in.uuid(0), stand_in.gpu(total=24 * GB, name="NVIDIA A10")
    server = start()
    server.completed("eval", "pass", device="1")
    for given, wanted in (
        ({}, [second]),
        ({"device_model": "L4"}, [first]),
        ({}, [first]),
        ({"gpus": 0}, []),
        ({"device": "1"}, [second]),
    ):
        answer = server.ask("POST", "/runs", {"name": "eval", **given})
        assert answer.status == 202, answer.body
        assert devices_of(server.ended(answer.json["run_id"])) == wanted
