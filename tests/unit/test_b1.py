"""The benchmark of decisions still runs, and counts what does not vary."""

from __future__ import annotations

from tests.benchmarks import b1_decisions


def test_a_turn_without_news_costs_the_same_whatever_waits() -> None:
    """As many Python calls with 400 queued as with 40, and each kind of tick as it says."""
    result = b1_decisions.run(sizes=(40, 400), rounds=2)
    calls = result["calls_when_nothing_happened"]
    assert calls[40] == calls[400]
    grants = {name: tick["grants"][400] for name, tick in result["ticks"].items()}
    assert grants == {"nothing fits": 0, "some fit": 2, "all edited": 2, "all different": 0}
    groups = {name: tick["groups"] for name, tick in result["ticks"].items()}
    assert groups["nothing fits"] == groups["all edited"] == {40: 40, 400: 60}
    assert groups["all different"] == {40: 40, 400: 400}
