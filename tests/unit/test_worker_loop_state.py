"""Loops over episodes that may be resumed, and those that carry something on."""

from __future__ import annotations

import ast
import textwrap

import pytest

from jupyter_gpugate.programs.worker.loop_state import carried

CARRIES_NOTHING = {
    "keeps alone": """
        for e in episodes:
            e.keep(run(e.index))
        """,
    "values after the loop": """
        model = load()
        for e in tqdm(episodes, total=len(episodes)):
            scores = [model(x) for x in batches(e.index)]
            best = max(scores)
            print(e.index, best)
            e.keep(best)
        result = [x for x in episodes.values]
        """,
    "bound on every branch": """
        for e in episodes:
            if e.index % 2:
                score = 1
            else:
                score = 2
            e.keep(score)
        """,
    "bound or skipped": """
        for e in episodes:
            try:
                score = run(e)
            except ValueError as error:
                print(error)
                e.keep(None)
                continue
            e.keep(score)
        """,
    "a list of its own": """
        for e in episodes:
            found = []
            for x in range(3):
                found.append(x)
                counts = {}
                counts[x] = 1
            e.keep(found)
        """,
    "bound anew after the loop": """
        for e in episodes:
            for i in range(3):
                step(i)
            e.keep(i_of(e))
        for i in range(2):
            print(i)
        """,
    "a file of its own": """
        for e in episodes:
            with open("log", "a") as log:
                log.write(str(e.index))
            e.keep(0)
        """,
    "a module's function": """
        import numpy as np
        for e in episodes:
            e.keep(np.append([1], e.index))
        """,
    "a walrus": """
        for e in episodes:
            if (n := run(e)) > 3:
                print(n)
            e.keep(n)
        """,
    "no loop at all": "x = 1",
}
CARRIES_SOMETHING = {
    "a sum": ("total = 0\nfor e in episodes:\n    total += 1\n    e.keep(1)", "`total` (line 3)"),
    "a list": ("out = []\nfor e in episodes:\n    out.append(1)\n    e.keep(1)", "`out` (line 3)"),
    "an item": ("out = {}\nfor e in episodes:\n    out[e.index] = 1", "`out` (line 3)"),
    "an attribute": ("for e in episodes:\n    model.seen = e.index", "`model` (line 2)"),
    "a greatest": ("b = 0\nfor e in episodes:\n    b = max(b, 1)", "`b` (line 3)"),
    "the last one": (
        "for e in episodes:\n    last = 1\n    e.keep(1)\nprint(last)",
        "`last` (line 4)",
    ),
    "the loop's own name": ("for e in episodes:\n    e.keep(1)\nprint(e.index)", "`e` (line 3)"),
    "bound on one branch": (
        "for e in episodes:\n    if e.index:\n        s = 1\n    e.keep(s)",
        "`s`",
    ),
    "training": ("for e in episodes:\n    optimizer.step()\n    e.keep(1)", "`optimizer`"),
    "an open file": ("for e in episodes:\n    log.write('x')", "`log`"),
    "enumerate": ("for i, e in enumerate(episodes):\n    e.keep(i)", "line 1 uses `episodes`"),
    "a comprehension": ("r = [run(e) for e in episodes]", "line 1 uses `episodes`"),
    "a list of all": ("es = list(episodes)", "line 1 uses `episodes`"),
    "a global": ("def f():\n    global n\n    n = 1\nfor e in episodes:\n    f()", "global `n`"),
    "two loops": (
        "for e in episodes:\n    warm()\nfor e in episodes:\n    e.keep(1)",
        "second loop",
    ),
    "a deletion": ("for e in episodes:\n    del cache[e.index]", "`cache`"),
}


@pytest.mark.parametrize("source", CARRIES_NOTHING.values(), ids=CARRIES_NOTHING)
def test_a_loop_that_only_keeps_values_may_be_resumed(source: str) -> None:
    """A loop whose iterations leave nothing behind but kept values may leave episodes out."""
    assert carried(ast.parse(textwrap.dedent(source))) == ""


@pytest.mark.parametrize(("source", "named"), CARRIES_SOMETHING.values(), ids=CARRIES_SOMETHING)
def test_a_loop_that_carries_something_must_start_anew(source: str, named: str) -> None:
    """A loop that carries anything else from one episode to the next is named with its line."""
    assert named in carried(ast.parse(source))
