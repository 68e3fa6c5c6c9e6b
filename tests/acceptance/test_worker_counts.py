"""The same cell with different numbers of workers gives the same results."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.kit.real_server import Served
from tests.kit.user_notebook import UserNotebook

WORKERS = (1, 2, 3)
EPISODES = (1, 2, 5, 7)

#: Keeps a value of each episode, and computes from all of them at the end; each worker by itself
#: sees only its share, so what it adds up on the way is no result.
CELL = """
import math
for e in episodes:
    e.keep({'index': e.index, 'score': math.sqrt(e.index), 'of': params['scale'] * e.index})
found = episodes.values
mean = sum(v['score'] for v in found) / len(found)
best = max(range(len(found)), key=lambda n: found[n]['of'])
print(len(found), 'of', mean)
"""

ASK = """
import jupyter_gpugate as g
runs = {
    (workers, count): g.submit(
        cell, name=f"count{count}", workers=workers, episodes=count, gpus=0, hint_ram="64MB",
        parameters={"scale": 3}, outputs=["found", "mean", "best"],
    )
    for count in counts for workers in several
}
for run in runs.values():
    run.wait()
found = {key: run.values() for key, run in runs.items()}
kept = {key: __import__("jupyter_gpugate.client.results", fromlist=["kept"]).kept(run.state())
        for key, run in runs.items()}
"""


def one_of(value: Any, workers: int) -> Any:
    """An output that all workers agree on: with several it is a list by worker."""
    if workers == 1:
        return value
    assert len(value) == workers
    assert all(one == value[0] for one in value), value
    return value[0]


@pytest.mark.behaviour(174)
def test_the_number_of_workers_never_changes_a_result(shared_server: Served) -> None:
    """Kept values, and whatever follows from all of them, in their order; also with more workers
    than episodes.
    """
    front_end = UserNotebook(shared_server)
    front_end.run(f"cell, counts, several = {CELL!r}, {EPISODES}, {WORKERS}")
    front_end.run(ASK)
    found = front_end.value("{f'{w} {n}': v for (w, n), v in found.items()}")
    kept = front_end.value("{f'{w} {n}': v for (w, n), v in kept.items()}")
    for count, workers in itertools.product(EPISODES, WORKERS):
        alone, here = found[f"1 {count}"], found[f"{workers} {count}"]
        assert {name: one_of(value, workers) for name, value in here.items()} == alone
        assert kept[f"{workers} {count}"] == alone["found"]
        assert [value["index"] for value in alone["found"]] == list(range(count))
    front_end.close()
