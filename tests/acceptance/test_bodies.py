"""What a cell may do in a run: processes of its own, and episodes over several attempts."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.controlled_runs import processes_of
from tests.kit.real_server import Served, until
from tests.kit.user_notebook import UserNotebook

MB = 1 << 20


@pytest.fixture(scope="module")
def notebook(shared_server: Served) -> Iterator[UserNotebook]:
    """One notebook for all tests here: no run needs what an earlier one did."""
    opened = UserNotebook(shared_server)
    yield opened
    opened.close()


def live_run(server: Served, name: str) -> dict[str, Any]:
    """The one run of this name that is running now."""

    def running() -> Any:
        rows = [row for row in server.queue()["running"] if row["name"] == name]
        return rows[0] if rows and rows[0]["phase"] == "running" else None

    found: dict[str, Any] = until(running, f"{name} runs")
    return found


# -- processes that a cell starts ------------------------------------------------------------------

POOL = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

class Job:
    def __init__(self, number):
        self.number = number

def work(job):
    held = bytearray(60 << 20)
    while not Path(GO).exists():
        time.sleep(0.02)
    return job.number * 2, type(job).__name__, len(held)

context = multiprocessing.get_context(METHOD)
"""
MAP = "with context.Pool(2) as pool:\n    told = pool.map(work, [Job(1), Job(2)], chunksize=1)\n"
SUBMIT = """
with ProcessPoolExecutor(2, mp_context=context) as pool:
    told = list(pool.map(work, [Job(1), Job(2)]))
"""


@pytest.mark.behaviour(43, 49)
@pytest.mark.parametrize("use", [MAP, SUBMIT], ids=["Pool", "ProcessPoolExecutor"])
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_pool_works_in_a_cell_and_its_memory_is_the_runs(
    shared_server: Served, notebook: UserNotebook, tmp_path: Path, method: str, use: str
) -> None:
    """Workers of every kind get the cell's own classes; what they hold counts for the run."""
    go = tmp_path / "go"
    head = f"%%gated_eval pool-{method} --output told\nGO, METHOD = {str(go)!r}, {method!r}\n"
    cell = notebook.start(head + POOL + use)
    run_id = live_run(shared_server, f"pool-{method}")["run_id"]
    until(lambda: (shared_server.run(run_id)["held"] or {}).get("ram", 0) > 120 * MB, "it is held")
    go.touch()
    shown = notebook.finish(cell)
    assert shown.error is None, shown.traceback
    assert notebook.value("told") == [[2, "Job", 60 * MB], [4, "Job", 60 * MB]]
    assert shared_server.run(run_id)["peaks"]["ram"] > 120 * MB
    assert processes_of(run_id) == []


LOADER = """
import torch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.tensor(index * index), torch.utils.data.get_worker_info().id

loader = torch.utils.data.DataLoader(
    Squares(), batch_size=3, num_workers=2, multiprocessing_context=METHOD
)
told = [[x.tolist(), w.tolist()] for x, w in loader]
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_data_loader_works_in_a_cell(notebook: UserNotebook, method: str) -> None:
    """A DataLoader reads a dataset of the cell by workers of its own."""
    notebook.run(f"%%gated_eval loader-{method} --output told\nMETHOD = {method!r}\n{LOADER}")
    assert notebook.value("told") == [[[0, 1, 4], [0] * 3], [[9, 16, 25], [1] * 3]]


TORCHRUN = """
import subprocess, sys
from pathlib import Path

script = Path("ranks.py")
script.write_text('''
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
mine = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(mine)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {mine.item()}", flush=True)
dist.destroy_process_group()
''')
launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
subprocess.run([*launcher, str(script)], check=True)
"""


def test_ranks_of_torchrun_are_the_runs_own_processes(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """A launcher inside a cell starts its ranks; their output is the run's, and none is left."""
    shown = notebook.run("%%gated_eval ranks\n" + TORCHRUN)
    assert "rank 0 of 2: 3" in shown.text
    assert "rank 1 of 2: 3" in shown.text
    assert processes_of(newest(shared_server, "ranks")) == []


def newest(server: Served, name: str) -> str:
    """The id of the newest run of this name."""
    return str(server.ask("GET", f"/runs?name={name}").json["runs"][0]["run_id"])


LEFT_BEHIND = """
import os, subprocess, sys, time
from pathlib import Path

holds = "import time; held = bytearray(60 << 20); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", holds], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = bytearray(60 << 20)
        time.sleep(600)
    os._exit(0)
me = os.getpid()
session = [os.getsid(0), os.getpgid(0)]
while not Path(GO).exists():
    time.sleep(0.02)
"""


@pytest.mark.behaviour(10, 44)
def test_whoever_leaves_the_runs_session_is_still_the_runs_and_ends_with_it(
    shared_server: Served, notebook: UserNotebook, tmp_path: Path
) -> None:
    """A run has a session of its own; what left it counts for the run, and is gone at its end."""
    go = tmp_path / "go"
    head = f"%%gated_eval daemons --output me,session\nGO = {str(go)!r}\n"
    cell = notebook.start(head + LEFT_BEHIND)
    run_id = live_run(shared_server, "daemons")["run_id"]
    until(lambda: (shared_server.run(run_id)["held"] or {}).get("ram", 0) > 120 * MB, "it is held")
    go.touch()
    shown = notebook.finish(cell)
    assert shown.error is None, shown.traceback
    assert notebook.value("session") == [notebook.value("me")] * 2
    assert processes_of(run_id) == []


# -- episodes --------------------------------------------------------------------------------------


def test_workers_share_the_episodes_and_all_have_all_values_at_the_end(
    notebook: UserNotebook,
) -> None:
    """Worker w of N gets w, w + N, ...; after the loop `episodes.values` are those of all."""
    notebook.run("""%%gated_eval shares --episodes 7 --workers 3 --output mine,own,everyone
mine, own = [], []
for e in episodes:
    mine.append(e.index)
    e.keep({"index": e.index, "by": worker, "of": workers})
    own.append(len(episodes.values))
everyone = episodes.values
""")
    assert notebook.value("mine") == [[0, 3, 6], [1, 4], [2, 5]]
    assert notebook.value("own") == [[1, 2, 3], [1, 2], [1, 2]]
    kept = [{"index": index, "by": index % 3, "of": 3} for index in range(7)]
    assert notebook.value("everyone") == [kept] * 3


def test_one_failing_worker_stops_the_run_and_shows_its_own_traceback(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """The others are stopped, and the notebook shows the traceback of the one that failed."""
    shown = notebook.fails("""%%gated_eval fails --episodes 4 --workers 2
import time
for e in episodes:
    if worker == 1:
        raise ValueError(f"worker {worker} at episode {e.index}")
    time.sleep(600)
""")
    assert "ValueError: worker 1 at episode 1" in shown.traceback
    assert "----> 5         raise ValueError" in shown.traceback
    assert processes_of(newest(shared_server, "fails")) == []


def test_a_cell_that_never_iterates_is_one_episode(
    shared_server: Served, notebook: UserNotebook
) -> None:
    """A body without a loop counts as one episode; where more were asked for, the card warns."""
    shown = notebook.run("%%gated_eval once --episodes 5\nprint('done')")
    assert "never iterates over `episodes`: the run counts as one episode" in shown.text
    row = shared_server.run(newest(shared_server, "once"))
    assert (row["episodes"]["done"], len(row["warnings"])) == (1, 1)
    assert "warning" not in notebook.run("%%gated_eval once\nprint('done')").text


KEEPS = """
for e in episodes:
    note(e.index)
    e.keep(e.index ** 2)
"""
ACCUMULATES = """
total = 0
for e in episodes:
    note(e.index)
    total += e.index
    e.keep(e.index ** 2)
"""
KEEPS_SOME = """
for e in episodes:
    note(e.index)
    if e.index != 1:
        e.keep(e.index ** 2)
"""
#: Notes each episode it begins, and holds the first attempt in episode 3.
NOTE = """
import os, time
from pathlib import Path
def note(index):
    with Path(NOTES).open("a") as file:
        file.write(f"{os.environ['GPUGATE_ATTEMPT']}:{index} ")
    while index == 3 and os.environ["GPUGATE_ATTEMPT"] == "1":
        time.sleep(0.02)
"""


def evict(server: Served, name: str) -> None:
    """Stop a live run as an eviction does: its supervisor learns why, and it queues again."""
    row = live_run(server, name)
    attempt = Path(server.run(row["run_id"])["directory"], "attempts", "1")
    draft = attempt / "stop.json.new"
    draft.write_text(json.dumps({"reason": "evicted"}))
    draft.replace(attempt / "stop.json")
    os.kill(row["pid"], signal.SIGTERM)


def disturbed(server: Served, notebook: UserNotebook, body: str, notes: Path) -> tuple[str, str]:
    """Run a body that is evicted in its episode 3: what the card says, and the noted episodes."""
    head = "%%gated_eval again --episodes 5 --output values,total\nvalues = total = None\n"
    tail = "values, total = episodes.values, globals().get('total')"
    cell = notebook.start(f"{head}NOTES = {str(notes)!r}\n{NOTE}{body}{tail}")
    until(lambda: notes.exists() and "1:3" in notes.read_text(), "episode 3 has begun")
    evict(server, "again")
    shown = notebook.finish(cell)
    assert shown.error is None, shown.traceback
    return shown.text, notes.read_text()


FIRST = "1:0 1:1 1:2 1:3 "
ANEW = FIRST + "2:0 2:1 2:2 2:3 2:4 "


def test_a_run_goes_on_where_its_kept_values_end(
    shared_server: Served, notebook: UserNotebook, tmp_path: Path
) -> None:
    """The second attempt does the rest alone, and its values are those of both attempts."""
    card, noted = disturbed(shared_server, notebook, KEEPS, tmp_path / "notes")
    assert noted == FIRST + "2:3 2:4 "
    assert notebook.value("values") == [0, 1, 4, 9, 16]
    assert "starts again" not in card


@pytest.mark.parametrize(
    ("body", "values", "total", "why"),
    [
        (ACCUMULATES, [0, 1, 4, 9, 16], 10, "`total`"),
        (KEEPS_SOME, [0, 4, 9, 16], None, "an episode ended without `keep`"),
    ],
    ids=["an accumulator", "an episode not kept"],
)
def test_a_run_that_carries_more_than_kept_values_starts_again_and_says_so(
    shared_server: Served,
    notebook: UserNotebook,
    tmp_path: Path,
    body: str,
    values: list[int],
    total: int | None,
    why: str,
) -> None:
    """A second attempt comes to the same result as an undisturbed one, and the card says how."""
    card, noted = disturbed(shared_server, notebook, body, tmp_path / "notes")
    assert noted == ANEW
    assert notebook.value("values") == values
    assert notebook.value("total") == total
    assert re.search(rf"the run starts again at episode 0: .*{why}", card)
