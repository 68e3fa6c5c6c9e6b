"""The arguments of a command as parameters."""

from __future__ import annotations

import pytest

from jupyter_gpugate.runs.arguments import merged, parameters_of


@pytest.mark.parametrize(
    ("line", "parameters"),
    [
        ("eval --batch 8", {"batch": "8"}),
        ("eval --batch=8", {"batch": "8"}),
        ("eval batch=8", {"batch": "8"}),
        ("eval -b 8", {"b": "8"}),
        ("eval --batch-size 8", {"batch_size": "8"}),
        ("eval --shift -3", {"shift": "-3"}),
        ("eval --fast --model large", {"fast": "", "model": "large"}),
        ("eval run.py a --model=b=c", {"argument_1": "run.py", "argument_2": "a", "model": "b=c"}),
        ("eval --file a --file b", {"file": "a\0b"}),
        ("eval - --", {"argument_1": "-", "argument_2": "--"}),
        ("eval out/x=1", {"argument_1": "out/x=1"}),
        ("eval", {}),
    ],
)
def test_arguments_are_parameters_by_name_or_position(
    line: str, parameters: dict[str, str]
) -> None:
    """Options in any spelling by their name, everything else by its position."""
    assert parameters_of(line.split(), ()) == parameters


@pytest.mark.parametrize("name", ["output_path", "output-path"])
def test_an_argument_is_declared_irrelevant_by_its_name(name: str) -> None:
    """In each spelling, whatever its value is; so is one word of the command line."""
    words = ["eval", "--output-path", "out/a", "--batch", "8"]
    assert parameters_of(words, {name}) == {"batch": "8"}
    assert parameters_of([*words, "-v"], {name, "-v"}) == {"batch": "8"}


def test_the_many_files_of_a_pattern_are_one_parameter() -> None:
    """A command line of thousands of words has few parameters, and each word counts."""
    many = parameters_of(["eval", *map(str, range(5000))], ())
    assert len(many) == 17
    assert many != parameters_of(["eval", *map(str, range(4999))], ())


def test_a_parameter_that_is_set_does_not_hide_an_argument() -> None:
    """Both count."""
    assert merged({"batch": "8"}, {"batch": "9", "seed": "1"}) == {
        "batch": "8",
        "--batch": "9",
        "seed": "1",
    }
