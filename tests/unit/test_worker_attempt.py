"""Parameters and episodes, as a cell sees them."""

from __future__ import annotations

import pytest

from jupyter_gpugate.programs.worker.attempt import parsed
from jupyter_gpugate.programs.worker.episodes import Episode


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("-3", -3),
        ("0", 0),
        ("0.1", 0.1),
        (".5", 0.5),
        ("1e-4", 1e-4),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("", ""),
        ("resnet50", "resnet50"),
        ("1.2.3", "1.2.3"),
        ("٣", "٣"),
        ("9" * 400, "9" * 400),
        (16, 16),
        (None, None),
    ],
)
def test_parameters_become_numbers_only_where_they_are_written_as_numbers(
    text: object, value: object
) -> None:
    """A parameter is a number exactly where its text is one in plain decimal notation."""
    found = parsed(text)
    assert found == value
    assert type(found) is type(value)


def test_an_episode_says_which_one_it_is() -> None:
    """Printed, an episode shows its index."""
    assert str(Episode(3, lambda _index, _value: None)) == "Episode(3)"
