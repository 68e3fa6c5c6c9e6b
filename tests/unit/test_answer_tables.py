"""The page of the HTTP interface beside the dataclasses of the answers."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.server.http.answers import QueueAnswerWithInputs
from jupyter_gpugate.server.http.run_answers import ActiveRunAnswer, QueuedRunAnswer

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"


def listed(heading: str) -> list[str]:
    """The fields that the first table below a heading lists."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2]
    table = section[section.index("| --- |") :].partition("\n\n")[0]
    cells = (row.split(" | ")[0] for row in table.splitlines()[1:])
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize(
    ("heading", "forms"),
    [
        ("`GET /queue`", [QueueAnswerWithInputs]),
        ("One run", [QueuedRunAnswer, ActiveRunAnswer]),
    ],
)
def test_a_table_lists_exactly_the_fields_of_its_answer(heading: str, forms: list[Any]) -> None:
    """Each field of an answer is explained once, and no other."""
    names = {field.name for form in forms for field in fields(form)}
    assert sorted(listed(heading)) == sorted(names)
