"""Lets nbval run the tutorials with a gate of their own, which ends with its notebook."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from unittest import mock

import pytest

from notebooks.demo_server import Places

_HERE = Path(__file__).resolve().parent
_PLACES: dict[Path, Places] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, bool, bool]:
    """Surround each cell with the places of its notebook; remove them after its last one."""
    if item.path.parent != _HERE:  # pytest calls this for the tests of every folder
        return (yield)
    places = _PLACES.get(item.path) or _PLACES.setdefault(item.path, Places())
    with mock.patch.dict(os.environ, places.environ({}), clear=True):
        done = yield
    if nextitem is None or nextitem.path != item.path:
        _PLACES.pop(item.path).remove()
    return done


def pytest_sessionfinish() -> None:
    """Remove the places of a notebook that was left in the middle."""
    while _PLACES:
        _PLACES.popitem()[1].remove()
