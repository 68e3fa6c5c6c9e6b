"""The scorecard's traces, bars and pages, and the benchmarks that rest on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpugate.core.resources import GB, MB
from jupyter_gpugate.gate.simulation.gated import Gated
from jupyter_gpugate.gate.simulation.replay import replay
from tests.benchmarks import b5_estimates
from tests.kit.workloads import job, world
from tests.scorecard.bars import bars_of
from tests.scorecard.figures import as_json, figures_of, from_json, mean_of
from tests.scorecard.oracle import Oracle
from tests.scorecard.page import bars_table, figures_table, without_table
from tests.scorecard.reality import Noted, Plan, world_of
from tests.scorecard.study import ORACLE, ORDER, WARM, compare
from tests.scorecard.traces import TraceError, read_folder

TASKS = "task,gpus,measured_mb,guess_mb\nsmall,1,1000,500\nlarge,2,30000,\n"
SUBMITS = "task,arrival_s\nsmall,0\nlarge,60\nsmall,90\n"
PAIRS = "job_a,job_b,iso_a_steps_s,coloc_a_steps_s\na,a,10,6\na,b,10,0\nb,a,1,1\n"
TIMES = "quantile,runtime_s\n0,100\n1,300\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of traces with every kind of table."""
    for name, text in (("t", TASKS), ("s", SUBMITS), ("p", PAIRS), ("q", TIMES)):
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def test_traces_are_recognised_by_their_columns(folder: Path) -> None:
    """Tasks, submits, pairs and run times come from any files with those columns."""
    first, second = read_folder(folder).days("s", seed=0, with_pairs=True)
    jobs = first.jobs
    assert [(one.request.family.name, one.gpus, one.arrives_s) for one in jobs] == [
        ("small", 1, 0),
        ("large", 2, 60),
        ("small", 1, 90),
    ]
    assert [one.estimates for one in jobs] == [{"guess": 500 * MB}, {}, {"guess": 500 * MB}]
    assert all(95 <= one.works_s <= 315 for one in jobs)
    assert all(abs(one.vram.peak / MB / 1000 - 1) <= 0.05 for one in (jobs[0], jobs[2]))
    assert first.pairs == {("a", "a"): 0.6, ("a", "b"): 0.5, ("b", "a"): 1.0}
    assert jobs[0].vram.peak != second.jobs[0].vram.peak
    assert jobs[0].load == second.jobs[0].load


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "task\nsmall\n", "no CSV file has the columns task, measured_mb"),
        ("s.csv", "task\nsmall\n", "no CSV file has the columns task, arrival_s"),
        ("s.csv", "task,arrival_s\nhuge,0\n", "s.csv: no table of tasks has 'huge'"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(
    folder: Path, name: str, text: str, message: str
) -> None:
    """The error names the missing columns or the unknown task."""
    (folder / name).write_text(text)
    with pytest.raises(TraceError, match=message):
        read_folder(folder)


def test_missed_bars_are_bold() -> None:
    """The table of bars has every rule, and marks the values above their limits."""
    some = world(*(job(f"job-{n}", 1 + n, 60, [(1, 10)], hint_gb=10) for n in range(3)))
    outcome = compare(some, some)
    assert set(outcome) == set(ORDER)
    text = bars_table({"here": outcome})
    assert text.count("\n") == 2 + len(bars_of(outcome))
    bad = {**outcome, WARM: replace(outcome[WARM], calibrated=10, undercharged=5)}
    assert "**50.0%**" in bars_table({"here": bad})
    assert figures_table(outcome).count("\n") == 2 + len(ORDER)


def test_figures_survive_json_and_are_averaged() -> None:
    """A figure read back is the same, and a mean is the mean of each."""
    some = world(job("one", 1, 60, [(1, 10)], hint_gb=10))
    figures = figures_of(replay(some, Oracle()))
    assert from_json(as_json(figures)) == figures
    assert mean_of([figures, replace(figures, lost=2.0)]).lost == 1.0


def test_estimates_have_no_number_for_what_was_never_run(folder: Path) -> None:
    """Without an observation, with a new word, out of reach, and after an edit there is no number;
    measured, fitted and level ones are within the noise.
    """
    result = b5_estimates.run(people=6, traces=folder)
    asked = result["asked"]
    gaps = {"k = 0", "another model", "batch 256 after 8 and 32", "after an edit"}
    assert {name for name, row in asked.items() if row["numbers"] == 0} == gaps
    assert {name for name, row in asked.items() if row["numbers"] == 1} == asked.keys() - gaps
    errors = [row["median_error"] for row in asked.values() if row["median_error"] is not None]
    assert max(errors) < 0.08
    assert result["published"] == {"guess": 0.5}


def test_real_runs_are_replayed_as_they_were_noted() -> None:
    """Two runs of 10 GB start at once on a GPU each, and a third when the first one has ended."""
    plan = Plan("eval", ((10 * GB, 20.0),), 50 * MB, 14 * GB)

    def noted(number: int, requested_at: float, granted_at: float) -> Noted:
        held = ((granted_at + 0.5, 10 * GB),)
        name = replace(plan, name=f"eval{number}")
        return Noted(name, f"run-{number}", requested_at, granted_at, granted_at + 20.3, held)

    runs = [noted(0, 100.0, 100.0), noted(1, 100.5, 100.5), noted(2, 101.0, 120.3)]
    story = replay(world_of(runs, 64 * GB, 4 * GB), Gated())
    starts = [attempt.granted_at + 99 for attempt in story.attempts]
    assert starts == pytest.approx([run.granted_at for run in runs], abs=0.3)
    assert story.ended_at + 99 == pytest.approx(runs[-1].finished_at, abs=0.5)


def test_the_table_of_rules_left_out_compares_with_the_oracle() -> None:
    """A wait twice the oracle's is 2.00, and the oracle's own is 1.00."""
    some = world(*(job(f"job-{n}", 1 + n, 60, [(1, 20)]) for n in range(3)))
    oracle = figures_of(replay(some, Oracle()))
    slow = replace(oracle, wait_mean_s=2 * oracle.wait_mean_s)
    text = without_table({"here": {ORACLE: oracle, "slow": slow}})
    assert "| oracle | 1.00 | 1.00 | 1.00 |" in text
    assert "| slow | 2.00 | 1.00 | 1.00 |" in text
