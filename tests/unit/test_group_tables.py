"""The table of a group in text and HTML."""

from __future__ import annotations

from typing import Any

from jupyter_gpugate.faces import card, groups

MB = 1 << 20
GROUP = "g20260914-101502-kqzfa"


def run(batch: int, **fields: Any) -> dict[str, Any]:
    """A row of the group."""
    return {
        "run_id": f"20260914-101502-{batch:05}",
        "name": "sweep",
        "parameters": {"lr": "0.1", "batch": str(batch)},
        "status": "ended",
        "attempt": 1,
        "episodes": {"done": 1, "of": 1},
        **fields,
    }


def group(*runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A group of these runs."""
    counts: dict[str, int] = {}
    for row in runs:
        key = row.get("end") or row["status"]
        counts[key] = counts.get(key, 0) + 1
    return {
        "group": GROUP,
        "name": "sweep",
        "status": "active",
        "counts": counts,
        "runs": list(runs),
        **fields,
    }


def test_a_row_says_what_the_run_waits_for_holds_or_gave() -> None:
    """Parameters in which the runs differ have columns; those that all share are in the title."""
    waits = {"kind": "fit", "message": "needs 5 MB"}
    charges, peaks = {"ram": 300 * MB, "GPU-1": 40 * MB}, {"ram": 20 * MB, "GPU-1": 30 * MB}
    shown = group(
        run(8, end="completed", last_line="score 0.9", peaks=peaks, charges=charges),
        run(16, end="failed", error="ValueError: no", last_line="Traceback"),
        run(32, end="oom", oom_evidence="own_cap", attempt=2),
        run(64, status="active", phase="running", last_line="step 3", charges=charges),
        run(128, status="queued", attempt=0, reasons=[waits]),
        at_most=2,
    )
    head, *rows = groups.rows(shown)
    memory = ["RAM, peak of reserved", "VRAM, peak of reserved"]
    assert head == ["run", "batch", "state", *memory, "result"]
    assert [row[1] for row in rows] == ["8", "16", "32", "64", "128"]
    assert rows[0][2:] == ["completed", "20 of 300 MB", "30 of 40 MB", "score 0.9"]
    assert rows[1][2:] == ["failed", "", "", "ValueError: no"]
    assert rows[2][2:] == [
        "out of memory, attempt 2",
        "",
        "",
        "out of memory: it reached its own limit",
    ]
    assert rows[3][2:] == ["running", "0 of 300 MB", "0 of 40 MB", "step 3"]
    assert rows[4][2:] == ["waiting", "", "", "needs 5 MB"]
    counted = "5 runs: 1 active, 1 waiting, 1 completed, 1 failed, 1 out of memory"
    assert groups.summary(shown) == counted
    text = groups.text(shown, "a note")
    assert text.splitlines()[0] == f"sweep lr=0.1 · {counted} · {GROUP}"
    assert "at most 2 at a time" in text
    assert f"`jupyter gpugate show {GROUP}`" in text
    assert f"%gpu_cancel {GROUP}" in text
    assert text.splitlines()[-1] == "  a note"


def test_a_run_that_could_not_start_names_the_one_that_had_to_complete_first() -> None:
    """In a table as on its card."""
    row = run(8, end="rejected", exit_reason="after: r1 failed", exit_detail="r1 failed", attempt=0)
    words = "rejected: r1, which had to complete first, failed"
    assert groups.outcome(row) == words
    assert words in card.text(row)


def test_a_group_that_was_not_submitted_whole_says_so() -> None:
    """Its submitter has said how many runs there were to be."""
    shown = group(run(8, end="completed"), size=12, status="ended")
    assert groups.summary(shown) == "1 run: 1 completed; 1 of 12 were submitted"
    assert "to stop" not in groups.text(shown)
    assert groups.summary({"group": GROUP, "name": "sweep"}) == "being submitted"


def test_what_runs_say_stays_text() -> None:
    """Names, parameters and output are escaped in a page, and move no cursor in a terminal."""
    shown = group(run(8, end="completed", last_line="<b>\x1b[2J", parameters={"x": "<i>"}))
    page = groups.html(shown)
    assert "<b>\x1b" not in page
    assert "&lt;i&gt;" in page
    assert "\x1b" not in groups.text(shown)
