"""Projects of source files for tests of fingerprints: a user's folder, and installed packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jupyter_gpugate.programs.fingerprint.describe import describe

CELL = """\
import statistics

import torch
import yaml_like
from project import models
from project.inner import deep

LIMIT = 3


def f(x):
    import lazy
    return lazy.go(x) + LIMIT


for e in episodes:
    e.keep(f(e.index))
"""
MODULES = {
    "project/__init__.py": "from .names import NAME\n",
    "project/names.py": "NAME = 'a'\n",
    "project/models.py": "from . import layers\nfrom .. import nothing\ndef model(): pass\n",
    "project/layers.py": "def layer():\n    return 1\n",
    "project/unused.py": "x = 1\n",
    "project/inner/__init__.py": "",
    "project/inner/deep.py": "from ..plugins.one import plug\n",
    "project/plugins/one.py": "plug = 1\n",
    "lazy.py": "import importlib\n\n\ndef go(x):\n    return importlib.import_module('late').x\n",
    "late.py": "x = 1\nimport lazy\n",
    "star.py": "from project.stars import *\n",
    "project/stars/__init__.py": "__all__ = ['sun']\n",
    "project/stars/sun.py": "hot = 1\n",
    "statistics_user.py": "import statistics\n",
}
INSTALLED = {
    "yaml_like/__init__.py": "import hidden_requirement\n",
    "YAML_Like-6.0.1.dist-info/RECORD": "yaml_like/__init__.py,,\n",
    "torch/__init__.py": "",
    "torch-2.13.0+cpu.dist-info/top_level.txt": "functorch\ntorch\n",
    "jax/__init__.py": "",
    "jax-0.9.0.dist-info/RECORD": "jax/__init__.py,sha256=abc,0\n",
    "sklearn_like/__init__.py": "",
    "scikit_like-1.4.dist-info/RECORD": "../../../bin/sk,,\nsklearn_like/__init__.py,,\n",
    "old_style.py": "",
    "old_style-0.1-py3.9.egg-info/PKG-INFO": "Version: 0.1\n",
    "bare.py": "x = 1\n",
    "shared/a/__init__.py": "",
    "shared/b/__init__.py": "",
    "shared_a-1.0.dist-info/RECORD": "shared/a/__init__.py,,\n",
    "shared_b-2.0.dist-info/RECORD": "shared/b/__init__.py,,\n",
}
BODY = "def {name}(x):\n    return x + 1\n"


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Project:
    """A user's folder beside an environment with some packages installed."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.site = root / "env" / "lib" / "python3.11" / "site-packages"
        write(self.home, MODULES)
        write(self.site, INSTALLED)
        self.cell = CELL

    def describe(self, cell: str | None = None, *, own_first: bool = True) -> dict[str, Any]:
        """Describe the cell as a kernel in this folder and environment would."""
        path = ["", *(p for p in sys.path if p and "-packages" not in p), str(self.site)]
        path = path if own_first else path[::-1]
        request = {"source": self.cell if cell is None else cell, "path": path}
        return describe({"kind": "cell", "cwd": str(self.home), **request})

    def hash(self) -> str:
        value: str = self.describe()["source_hash"]
        return value

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a piece of a file of the project, of the environment, or of the cell."""
        if name == "cell":
            assert old in self.cell
            self.cell = self.cell.replace(old, new)
            return
        path = self.home / name if (self.home / name).exists() else self.site / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def rename(self, old: str, new: str) -> None:
        (self.site / old).rename(self.site / new)


def describe_on_path(root: Path, cell: str, *places: Path, **request: Any) -> dict[str, Any]:
    """Describe a cell with these folders on its module path."""
    processes = request.pop("processes", 1)
    question = {"kind": "cell", "source": cell, "cwd": str(root), "path": [*map(str, places)]}
    return describe({**question, **request}, processes)


def write_package(root: Path, files: int) -> Path:
    """Write a first-party package that imports all its modules."""
    names = [f"m{n}" for n in range(files)]
    modules = {f"own/{name}.py": BODY.format(name=name) for name in names}
    write(root, {**modules, "own/__init__.py": f"from . import {', '.join(names)}\n"})
    return root
