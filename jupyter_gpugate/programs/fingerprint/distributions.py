"""Finds the installed distributions that own a module or a program, by their metadata."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from .cache import FileCache
from .files import FileSystem, join

#: Names of the folders that hold installed packages.
SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})
_INFO = re.compile(r"(.+?)(?:-([^-]+))?(?:-py[\d.]+)?\.(?:dist|egg)-info")
_EGG = re.compile(r"(.+?)-([^-]+)(?:-.*)?\.egg")
_TOP_IN_RECORD = re.compile(rb"(?m)^\"?([^/,.\"\r\n]+)(?:/|\.py,|\.[^/,]*so,)")
#: What older installers wrote in the place of RECORD, from the folder of the metadata on.
_TOP_IN_LIST = re.compile(rb"(?m)^\.\./([^/.\r\n]+)(?:/|\.py$|\.[^/]*so$)")
_IS_EDITABLE = re.compile(rb"\"editable\"\s*:\s*true")


class Distribution(NamedTuple):
    """A distribution as its metadata folder names it."""

    name: str
    version: str
    folder: str


class Distributions:
    """The distributions in the folders of the module path; serves one request only."""

    def __init__(self, files: FileSystem, cache: FileCache) -> None:
        self._files = files
        self._cache = cache
        self._in_folder: dict[str, tuple[Distribution, ...]] = {}
        self._by_name: dict[str, Mapping[str, list[Distribution]]] = {}
        self._by_module: dict[str, Mapping[str, list[Distribution]]] = {}

    def owners_of(self, top: str, folder: str) -> list[Distribution]:
        """Return the distributions that installed a top-level module in a folder, if any."""
        parts = folder.split("/")
        ends = [end for end, part in enumerate(parts, start=1) if part in SITE_FOLDERS]
        site = "/".join(parts[: ends[-1]]) if ends else folder
        for place in dict.fromkeys([folder, site]):
            found = self._named(place).get(_normal(top)) or self._owners(place).get(top, [])
            installed = [one for one in found if self._is_installed(one)]
            if installed:
                return installed
        return []

    def owner_of_program(self, program: str, folders: Iterable[str]) -> Optional[Distribution]:
        """Return the first distribution that has put a program into the environment's ``bin``."""
        every = (one for folder in folders for one in self._listed(folder))
        return next((one for one in every if self._installs(one, program)), None)

    def _listed(self, folder: str) -> tuple[Distribution, ...]:
        if folder not in self._in_folder:
            self._in_folder[folder] = tuple(self._read_folder(folder))
        return self._in_folder[folder]

    def _read_folder(self, folder: str) -> Iterable[Distribution]:
        for entry in sorted(self._files.names_in(folder)):
            where = join(folder, entry)
            match = _INFO.fullmatch(entry)
            if match:
                version = match[2] or self._field(where, b"Version")
                yield Distribution(match[1], version, where)
            elif entry == "EGG-INFO":
                match = _EGG.fullmatch(folder.rpartition("/")[2])
                name, version = match.groups() if match else ("", "")
                name = self._field(where, b"Name") or name
                yield Distribution(name, self._field(where, b"Version") or version, where)

    def _field(self, where: str, field: bytes) -> str:
        content = self._files.content(f"{where}/PKG-INFO")
        found = re.search(rb"(?m)^" + field + rb": *(\S+)", content)
        return found[1].decode("utf-8", "replace") if found else ""

    def _named(self, folder: str) -> Mapping[str, list[Distribution]]:
        if folder not in self._by_name:
            named: dict[str, list[Distribution]] = {}
            for one in self._listed(folder):
                named.setdefault(_normal(one.name), []).append(one)
            self._by_name[folder] = named
        return self._by_name[folder]

    def _owners(self, folder: str) -> Mapping[str, list[Distribution]]:
        if folder not in self._by_module:
            owners: dict[str, list[Distribution]] = {}
            for one in self._listed(folder):
                for top in self._tops(one):
                    owners.setdefault(top, []).append(one)
            self._by_module[folder] = owners
        return self._by_module[folder]

    def _tops(self, one: Distribution) -> frozenset[str]:
        """Return the top-level modules of a distribution."""
        site, _, name = one.folder.rpartition("/")
        listings = (f"{one.folder}/{n}" for n in ("top_level.txt", "RECORD", "installed-files.txt"))
        stamp = next((stamp for file in listings if (stamp := self._files.stamp(file))), None)
        cached = self._cache.get(site, f"tops {name}", stamp)
        if isinstance(cached, list) and all(isinstance(top, str) for top in cached):
            return frozenset(cached)
        before = time.time_ns()
        tops = frozenset(self._read_tops(one))
        self._cache.put(site, f"tops {name}", stamp, sorted(tops), before)
        return tops

    def _read_tops(self, one: Distribution) -> Iterable[str]:
        listed = self._read(one, "top_level.txt").decode("utf-8", "replace").split()
        if listed:
            return listed
        found = _TOP_IN_RECORD.findall(self._read(one, "RECORD"))
        found = found or _TOP_IN_LIST.findall(self._read(one, "installed-files.txt"))
        return (name.decode("utf-8", "replace") for name in found)

    def _is_installed(self, one: Distribution) -> bool:
        """Tell installed packages from leftovers of a build or an editable install."""
        if _IS_EDITABLE.search(self._read(one, "direct_url.json")):
            return False
        name = one.folder.rpartition("/")[2]
        in_sources = name.endswith(".egg-info") and "-" not in name[: -len(".egg-info")]
        if not in_sources or not SITE_FOLDERS.isdisjoint(one.folder.split("/")):
            return True
        return bool(self._read(one, "installed-files.txt"))

    def _installs(self, one: Distribution, program: str) -> bool:
        word = re.escape(program).encode()
        entries, record = self._read(one, "entry_points.txt"), self._read(one, "RECORD")
        own = re.search(rb"(?m)^(\.\./)+bin/" + word + rb",", record)
        return bool(own or re.search(rb"(?m)^\s*" + word + rb"\s*=", entries))

    def _read(self, one: Distribution, name: str) -> bytes:
        return self._files.content(f"{one.folder}/{name}")


def versions(distributions: Sequence[Distribution]) -> str:
    """Return the version of one distribution, or the names and versions of several."""
    if len(distributions) == 1:
        return distributions[0].version or "unknown"
    return ", ".join(f"{one.name} {one.version}" for one in distributions)


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()
