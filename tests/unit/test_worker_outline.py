"""The statements of a cell that a started process executes for a name."""

from __future__ import annotations

import textwrap

import pytest

from jupyter_gpugate.programs.worker.outline import Outline
from jupyter_gpugate.programs.worker.statements import thinned_block

CELL = """
    from __future__ import annotations
    import json, os, torch
    from collections import namedtuple
    from dataclasses import dataclass
    torch.manual_seed(SEED)
    SEED = 7
    os.environ["MODE"] = "fast"
    torch.set_num_threads(1)
    torch.multiprocessing.set_start_method("spawn")
    print("begins", table)
    Point = namedtuple("Point", "x y")
    config = json.load(open("config.json"))
    config["more"] = 1
    model = build(config)
    model.eval()
    first = model.layers[0]
    first.reset()
    history = train(model)
    scores = [1, 2]
    table = {}
    for row in scores:
        table[row] = row
    registry = {}
    def register(function):
        registry[function.__name__] = function
        return function
    @register
    def one(x):
        return x
    def start():
        global connection
        connection = connect()
    start()
    if fast:
        limit = 3
    else:
        limit, other = 4, heavy()
    try:
        import quick
    except ImportError:
        quick = slow()
        print("slow")
    with open("log", "w") as log:
        log.write("x")
    @dataclass
    class Kept:
        point: Point
    def predict(x):
        return model(x)
    def small(x, model=None):
        table = x
        return table + LATE
    def looks(x):
        return table[x], limit
    def calls(name):
        return registry[name], connection
    def anything(name):
        return globals()[name]
    LATE = 5
    if (depth := len(scores)) > 1:
        deep = depth
    def dives(x):
        return depth
    pool = torch.multiprocessing.Pool()
    pool.map(small, scores)
    """


def executed(name: str) -> str:
    """Return the source that is executed for ``name``."""
    outline = Outline(textwrap.dedent(CELL), "cell.py")
    chosen = {part.node for part in outline.needed(name)[0]}
    lines = textwrap.dedent(CELL).splitlines()
    statements = thinned_block(outline.tree.body, chosen)
    assert [node.lineno for node in statements] == sorted(node.lineno for node in statements)
    found = [n for part in outline.parts if part.node in chosen for n in [part.node]]
    return "\n".join("\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in found)


@pytest.mark.parametrize(
    ("name", "there", "not_there"),
    [
        (
            "small",
            ["LATE = 5"],
            ["model =", "table = {}", "scores", "pool", "limit", "log", "print"],
        ),
        ("Kept", ["Point ="], ["model =", "open("]),
        ("Point", ["Point ="], ["model =", "open("]),
        (
            "predict",
            [
                "config = ",
                'config["more"]',
                "model = ",
                "model.eval",
                "first.reset",
                "train(model)",
            ],
            ["table[row]", "pool", "\nstart()", "print"],
        ),
        ("looks", ["table = {}", "for row", "scores =", "limit = 3", "limit, other"], ["model ="]),
        ("calls", ["registry = {}", "\nstart()"], ["model =", "pool", "slow()"]),
        ("quick", ["import quick", "quick = slow()"], ['print("slow")']),
        ("anything", ["model =", "pool.map", "print", "log.write"], []),
        ("dives", ["if (depth :=", "scores ="], ["model ="]),
        ("nothing", [], ["model =", "pool", "print", "log", "limit", "\nstart()", "slow()"]),
    ],
)
def test_a_name_brings_what_makes_and_what_changes_what_it_reads(
    name: str, there: list[str], not_there: list[str]
) -> None:
    """Nothing else of the cell is executed, but for imports, settings and definitions."""
    source = executed(name)
    always = ["import json", "manual_seed", "SEED = 7", "os.environ", "set_num_threads", "def one"]
    assert [text for text in [*always, *there] if text not in source] == []
    assert "set_start_method" not in source or name == "anything"
    definitions = [line for line in source.splitlines() if line.startswith(" ")]
    statements = "\n".join(line for line in source.splitlines() if line not in definitions)
    assert [text for text in not_there if text in statements] == []
