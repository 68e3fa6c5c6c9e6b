"""The options of a run as keyword arguments."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpugate.client import keywords, options
from jupyter_gpugate.client.errors import SubmissionError

OF_CELLS = (*options.RUN_OPTIONS, *options.CELL_OPTIONS)


def test_keywords_mean_what_options_mean() -> None:
    """Sizes and times as text, numbers as numbers, parameters as a dict, names as a list."""
    given = {"gpus": 0, "workers": 2, "hint_vram": "6GB", "max_wait": "30m", "exclusive": True}
    given |= {"parameters": {"batch": 8}, "free_parameters": {"seed": 1}, "outputs": ["a", "b"]}
    found = keywords.namespace(OF_CELLS, given)
    assert (found.gpus, found.workers, found.episodes) == (0, 2, 1)
    assert (found.hint_vram, found.hint_ram, found.max_wait_s) == (6 << 30, None, 1800.0)
    assert (found.set, found.set_free) == ([("batch", "8")], [("seed", "1")])
    assert (found.output, found.exclusive, found.evictable) == ([["a"], ["b"]], True, False)
    assert found.detach is True


def test_every_option_of_a_run_is_a_keyword() -> None:
    """A new option is one without more code; inputs and the wait are the caller's own."""
    words = {keywords.word_of(option) for option in (*OF_CELLS, *options.PROGRAM_OPTIONS)}
    assert {"vram", "hint_ram", "time_limit", "drop_env", "class_", "memory_irrelevant"} <= words
    with pytest.raises(TypeError, match="detach is no option of this run"):
        keywords.namespace(OF_CELLS, {"detach": True})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hint_vram": 2 << 30}, "hint_vram: `2147483648` is not a size: write 2GB"),
        ({"max_wait": 90}, "max_wait: `90` is not a time: write 90s"),
        ({"workers": 65}, "workers: `65` is too many"),
        ({"parameters": ["batch=8"]}, "parameters: ['batch=8'] must be a dict"),
        ({"outputs": "a b"}, "outputs: `a b` must be names"),
        ({"exclusive": "yes"}, "exclusive: 'yes' must be True or False"),
        ({"class_": "best"}, "class_: `best` must be one of urgent, high, normal, batch"),
    ],
)
def test_a_wrong_value_is_named_with_its_keyword(given: dict[str, Any], words: str) -> None:
    """The message says what to write, as on a command line."""
    with pytest.raises(SubmissionError) as refusal:
        keywords.namespace(OF_CELLS, given)
    assert words in str(refusal.value)


def test_a_misspelt_keyword_is_guessed() -> None:
    """It is the caller's mistake, as with any function."""
    with pytest.raises(TypeError, match="did you mean workers"):
        keywords.namespace(OF_CELLS, {"worker": 2})
