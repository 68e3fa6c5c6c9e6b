"""A project of source files, for the tests of fingerprints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.source_projects import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Lay out a user's folder beside an environment with some packages installed."""
    return Project(tmp_path)
