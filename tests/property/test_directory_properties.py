"""Whatever stands in a run's files, a start-up reads the rest and never fails."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.scanning import Scanner

TORN, WHOLE = "20260102-030405-aaaaa", "20260102-030405-bbbbb"
STATES = {"queued", "active", "ended"}
TREE = {"boot_id": "x", "supervisor": [70, 7], "tree": [[71, 8]]}
VALID: dict[str, dict[str, Any]] = {
    "spec.json": {"run_id": TORN, "name": "eval", "submitted": 1.0, "source": "x = 'äöü'"},
    "summary.json": {"run_id": TORN, "status": "queued", "submitted": 1.0, "attempt": 0},
    "attempts/1/outcome.json": {"end": to_json(EndReport(AttemptOutcome.COMPLETED))},
    "attempts/1/tree.json": TREE,
    "attempts/1/launch.json": {"run_id": TORN, "fence": 7},
    "attempts/1/episodes.jsonl": {"event": "episode", "index": 0},
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a file of a run and what stands in it: cut short, overwritten, or of another form."""
    name = draw(st.sampled_from(sorted(VALID)))
    content = json.dumps(VALID[name]).encode()
    kind = draw(st.sampled_from(["cut", "bytes", "zeroed", "field", "json"]))
    if kind == "cut":
        return name, content[: draw(st.integers(0, len(content)))]
    if kind == "bytes":
        return name, draw(st.binary(max_size=64))
    if kind == "zeroed":  # as some file systems leave it after a power cut
        at = draw(st.integers(0, len(content)))
        return name, content[:at] + bytes(len(content) - at)
    if kind == "field":
        field = draw(st.sampled_from(sorted(VALID[name])))
        return name, json.dumps({**VALID[name], field: draw(json_values)}).encode()
    return name, json.dumps(draw(json_values)).encode()


@given(st.lists(damaged(), min_size=1, max_size=3), st.booleans())
@settings(max_examples=150)
def test_no_damage_hides_another_run_or_stops_the_start(
    damage: list[tuple[str, bytes]], is_done: bool
) -> None:
    """A damaged run is found in a usable form, or named and left; the other one is found."""
    # Nothing here is about a power cut, and syncing is what takes the time.
    with mock.patch("os.fsync"), tempfile.TemporaryDirectory() as place:
        root = Path(place, "runs")
        for run_id in (TORN, WHOLE):
            facts = {name: {**VALID[name], "run_id": run_id} for name in VALID}
            directory.create(root, run_id, facts["spec.json"], {}, facts["summary.json"])
        attempt = directory.create_attempt(root / TORN, 1, {})
        if is_done:
            (attempt / "_DONE").touch()
        for name, content in damage:
            (root / TORN / name).write_bytes(content)

        scan = Scanner(root).scan()

        assert WHOLE in [found.run_id for found in scan.runs]
        for found in scan.runs:
            assert found.summary["status"] in STATES
            assert isinstance(found.summary["attempt"], int)
            assert math.isfinite(found.summary["submitted"])
            assert found.attempt == (1 if found.run_id == TORN else 0)
            assert all(field in found.spec for field in ("name", "submitted", "run_id"))
        unread = [trouble for trouble in scan.troubles if trouble.path == root / TORN]
        assert len(scan.runs) + len(unread) == 2
        assert sorted(path.name for path in root.iterdir()) == [TORN, WHOLE]
        check_attempt(root / TORN, attempt, is_done)
        again = Scanner(root).scan()
        assert [found.run_id for found in again.runs] == [found.run_id for found in scan.runs]


def check_attempt(run: Path, attempt: Path, is_done: bool) -> None:
    """Read all that a start reads of an attempt: every answer has the form that it promises."""
    outcome = directory.outcome_of(attempt)
    assert (outcome is not None) == is_done
    assert outcome is None or outcome["end"]["outcome"] in {o.value for o in AttemptOutcome}
    assert isinstance(directory.launch_of(attempt), (dict, type(None)))
    assert all(len(key) == 2 for key in directory.tree_of(attempt))
    assert directory.supervisor_of(attempt) is None  # the tree is of another boot
    assert all(line["attempt"] == 1 for line in directory.read_episodes(run)[0])


def test_a_cut_spec_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    """Of a spec that a power cut left at one of its bytes, the run's other records stand in."""
    content = json.dumps(VALID["spec.json"]).encode()
    for number, length in enumerate(range(0, len(content), 3)):
        run_id = f"20260102-{number:06d}-aaaaa"
        summary = {**VALID["summary.json"], "run_id": run_id, "name": "told by the summary"}
        run = directory.create(tmp_path, run_id, {}, {}, summary)
        (run / "spec.json").write_bytes(content[:length])
    scan = Scanner(tmp_path).scan()
    assert {found.spec["name"] for found in scan.runs} == {"told by the summary"}
    assert all(found.problem for found in scan.runs)
    assert len(scan.troubles) == len(scan.runs) == len(range(0, len(content), 3))
