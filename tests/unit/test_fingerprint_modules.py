"""Which imported modules count by their content, and which by name and version."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.source_projects import MODULES, Project, write


def test_the_files_behind_a_hash_are_named(project: Project) -> None:
    """The answer lists the first-party files, and installed packages by version."""
    answer = project.describe()
    names = [str(Path(name).relative_to(project.home)) for name in answer["files"]]
    unused = {"project/unused.py", "star.py", "statistics_user.py"}
    expected = {name for name in MODULES if name not in unused and "stars" not in name}
    assert names == sorted(expected)
    assert answer["packages"] == {"torch": "2.13.0+cpu", "yaml_like": "6.0.1"}
    assert answer["runtime"] == "torch 2.13.0+cpu"
    assert (answer["error"], answer["syntax_error"]) == (None, None)
    assert answer["python"] == ".".join(map(str, sys.version_info[:3]))


def test_no_code_is_executed(project: Project) -> None:
    """Describing a cell runs neither it nor any module, installed or not."""
    for name in ("project/__init__.py", "lazy.py", "project/inner/__init__.py"):
        project.edit(name, (project.home / name).read_text(), "raise SystemExit('executed')\n")
    write(project.site, {"yaml_like/__init__.py": "raise SystemExit('executed')\n"})
    modules = set(sys.modules)
    project.describe()
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    ("cell", "packages", "runtime"),
    [
        ("import torch", {"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu"),
        ("def f():\n    from torch.nn import Linear", {"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu"),
        ("import jax.numpy as jnp", {"jax": "0.9.0"}, "jax 0.9.0"),
        (
            "import jax, torch",
            {"jax": "0.9.0", "torch": "2.13.0+cpu"},
            "torch 2.13.0+cpu, jax 0.9.0",
        ),
        ("import sklearn_like.linear", {"sklearn_like": "1.4"}, ""),
        ("import old_style", {"old_style": "0.1"}, ""),
        ("import shared.a", {"shared": "shared_a 1.0, shared_b 2.0"}, ""),
        ("import os, sys, time, xml.dom", {}, ""),
        ("from . import near\nfrom .. import nearer\nfrom ...a import b", {}, ""),
        ("import not_there, not_there.either", {}, ""),
        ("torch = 1", {}, ""),
    ],
)
def test_installed_packages_are_found_by_their_metadata(
    project: Project, cell: str, packages: dict[str, str], runtime: str
) -> None:
    """Name and version come from whichever distribution installed a package."""
    answer = project.describe(cell)
    assert (answer["packages"], answer["runtime"]) == (packages, runtime)
    assert answer["files"] == []


def test_a_module_without_a_distribution_counts_by_its_content(project: Project) -> None:
    """A file that was copied into the folder of installed packages is first-party."""
    answer = project.describe("import bare")
    assert answer["files"] == [str(project.site / "bare.py")]
    project.edit("bare.py", "1", "2")
    assert project.describe("import bare")["source_hash"] != answer["source_hash"]


def test_built_in_modules_come_before_files_of_the_same_name(project: Project) -> None:
    """A file named like a module that is built into Python is never what is imported."""
    write(project.home, {"time.py": "x = 1"})
    assert project.describe("import time")["files"] == []


def test_a_star_import_brings_the_modules_that_it_names(project: Project) -> None:
    """``__all__`` of a package names modules that ``*`` imports."""
    files = project.describe("import star")["files"]
    assert str(project.home / "project/stars/sun.py") in files


def test_a_namespace_may_be_partly_installed_and_partly_own(project: Project) -> None:
    """The first-party part of a namespace counts by content, the installed parts by version."""
    write(project.home, {"shared/mine.py": "x = 1"})
    for own_first in (True, False):
        answer = project.describe("import shared.mine, shared.a", own_first=own_first)
        assert answer["files"] == [str(project.home / "shared/mine.py")]
        assert answer["packages"] == {"shared": "shared_a 1.0, shared_b 2.0"}


def test_a_module_that_cannot_be_parsed_counts_by_its_bytes(project: Project) -> None:
    """Compiled modules and files that are not of this Python are compared byte by byte."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in (f"fast{suffix}", "broken.py"):
        (project.home / name).write_bytes(b"\x7fELF\0 (")
        before = project.describe("import fast, broken")["source_hash"]
        (project.home / name).write_bytes(b"\x7fELF\0 ((")
        assert project.describe("import fast, broken")["source_hash"] != before


def test_an_editable_install_is_source(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that an editable install maps to its folder is hashed where it lies."""
    elsewhere = project.home.parent / "elsewhere"
    write(elsewhere, {"edited/__init__.py": "from . import part", "edited/part.py": "x = 1"})

    class Finder:
        @staticmethod
        def find_spec(name: str, _: object = None) -> Any:
            if name != "edited":
                return None
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.origin = str(elsewhere / "edited/__init__.py")
            spec.submodule_search_locations = [str(elsewhere / "edited")]
            return spec

    Finder.__module__ = "__editable___edited_1_0_finder"
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    files = project.describe("import edited")["files"]
    assert files == [str(elsewhere / "edited" / n) for n in ("__init__.py", "part.py")]
