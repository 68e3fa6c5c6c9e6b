"""Finds a module's file by name, as Python does, without importing anything."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Optional

from .distributions import SITE_FOLDERS
from .files import FileSystem, join, parent_of

_SUFFIXES = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.SOURCE_SUFFIXES)


class Module(NamedTuple):
    """A module's file, None for a namespace package, and the folders of its submodules."""

    file: Optional[str]
    folders: tuple[str, ...]


def locate(files: FileSystem, name: str, folders: Sequence[str]) -> Optional[Module]:
    """Find a module in folders by the names of their files alone."""
    portions = []
    for folder in folders:
        names = files.names_in(folder)
        below = join(folder, name)
        if name in names:
            for suffix in _SUFFIXES:
                if f"__init__{suffix}" in files.names_in(below):
                    return Module(f"{below}/__init__{suffix}", (below,))
        for suffix in _SUFFIXES:
            if name + suffix in names:
                return Module(f"{below}{suffix}", ())
        if name in names and files.is_folder(below):
            portions.append(below)
    return Module(None, tuple(portions)) if portions else None


def locate_editable(name: str) -> Optional[Module]:
    """Find a package that an editable install maps to its folder; that reads a table, no code."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            spec = finder.find_spec(name, None)
            if spec is not None and spec.origin is not None:
                return Module(spec.origin, tuple(spec.submodule_search_locations or ()))
    return None


def is_standard_library(folder: str) -> bool:
    """Tell whether a folder belongs to Python itself."""
    if not SITE_FOLDERS.isdisjoint(folder.split("/")):
        return False
    own = os.path.realpath(parent_of(os.__file__))
    real = os.path.realpath(folder)
    return real == own or real.startswith(f"{own}/")


def absolute(path: Sequence[str], cwd: str) -> list[str]:
    """Return a module path with absolute entries, for a process in the folder ``cwd``."""
    return [os.path.normpath(os.path.join(cwd, entry)) for entry in path]  # noqa: PTH118 - fast
