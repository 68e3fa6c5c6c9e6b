"""Needs of runs with other parameters than earlier runs, over HTTP and in the terminal."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.acceptance.commands import told
from tests.acceptance.evaluations import MB
from tests.kit.real_server import Places, Served

SWEEP = "x = bytearray(params['batch'] * 10 << 20)\nprint(params['model'])\n"


def estimated(server: Served, **parameters: str) -> dict[str, Any]:
    """The RAM term of a cell with these parameters."""
    body = {"name": "sweep", "source": SWEEP, "gpus": 0, "parameters": parameters}
    (term,) = server.ask("POST", "/estimate", body).json["terms"]
    return dict(term)


@pytest.mark.behaviour(161)
def test_only_values_that_were_run_are_measured(server: Served) -> None:
    """A number is fitted within its reach; out of reach, and for a new word, there is no number,
    the estimate says why, and the author's hint counts.
    """
    for batch in ("8", "16"):
        parameters = {"batch": batch, "model": "small"}
        row = server.completed("sweep", SWEEP, gpus=0, parameters=parameters)
        assert row["basis"] == {"ram": "watch"}
    assert estimated(server, batch="16.0", model="small")["origin"] == "measured"

    between = estimated(server, batch="12", model="small")
    least, most = (
        estimated(server, batch=batch, model="small")["need_bytes"] for batch in ("8", "16")
    )
    assert (between["origin"], between["note"]) == ("fitted", "fitted over batch 8, 16")
    assert least <= between["need_bytes"] <= most
    assert estimated(server, batch="4", model="small")["need_bytes"] == least

    beyond = estimated(server, batch="33", model="small")
    assert (beyond["need_bytes"], beyond["unknown_parameters"]) == (None, ["batch"])
    assert "more than twice the greatest value that was run (16)" in beyond["note"]

    new = estimated(server, batch="16", model="large")
    assert (new["need_bytes"], new["origin"]) == (None, None)
    assert new["note"].startswith("never run with model = large; others needed up to ")
    hinted = {"name": "sweep", "source": SWEEP, "gpus": 0, "hints": {"ram_bytes": 900 * MB}}
    hinted["parameters"] = {"batch": "16", "model": "large"}
    (term,) = server.ask("POST", "/estimate", hinted).json["terms"]
    assert (term["origin"], term["peak_bytes"]) == ("hint", 900 * MB)


@pytest.mark.behaviour(161)
def test_the_arguments_of_a_command_are_its_parameters(places: Places) -> None:
    """An option is a number or a word by its name; one that was declared irrelevant is neither."""
    (places.notebooks / "work.py").write_text("x = bytearray(100 << 20)\n")

    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "work.py", *arguments]
        return dict(told(places, "run", "work", "--json", "--gpus", "0", "--", *command))

    for batch in ("--batch=8", "batch=16"):
        assert run(batch)["basis"] == {"ram": "watch"}
    third = run("--batch", "12")
    assert third["basis"] == {"ram": "calibrated"}
    assert third["estimate"]["terms"][0]["note"] == "fitted over batch 8, 16"
    fourth = run("--batch", "12", "--output-path", "a.csv")
    assert fourth["basis"] == {"ram": "watch"}
    assert "never run with output_path = a.csv" in fourth["estimate"]["terms"][0]["note"]
    declared = ("--memory-irrelevant", "output_path", "--json", "--gpus", "0", "--")
    command = [sys.executable, "work.py", "--batch", "12", "--output-path", "b.csv"]
    assert told(places, "run", "work", *declared, *command)["basis"] == {"ram": "calibrated"}
