"""The card of a run, in text and in HTML."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jupyter_gpugate.faces import card, words
from tests.kit.cards import MB, _Page, both, run, running

VRAM_TERM = {
    "resource": "vram",
    "holder": "run",
    "need_bytes": 2174 * MB,
    "origin": "measured",
    "peak_bytes": 2049 * MB,
    "margin_bytes": 125 * MB,
    "n": 7,
    "note": "",
}


RAM_TERM = {
    "resource": "ram",
    "holder": "run",
    "need_bytes": 3515 * MB,
    "origin": "fitted",
    "margin_bytes": 0,
    "n": 0,
    "note": "fitted over workers 1, 2, 4",
}


def test_each_number_of_the_estimate_says_where_it_comes_from() -> None:
    """A measured need shows its runs and its margin, a fitted one what it was fitted over."""
    for shown in both(run(estimate={"terms": [VRAM_TERM, RAM_TERM]})):
        assert "VRAM 2,049 MB measured, from 7 runs, plus 125 MB safety margin" in shown
        assert "RAM 3,515 MB fitted over workers 1, 2, 4" in shown


def test_a_traceback_that_is_raised_too_is_not_shown_twice() -> None:
    """What led to an error goes from the output with it; all that is no traceback stays."""
    chained = (
        "Traceback (most recent call last):\n  ...\nKeyError: 'a'\n"
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  ...\nlab.Broken: no such file\n"
    )
    error = {"ename": "Broken", "evalue": "no such file", "traceback": ["..."]}
    failed = run(status="ended", end="failed", error=error, output_tail=f"epoch 1\n{chained}")
    assert card.without_traceback(failed)["output_tail"] == "epoch 1\n"
    assert card.without_traceback({**failed, "output_tail": chained})["output_tail"] == ""
    prompt = {**failed, "output_tail": f"name? {chained}"}  # a line that was not ended
    assert card.without_traceback(prompt)["output_tail"] == "name? "
    caught = {**failed, "output_tail": f"{chained}and goes on\n"}
    assert card.without_traceback(caught) == caught
    assert (
        card.without_traceback({**failed, "error": None})["output_tail"] == (failed["output_tail"])
    )


def test_a_gap_in_the_estimate_is_called_unknown_not_zero() -> None:
    """A term without a number says so, with whatever is known instead of it."""
    gap = {"resource": "vram", "holder": "run", "need_bytes": None, "prior_bytes": 900 * MB}
    for shown in both(run(estimate={"terms": [gap]})):
        assert "VRAM unknown (an earlier version needed 900 MB)" in shown
        assert "VRAM 0" not in shown


def test_a_hint_is_named_as_the_users_own() -> None:
    """A number that nobody measured is not dressed up as a measurement."""
    hint = {"resource": "ram", "holder": "run", "need_bytes": 4096 * MB, "origin": "hint", "n": 0}
    assert "RAM 4,096 MB by your hint" in card.text(run(estimate={"terms": [hint]}))


def test_the_dominant_reason_and_the_forecast_are_shown() -> None:
    """A queued run shows its place, the first reason in the gate's words, and when it starts."""
    reasons = [
        {"kind": "fit", "message": "needs 2,174 MB of GPU 0, room is 12 MB", "numbers": {}},
        {"kind": "limits", "message": "you have too many runs", "numbers": {}},
    ]
    for shown in both(run(position=2, eta_s=250, reasons=reasons)):
        assert "waiting, number 2 in the queue" in shown
        assert "needs 2,174 MB of GPU 0, room is 12 MB" in shown
        assert "in about 4 min at the earliest" in shown
        assert "too many runs" not in shown


def test_without_a_forecast_no_time_is_promised() -> None:
    """A run whose start nobody can foresee shows no time at all."""
    assert "earliest" not in card.text(run(eta_s=None))


def test_memory_is_shown_against_the_charge_per_resource() -> None:
    """A live run shows, with a bar, what it used of reserved; what was not read is not 0."""
    for shown in both(running()):
        assert "GPU 0: 1,812 of 2,174 MB reserved" in shown
        assert "GPU 0 (NVIDIA L4)" in shown
        assert "RAM: not measured yet, 3,771 MB reserved" in shown
        assert "37 of 100" in shown
    assert re.findall(r"width:(\d+)%", card.html(running())) == ["37", "83"]


@pytest.mark.parametrize(
    ("enforcement", "effect"),
    [
        ("enforced", "enforced: exceeding it fails only this run"),
        ("advised", "passed to the framework, not enforced"),
        ("none", "not enforced"),
    ],
)
def test_the_cap_says_how_far_it_binds(enforcement: str, effect: str) -> None:
    """A cap that nobody enforces never looks like one that is enforced."""
    for shown in both(running(enforcement=enforcement)):
        assert f"GPU 0 1,900 MB ({effect}" in shown


@pytest.mark.parametrize(("held", "width"), [(0, 0), (1087, 50), (9000, 100)])
def test_a_bar_is_as_long_as_the_share_of_the_charge(held: int, width: int) -> None:
    """A run that holds more than it was charged fills its bar and does not leave it."""
    page = card.html(running(held={"GPU-1": held * MB}, episodes={}))
    assert f"width:{width}%" in page


def test_an_unmeasured_run_says_that_it_is_watched() -> None:
    """A run that was let in without a number says that its charge is provisional."""
    shown = card.text(running(basis={"GPU-1": "watch"}))
    assert "a generous reservation until it has been measured" in shown


def test_the_end_shows_its_reason_its_words_and_its_peaks() -> None:
    """A failed run shows how it ended, its exception, its warnings and the greatest it held."""
    state = running(
        status="ended",
        end="failed",
        exit_reason="time_limit",
        error={"ename": "ValueError", "evalue": "no such file", "traceback": []},
        peaks={"GPU-1": 2049 * MB},
        warnings=["the run counts as one episode"],
    )
    for shown in both(state):
        assert "failed (time limit)" in shown
        assert "ValueError: no such file" in shown
        assert "the run counts as one episode" in shown
        assert "GPU 0: 2,049 of 2,174 MB reserved" in shown
        assert "as earlier runs needed" in shown


def test_a_cancel_shows_by_what_means_it_came_and_what_is_left() -> None:
    """The end of a cancelled run names the means, the milliseconds and the survivors."""
    gone = {"means": "term + kill", "ms": 10412, "survivors": []}
    assert "by force, after it ignored the request to stop (10.41 s)" in card.text(
        run(status="ended", kill=gone)
    )
    stuck = {**gone, "survivors": [[4711, 99], 4712]}
    assert "still running: 4711, 4712" in card.text(run(status="ended", kill=stuck))


def hinted(**peaks: int) -> dict[str, Any]:
    """Return the state of a run with hints of 2,048 MB of GPU memory and 20 MB of RAM."""
    terms = [
        {"resource": "vram", "origin": "hint", "need_bytes": 2304 * MB, "margin_bytes": 256 * MB},
        {"resource": "ram", "origin": "hint", "need_bytes": 276 * MB, "margin_bytes": 256 * MB},
    ]
    held = {"GPU-1" if name == "gpu" else name: peak * MB for name, peak in peaks.items()}
    return running(status="ended", end="completed", peaks=held, estimate={"terms": terms})


@pytest.mark.parametrize(
    ("peaks", "advice"),
    [
        ({"gpu": 2048, "ram": 20}, []),
        (
            {"ram": 926},
            ["RAM 926 MB is more than your hint of 20 MB: raise it to --hint-ram 1024MB"],
        ),
        (
            {"gpu": 3000, "ram": 10},
            ["GPU 0 3,000 MB is more than your hint of 2,048 MB: raise it to --hint-vram 3200MB"],
        ),
    ],
)
def test_a_run_that_held_more_than_its_hint_says_so(
    peaks: dict[str, int], advice: list[str]
) -> None:
    """The card names a hint that was too low and what to raise it to, and is silent otherwise."""
    state = hinted(**peaks)
    assert list(words.beyond_hints(state)) == advice
    for shown in both(state):
        assert ("more than your hint" in shown) == bool(advice)
        assert all(line in shown for line in advice)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (running(service=True, ready=False), "loading"),
        (running(service=True, ready=True), "ready"),
        (running(service=True, ready=False, phase="stopping"), "stopping"),
        (running(status="ended", end="completed", exit_reason="stopped"), "stopped"),
        (
            running(status="ended", end="completed", exit_reason="time_limit"),
            "stopped at its time limit",
        ),
        (
            running(
                status="ended", end="failed", exit_reason="exit 0: the service ended by itself"
            ),
            "failed (exit 0: the service ended by itself)",
        ),
    ],
)
def test_the_state_of_a_service_in_words(state: dict[str, Any], words: str) -> None:
    """Loading, ready or stopped; while it loads, the card says what that means for others."""
    assert card.title(state).endswith(f" · {words}")
    told = "no other run starts on its GPU until it is ready"
    assert told not in card.text({**state, "devices": []})
    assert [told in shown for shown in both(state)] == [words == "loading"] * 2


def test_a_chosen_amount_that_was_exceeded_is_named() -> None:
    """With the option that chooses more."""
    term = {"resource": "vram", "need_bytes": 2048 * MB, "origin": "chosen"}
    state = running(status="ended", estimate={"terms": [term]}, peaks={"GPU-1": 3000 * MB})
    for shown in both(state):
        assert "VRAM 2,048 MB as you chose" in shown
        assert "is more than your choice of 2,048 MB: raise it to --vram 3200MB" in shown


def test_a_card_of_almost_nothing_is_still_a_card() -> None:
    """An answer with gaps, as another version may give, is shown as far as it goes."""
    for status in (None, "queued", "active", "ended"):
        state = {"status": status, "name": None}
        assert card.text(state)
        assert _Page(card.html(state)).tags


def test_an_id_is_shown_once_there_is_one() -> None:
    """While the sources of a cell are being read its card has no id, and no empty place for one."""
    assert "<code" not in card.html(run(run_id="", status="submitting"), commands=False)
    assert "abcde</code>" in card.html(run(), commands=False)


def test_the_card_tells_how_to_stop_the_run() -> None:
    """A live card names the two commands that stop the run, an ended one does not."""
    assert "jupyter gpugate cancel 20261129-143600-abcde" in card.text(running())
    assert "%gpu_cancel 20261129-143600-abcde" in card.text(run())
    assert "cancel" not in card.text(run(status="ended", end="completed"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("need_bytes", (100 << 20) + 1, "need 101 MB"),
        ("room_bytes", (100 << 20) - 1, "usable 99 MB"),
        ("runs", 2, "runs 2"),
    ],
)
def test_a_number_never_flatters(name: str, value: int, said: str) -> None:
    """What is needed is rounded up and what there is down, as in the sentence beside it."""
    assert words.number(name, value) == said


@pytest.mark.parametrize(
    ("evidence", "words"),
    [("own_cap", "it reached its own limit"), ("device_full", "the GPU was full"), ("new", "new")],
)
def test_an_end_for_want_of_memory_says_what_shows_it(evidence: str, words: str) -> None:
    """Whether the run's own cap or a full device stopped it stands beside its end."""
    ended = run(status="ended", end="oom", exit_reason="exit 1", oom_evidence=evidence)
    for shown in both(ended):
        assert f"out of memory: {words} (exit 1)" in shown


def test_an_expired_run_says_what_it_last_waited_for() -> None:
    """Its end comes with the sentence that the gate gave, and without one where there is none."""
    late = run(status="ended", end="expired", exit_reason="max_wait: why", exit_detail="why")
    for shown in both(late):
        assert "did not start within --max-wait; its last reason to wait: why" in shown
    for shown in both(run(status="ended", end="expired", exit_reason="max_wait")):
        assert "last reason" not in shown


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("own_cap", "its cap of 4,100 MB was hit; retried with 6,150 MB"),
        ("device_full", "GPU 0 was full when it held 4,100 MB; retried with 6,150 MB"),
        (
            "pushed_out",
            "others took 4,100 MB of GPU 0 while it ran; retried with the same 6,150 MB",
        ),
    ],
)
def test_a_retry_is_told_in_one_sentence(cause: str, sentence: str) -> None:
    """While it waits for it, while it runs and when it has ended."""
    amounts = {"at_bytes": 4100 * MB, "charge_bytes": 6150 * MB}
    retry = {"cause": cause, "where": "GPU 0", **amounts}
    for state in (running(retry=retry, attempt=2), run(status="ended", end="oom", retry=retry)):
        assert sentence in card.text(state)
    waits = card.text(run(status="queued", attempt=1, retry=retry))
    assert sentence.replace("retried", "to be retried") in waits
    assert "starts again" not in waits
    assert "retried" not in card.text(running(attempt=2, retry=None))
