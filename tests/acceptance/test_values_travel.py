"""Inputs and outputs of a run: by value, in files, and without a second copy in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.real_server import Served
from tests.kit.user_notebook import UserNotebook

MB = 1 << 20
BIG_MB = 300
#: What a process needs beside the arrays: what it imports, and buffers of files.
ELSE_MB = 64
#: How far this process's memory has grown at most since `start`; the kernel keeps the mark.
MARK = """
import re
def memory(name):
    return int(re.search(name + r":\\s*(\\d+)", open("/proc/self/status").read())[1]) >> 10
def start():
    with open("/proc/self/clear_refs", "w") as mark:
        mark.write("5")
    return memory("VmRSS")
"""


@pytest.fixture(scope="module")
def notebook(shared_server: Served) -> Iterator[UserNotebook]:
    """One notebook for all tests here: no run needs what an earlier one did."""
    opened = UserNotebook(shared_server)
    yield opened
    opened.close()


@pytest.fixture
def data(shared_server: Served) -> Path:
    """Where values are staged, below the user's data folder."""
    return shared_server.places.root / "data" / "gpugate"


def newest(server: Served, name: str) -> dict[str, Any]:
    """The newest run of this name."""
    row: dict[str, Any] = server.ask("GET", f"/runs?name={name}").json["runs"][0]
    return server.run(row["run_id"])


def test_a_large_array_is_never_in_memory_twice(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """On its way in and out an array costs each process its own size and a small constant."""
    notebook.run(f"{MARK}\nimport numpy as np\nx = np.arange({BIG_MB} << 17)\nbefore = start()")
    notebook.run(
        f"%%gated_eval large --input x --output y,mapped,peak\n{MARK}\nimport numpy as np\n"
        "mapped = memory('RssAnon')\ntotal = int(x.sum())\nmapped = memory('RssAnon') - mapped\n"
        "y = x + 1\npeak = memory('VmHWM')"
    )
    assert notebook.value("memory('VmHWM') - before") < ELSE_MB
    assert notebook.value("mapped") < ELSE_MB
    assert notebook.value("peak") < 2 * BIG_MB + ELSE_MB
    assert newest(shared_server, "large")["peaks"]["ram"] < (BIG_MB + ELSE_MB) * MB
    assert notebook.value("bool((y == x + 1).all())")
    notebook.run("y[0] = 7; x = y = None")


def test_values_are_files_of_the_run_and_no_part_of_the_request(
    shared_server: Served, notebook: UserNotebook, data: Path
) -> None:
    """The request names the inputs; their bytes are the run's from its submit to its end."""
    notebook.run("import numpy as np\nx, small = np.ones(10_000_000), [1]")
    notebook.run(
        "%%gated_eval files --input x,small --output y,found\n"
        "import os\ny = x * 2\ninputs = os.path.abspath(f'{__file__}/../../../inputs')\n"
        "found = {e.name: (e.stat().st_size, e.stat().st_mode) for e in os.scandir(inputs)}"
    )
    folder = Path(newest(shared_server, "files")["directory"])
    staged = notebook.value("found")
    assert set(staged) == {"x.pickle", "x.buffers", "small.pickle"}
    assert staged["x.buffers"][0] > 80_000_000
    assert staged["x.pickle"][0] < 1000
    assert {mode & 0o777 for _, mode in staged.values()} == {0o600}
    assert not (folder / "inputs").exists()
    results = {path.name for path in (folder / "attempts" / "1").glob("result.*")}
    assert results == {"result.y.0.pickle", "result.y.0.buffers", "result.found.0.pickle"}
    assert len((folder / "spec.json").read_bytes()) < 256 << 10
    assert list((data / "staging").iterdir()) == []


ARRAYS = """
import numpy as np
base = np.arange(60_000.0).reshape(200, 300)
fixed = base.copy()
fixed.flags.writeable = False
values = {
    "many": [np.full(20_000, n, dtype=np.int32) for n in range(300)],
    "transposed": base.T, "strided": base[::2, ::3], "fixed": fixed, "empty": np.zeros((0, 3)),
    "records": np.zeros(20_000, dtype=[("a", "i4"), ("b", "f8")]), "words": np.array(["a", None]),
    "bytes": bytes(100_000), "bytearray": bytearray(100_000),
}
"""


def test_arrays_of_every_kind_come_through_both_ways(notebook: UserNotebook) -> None:
    """A few hundred arrays, views, records and one that is read-only arrive as they were."""
    notebook.run(ARRAYS + "given = values")
    notebook.run(
        "%%gated_eval arrays --input given --output back\n"
        "given['transposed'][0, 0] += 0\nback = given"
    )
    notebook.run("""
import numpy as np
for name, value in values.items():
    np.testing.assert_array_equal(np.asarray(back[name]), np.asarray(value), err_msg=name)
    assert type(back[name]) is type(value), name
assert back["records"].dtype == values["records"].dtype
assert [a.flags.writeable for a in (back["fixed"], back["transposed"])] == [False, True]
""")


def test_tensors_come_through_both_ways(shared_server: Served, notebook: UserNotebook) -> None:
    """Tensors keep their numbers, types and gradients; large ones are mapped as arrays are."""
    notebook.run("""
import torch
torch.manual_seed(0)
model = torch.nn.Linear(300, 300)
given = {"half": torch.ones(3, dtype=torch.bfloat16), "view": torch.arange(6).view(2, 3).t(),
         "grad": torch.ones(2, requires_grad=True), "large": torch.rand(100_000)}
""")
    notebook.run(
        "%%gated_eval tensors --input given,model --output back,trained\nimport torch\n"
        "model(torch.ones(1, 300)).sum().backward()\nback, trained = given, model"
    )
    notebook.run("""
for name, tensor in given.items():
    assert torch.equal(back[name], tensor), name
    assert (back[name].dtype, back[name].requires_grad) == (tensor.dtype, tensor.requires_grad)
    assert back[name].device.type == "cpu"
assert torch.equal(trained.weight, model.weight) and type(trained.weight) is torch.nn.Parameter
""")
    attempt = Path(newest(shared_server, "tensors")["directory"], "attempts", "1")
    assert (attempt / "result.trained.0.buffers").stat().st_size > 300 * 300 * 4


def test_with_several_workers_an_output_is_a_list_by_worker(notebook: UserNotebook) -> None:
    """Each worker hands back its own value, large ones too, in the order of the workers."""
    notebook.run(
        "%%gated_eval several --workers 3 --output a,w\nimport numpy as np\n"
        "a, w = np.full(50_000, worker), worker"
    )
    assert notebook.value("[w, [int(x[-1]) for x in a], len(a[0])]") == [[0, 1, 2]] * 2 + [50_000]


def test_what_notebook_and_cell_define_travels_with_its_class(notebook: UserNotebook) -> None:
    """With cloudpickle, instances and functions arrive where their classes are not defined."""
    notebook.run(
        "class Point:\n    def __init__(self, x): self.x = x\n"
        "    def moved(self): return Point(self.x + 1)\n"
        "point, scale = Point(1), lambda n: 10 * n"
    )
    notebook.run(
        "%%gated_eval classes --input point,scale --output there,made\n"
        "class Score:\n    def __init__(self, n): self.n = n\n"
        "    def doubled(self): return 2 * self.n\n"
        "there, made = point.moved(), Score(scale(2))"
    )
    assert notebook.value("[there.x, there.moved().x, made.doubled()]") == [2, 3, 40]


CANNOT = {
    "an open file": (
        "x = open('/dev/null')",
        "TypeError: an open file cannot be copied to another",
    ),
    "a lock": ("import threading\nx = [threading.Lock()]", "TypeError"),
    "a generator": ("x = (n for n in [1])", "TypeError"),
    "a class of its own mind": (
        "class A:\n    def __reduce__(self): raise RuntimeError('not me')\nx = A()",
        "RuntimeError: not me",
    ),
}


@pytest.mark.parametrize(("source", "why"), CANNOT.values(), ids=CANNOT)
def test_an_input_that_cannot_travel_is_named(
    notebook: UserNotebook, data: Path, source: str, why: str
) -> None:
    """The one line names the value, says why and what to do; nothing is queued, nothing stays."""
    notebook.run(f"fine = bytearray(100_000)\n{source}")
    told = notebook.refused("%%gated_eval inputs --input fine,x\nx")
    assert told.startswith(f"--input x: `x` cannot be given to a run ({why}")
    assert told.endswith("build it in the cell instead")
    assert list((data / "staging").iterdir()) == []


def test_a_disk_that_is_full_leaves_nothing_behind(
    shared_server: Served, notebook: UserNotebook, data: Path
) -> None:
    """Where an input does not fit on the disk, one line says which and where; no part of it stays.

    A limit on the size of files fails as a full disk does, and needs no disk to be filled.
    """
    notebook.run(
        "import resource\nx = bytearray(3_000_000)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))"
    )
    told = notebook.refused("%%gated_eval full --input x\nx")
    place = data / "staging"
    assert told == f"--input x: `x` cannot be written to {place}: File too large"
    assert list(place.iterdir()) == []
    text = notebook.fails("%%gated_eval full --output y\ny = [bytearray(3_000_000)]").traceback
    assert "OSError: output `y` cannot be written: File too large" in text
    assert "gpugate_programs" not in text
    attempt = Path(newest(shared_server, "full")["directory"], "attempts", "1")
    assert not list(attempt.glob("*result.*"))
    notebook.run("resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))")


def test_an_output_that_cannot_travel_takes_no_other_with_it(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """Of a run that fails by one of its outputs the handle still has the others."""
    shown = notebook.fails(
        "%%gated_eval partly --output lock,score\nimport threading\n"
        "lock, score = threading.Lock(), 0.97"
    )
    assert "output `lock` (_thread.lock) cannot be stored" in shown.traceback
    assert "`.values()` of this run has score" in shown.traceback
    run_id = newest(shared_server, "partly")["run_id"]
    notebook.run("import jupyter_gpugate")
    assert notebook.value(f'jupyter_gpugate.get("{run_id}").values()') == {"score": 0.97}


def test_outputs_outlive_the_run_that_made_them(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """A mapped value stays whole in the notebook after its run has been deleted."""
    notebook.run("%%gated_eval gone --output y\nimport numpy as np\ny = np.arange(1_000_000)")
    run = newest(shared_server, "gone")
    assert shared_server.ask("DELETE", f"/runs/{run['run_id']}").status == 200
    assert not Path(run["directory"]).exists()
    assert notebook.value("int(y.sum())") == sum(range(1_000_000))
