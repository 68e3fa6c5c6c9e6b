"""The run that a person means by an id, a part of an id, or a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpugate.client import finding
from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError
from tests.kit.gate_stand_in import GateStandIn, gate_at

LIVE, OLD, NEW = "20261201-100000-aaaaa", "20261130-100000-bbbbb", "20261201-090000-ccccc"
Find = Callable[[Client, str], str]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GateStandIn]:
    """Serve a gate with two ended runs of one name, and a live run of another."""
    with gate_at(tmp_path / "own" / "gpugate.sock") as gate:
        gate.put(OLD, name="eval", status="ended", end="failed")
        gate.put(NEW, name="eval", status="ended", end="completed")
        gate.put(LIVE, name="train", status="active")
        yield gate


@pytest.mark.parametrize(
    ("find", "text", "meant"),
    [
        (finding.find_run, LIVE, LIVE),
        (finding.find_run, "train", LIVE),
        (finding.find_run, "eval", NEW),
        (finding.find_run, OLD, OLD),
        (finding.find_unfinished, "train", LIVE),
        (finding.find_exactly, "train", LIVE),
    ],
)
def test_a_name_means_its_live_run_or_its_newest(
    gate: GateStandIn, find: Find, text: str, meant: str
) -> None:
    """An id is itself and asks nothing."""
    assert find(Client(gate.socket_path), text) == meant
    assert bool(gate.asked) is (text != meant)


@pytest.mark.parametrize(
    ("find", "text", "code", "words"),
    [
        (finding.find_run, "nobody", "not_found", "there is no run nobody"),
        (finding.find_run, "no/body", "not_found", "there is no run no/body"),
        (finding.find_unfinished, "nobody", "not_found", "`jupyter gpugate runs` lists your runs"),
        (finding.find_unfinished, "eval", "state", f"the newest, {NEW}, has ended: completed"),
        (finding.find_exactly, "eval", "ambiguous", f"may mean several runs: {NEW}, {OLD};"),
    ],
)
def test_what_is_not_one_run_is_refused(
    gate: GateStandIn, find: Find, text: str, code: str, words: str
) -> None:
    """The message says which runs there are, or how to list them."""
    with pytest.raises(GateError) as refusal:
        find(Client(gate.socket_path), text)
    assert (refusal.value.code, words in str(refusal.value)) == (code, True)


def test_several_live_runs_of_a_name_are_listed(gate: GateStandIn) -> None:
    """Nothing is guessed among runs that live, for a look no more than for a cancel."""
    gate.put(NEW, name="train", status="queued")
    for find in (finding.find_run, finding.find_unfinished):
        with pytest.raises(GateError) as refusal:
            find(Client(gate.socket_path), "train")
        assert LIVE in str(refusal.value)
        assert NEW in str(refusal.value)
