"""Episodes of a cell: how they are shared, kept and resumed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.integration.cell_process import CellRun

KEEPING = """
    import os, signal
    for e in episodes:
        print("episode", e.index)
        if os.environ.get("DIES_AT") == str(e.index):
            os.kill(os.getpid(), signal.SIGKILL)
        e.keep({"index": e.index, "squares": [e.index ** 2]})
    values = episodes.values
    """


def test_a_kept_value_is_on_the_disk_before_the_next_episode_begins(cell: CellRun) -> None:
    """When an episode is told as finished, its value's file is there whole and no draft is left."""
    cell.source = KEEPING
    worker = cell.start(episodes=3)
    for index in range(3):
        event = worker.next_event()
        assert event == {
            "event": "episode",
            "worker": 0,
            "index": index,
            "kept": True,
            "done": index + 1,
        }
        names = {p.name for p in (cell.directory / "attempts/1/episodes").iterdir()}
        assert f"{index}.pickle" in names
    assert worker.ended().code == 0
    assert sorted(p.name for p in (cell.directory / "attempts/1/episodes").iterdir()) == [
        "0.pickle",
        "1.pickle",
        "2.pickle",
        "ended.0",
    ]


def test_a_resumed_run_goes_on_and_ends_as_if_undisturbed(any_python: CellRun) -> None:
    """Kept episodes are not run again, over two interruptions, and the values are the same."""
    any_python.source = KEEPING
    facts: dict[str, Any] = {"episodes": 5, "outputs": ["values"]}
    any_python.run(**facts)
    undisturbed = any_python.result("values")
    seen = []
    before = None
    for dies_at in ("2", "4", ""):
        any_python.environment = {"DIES_AT": dies_at}
        ended = any_python.run(resume_from=before, **facts)
        assert ended.code == (-signal.SIGKILL if dies_at else 0), ended.stderr
        seen += ended.stdout.splitlines()
        before = f"attempts/{any_python.number}"
    assert any_python.result("values") == undisturbed
    assert seen == [f"episode {i}" for i in (0, 1, 2, 2, 3, 4, 4)]
    assert ended.of("episode")[-1]["done"] == 5
    assert ended.of("warning") == []


def test_a_run_whose_episodes_were_all_kept_ends_at_once(cell: CellRun) -> None:
    """A resumed run with nothing left to do runs no episode and gives all values."""
    cell.source = KEEPING
    cell.run(episodes=3)
    ended = cell.run(episodes=3, resume_from="attempts/1", outputs=["values"])
    assert ended.stdout == ""
    assert (ended.code, ended.of("episode")) == (0, [])
    assert [value["index"] for value in cell.result("values")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("total = 0\nfor e in episodes:\n    total += e.index\n    die(e)\n", "without `keep`"),
        (
            "total = 0\nfor e in episodes:\n    e.keep(0)\n    die(e)\n    total += e.index\n",
            "`total`",
        ),
        (
            "total = 0\nfor e in episodes:\n die(e)\n total += e.index\n e.index % 2 or e.keep(0)",
            "without `keep`",
        ),
    ],
    ids=["nothing kept", "all kept beside an accumulator", "one not kept"],
)
def test_an_accumulator_outside_keep_gives_the_same_result_as_undisturbed(
    cell: CellRun, source: str, why: str
) -> None:
    """A run that carries anything but kept values starts again at episode 0, and says why."""
    cell.source = (
        "import os\ndef die(e):\n    if os.environ.get('DIES_AT') == str(e.index):\n"
        f"        os.kill(os.getpid(), 9)\n{source}"
    )
    cell.environment = {"DIES_AT": "3"}
    assert cell.run(episodes=5).code == -signal.SIGKILL
    cell.environment = {}
    ended = cell.run(episodes=5, resume_from="attempts/1", outputs=["total"])
    assert cell.result("total") == 10
    (warning,) = ended.of("warning")
    assert warning["text"].startswith("the run starts again at episode 0")
    assert why in warning["text"]


def test_a_run_whose_earlier_attempt_is_torn_starts_anew(cell: CellRun) -> None:
    """An attempt that cannot be read is no reason to fail: all episodes are run, with a word."""
    cell.source = KEEPING
    cell.run(episodes=2)
    (cell.directory / "attempts/1/launch.json").write_text('{"work')
    ended = cell.run(episodes=2, resume_from="attempts/1")
    assert ended.stdout.splitlines() == ["episode 0", "episode 1"]
    (warning,) = ended.of("warning")
    assert "an earlier attempt cannot be read" in warning["text"]


def test_workers_share_the_episodes_and_all_get_all_values(cell: CellRun) -> None:
    """Worker w of N has w, w + N, ...; after its loop each sees everybody's values in order."""
    cell.source = """
        mine = []
        for e in episodes:
            mine.append(e.index)
            e.keep(e.index * 10)
            assert episodes.values == [i * 10 for i in mine]
        values = episodes.values
        assert len(episodes) == len(mine)
        """
    ended = cell.run_all(workers=3, episodes=7, outputs=["mine", "values"])
    assert [one.code for one in ended] == [0, 0, 0], [one.stderr for one in ended]
    assert [cell.result("mine", w) for w in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [cell.result("values", w) for w in range(3)] == [[i * 10 for i in range(7)]] * 3


def test_workers_resume_together(cell: CellRun) -> None:
    """What any worker kept is not run again, and the values are everybody's."""
    cell.source = KEEPING
    directory = cell.attempt(workers=2, episodes=6)
    cell.environment = {"DIES_AT": "3"}
    survivor, victim = cell.start(0, directory), cell.start(1, directory)
    assert victim.ended().code == -signal.SIGKILL
    assert [survivor.next_event()["index"] for _ in range(3)] == [0, 2, 4]
    survivor.kill()  # it waits for the other's end, as its supervisor would see
    cell.environment = {}
    ended = cell.run_all(workers=2, episodes=6, resume_from="attempts/1", outputs=["values"])
    assert [one.stdout.split() for one in ended] == [[], ["episode", "3", "episode", "5"]]
    for worker in range(2):
        assert [v["index"] for v in cell.result("values", worker)] == list(range(6))


def test_a_cell_without_a_loop_is_one_episode(cell: CellRun) -> None:
    """A cell that never iterates counts as one, of worker 0; a warning says if more were asked."""
    cell.source = "x = 1"
    first, second = cell.run_all(workers=2, episodes=100)
    assert [(e["index"], e["done"]) for e in first.of("episode")] == [(0, 1)]
    (warning,) = first.of("warning")
    assert "100" in warning["text"]
    assert second.of("episode") == second.of("warning") == []
    assert cell.run(episodes=1).of("warning") == []


def test_an_episode_left_by_break_is_counted_and_no_more(cell: CellRun) -> None:
    """``break`` ends the episode it stands in; those after it are not done, and that is said."""
    cell.source = "for e in episodes:\n    e.keep(1)\n    if e.index == 1: break"
    ended = cell.run(episodes=5)
    assert [e["done"] for e in ended.of("episode")] == [1, 2]
    (warning,) = ended.of("warning")
    assert "left after 2 of 5 episodes" in warning["text"]
    assert cell.run(episodes=2).of("warning") == []


def test_an_episode_that_raised_is_not_done(cell: CellRun) -> None:
    """The episode that an error ended is not told as finished."""
    cell.source = "for e in episodes:\n    if e.index == 1: raise ValueError"
    ended = cell.run(episodes=3)
    assert ended.code == 1
    assert [(e["index"], e["kept"]) for e in ended.of("episode")] == [(0, False)]


def test_values_of_the_cells_own_classes_come_back_as_themselves(cell: CellRun) -> None:
    """A kept instance of a class of the cell is of that very class again after a resume."""
    cell.source = """
        import os
        class Score:
            def __init__(self, x): self.x = x
        for e in episodes:
            if os.environ.get("DIES_AT") == str(e.index):
                os.kill(os.getpid(), 9)
            e.keep(Score(e.index))
        same = all(type(s) is Score for s in episodes.values)
        """
    cell.environment = {"DIES_AT": "1"}
    cell.run(episodes=2)
    cell.environment = {}
    cell.run(episodes=2, resume_from="attempts/1", outputs=["same"])
    assert cell.result("same") is True


def test_a_value_that_cannot_be_kept_is_named_by_its_episode(cell: CellRun) -> None:
    """``keep`` of something that has no pickled form raises in the cell and leaves no file."""
    cell.source = "import threading\nfor e in episodes:\n    e.keep(threading.Lock())"
    ended = cell.run()
    assert ended.error["ename"] == "TypeError"
    assert "the value of episode 0 cannot be kept" in ended.error["evalue"]
    assert list((cell.directory / "attempts/1/episodes").iterdir()) == []
