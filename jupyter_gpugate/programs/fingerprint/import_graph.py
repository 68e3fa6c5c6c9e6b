"""Follows imports: collects digests of first-party modules and versions of installed ones."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from .distributions import Distribution, Distributions, versions
from .files import FileSystem, digest, is_file, parent_of
from .modules import Module, is_standard_library, locate, locate_editable
from .reader import FileReader, SourceFile
from .summaries import Summary, summary_of

#: Packages whose version is not in the hash.
RUNTIMES = ("torch", "jax")


class ImportGraph:
    """The modules that a cell or program imports, directly or not, looked up on one module path."""

    def __init__(
        self,
        path: Sequence[str],
        files: FileSystem,
        reader: FileReader,
        distributions: Distributions,
    ) -> None:
        self._path = tuple(path)
        self._files = files
        self._reader = reader
        self._distributions = distributions
        self._digests: dict[str, str] = {}  # by module
        self._first_party: set[str] = set()  # files
        self._packages: dict[str, list[Distribution]] = {}
        self._modules: dict[str, tuple[Optional[Module], bool]] = {}
        self._standard: dict[str, bool] = {}  # by folder
        self._waiting: list[SourceFile] = []

    def add_tree(self, name: str, tree: ast.AST, package: str) -> None:
        """Add the syntax tree of a module in ``package``, and its imports."""
        self._add(name, summary_of(tree), package)

    def add_bytes(self, name: str, data: bytes) -> None:
        self._digests[name] = digest(data)

    def add_file(self, name: str, file: str, package: str = "", *, python: bool = False) -> None:
        """Add a file: tree and imports where it is ``python`` or named so, else its content."""
        archive = None if is_file(file) else self._files.archive_of(file)
        self._first_party.add(archive.file if archive else file)
        self._waiting.append(SourceFile(name, file, package, python or file.endswith(".py")))

    def add_main(self, module: str) -> bool:
        """Add what ``-m module`` runs; return whether there is such a module."""
        found = self._import(module)
        if found is None:
            return False
        if found.folders and found.file is not None:
            self._import(f"{module}.__main__")
        return True

    def add_executable(self, file: str, sites: Iterable[str]) -> None:
        """Add a program by the distribution in ``sites`` that installed it, else by its content."""
        name = file.rpartition("/")[2]
        owner = self._distributions.owner_of_program(name, [*sites, *self._path])
        if owner is not None:
            self._packages[owner.name] = [owner]
            return
        self._first_party.add(file)
        self._digests["<program>"] = self._files.digest_of(file)

    def answer(self) -> dict[str, Any]:
        """Read the pending files and everything that they import, and return the result."""
        while self._waiting:
            wanted, self._waiting = self._waiting, []
            for one, summary in zip(wanted, self._reader.read(wanted)):
                self._add(one.name, summary, one.package)
        packages = {top: versions(owners) for top, owners in sorted(self._packages.items())}
        counted = {k: v for k, v in packages.items() if k not in RUNTIMES}
        whole = json.dumps([sorted(self._digests.items()), sorted(counted.items())])
        return {
            "source_hash": digest(whole.encode()),
            "files": sorted(self._first_party),
            "folders": sorted(self._files.listed),
            "packages": packages,
            "runtime": ", ".join(f"{n} {packages[n]}" for n in RUNTIMES if n in packages),
            "python": python_version(),
            "error": None,
        }

    def _add(self, name: str, summary: Summary, package: str) -> None:
        self._digests[name] = summary.digest
        for imported in summary.imports:
            for module in imported.modules(package):
                self._import(module)

    def _import(self, name: str) -> Optional[Module]:
        """Add a module and the packages above it; None where it does not exist."""
        folders, end = self._path, 0
        while True:
            end = name.find(".", end)
            module = name if end < 0 else name[:end]
            if module not in self._modules:
                self._modules[module] = self._look_up(module, folders)
            found, goes_on = self._modules[module]
            if found is None or not goes_on or end < 0:
                return found
            folders, end = found.folders, end + 1

    def _look_up(self, module: str, folders: Sequence[str]) -> tuple[Optional[Module], bool]:
        """Find a module, and return whether its submodules matter as well."""
        above, _, part = module.rpartition(".")
        if not part or module in sys.builtin_module_names:
            return None, False
        found = locate(self._files, part, folders) or (None if above else locate_editable(part))
        return found, found is not None and self._add_module(module, found)

    def _add_module(self, name: str, found: Module) -> bool:
        """Add one module; return whether its submodules matter as well."""
        if self._is_standard(parent_of(found.file) if found.file else found.folders[0]):
            return False
        if found.file is None:
            self._add_namespace(name, found.folders)
            return True
        top, depth = name.partition(".")[0], name.count(".") + 1
        root = found.folders[0] if found.folders else found.file
        for _ in range(depth):
            root = parent_of(root)
        owners = self._distributions.owners_of(top, root)
        if owners:
            self._packages.setdefault(top, owners)
            return False
        package = name if found.folders else name.rpartition(".")[0]
        self.add_file(name, found.file, package)
        return True

    def _add_namespace(self, name: str, portions: Sequence[str]) -> None:
        """Add a namespace package: distributions, and first-party code, may share one."""
        if "." in name:
            return
        owners = [
            one
            for portion in portions
            for one in self._distributions.owners_of(name, parent_of(portion))
        ]
        if owners:
            self._packages[name] = list(dict.fromkeys(owners))

    def _is_standard(self, folder: str) -> bool:
        if folder not in self._standard:
            self._standard[folder] = is_standard_library(folder)
        return self._standard[folder]


#: Makes a graph for a module path.
NewGraph = Callable[[Sequence[str]], ImportGraph]


def python_version() -> str:
    """Return the version of this Python as ``3.12.1``."""
    return ".".join(map(str, sys.version_info[:3]))
