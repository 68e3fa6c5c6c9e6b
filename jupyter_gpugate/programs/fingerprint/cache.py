"""Keeps summaries of files on disk for as long as the files' stamps stay the same."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from typing import Any, Optional

from .files import FileSystem, digest, open_regular


class FileCache:
    """A cache of facts about files by their stamps, with one JSON file per source folder.

    A cache folder that others can enter is neither read nor written.
    """

    #: The version of the format; changes with the content or the form of entries.
    FORM = 1
    MOST_BYTES = 4 << 20
    MOST_BYTES_IN_ALL = 64 << 20
    MOST_FILES = 4096

    def __init__(self, place: Optional[str], files: FileSystem) -> None:
        self._place = place if place and _make_private(place) else ""
        self._files = files
        self._folders: dict[str, dict[str, Any]] = {}
        self._changed: set[str] = set()

    def get(self, folder: str, key: str, stamp: Optional[list[int]]) -> Any:
        """Return the value of a key, if it has the same stamp."""
        if not self._place or stamp is None:
            return None
        entry = self._entries_of(folder).get(key)
        if not isinstance(entry, list) or len(entry) != 2:  # noqa: PLR2004 - stamp and value
            return None
        return entry[1] if entry[0] == stamp else None

    def put(
        self, folder: str, key: str, stamp: Optional[list[int]], value: Any, before: int
    ) -> None:
        """Store a value read after ``before``, unless the file may still change unnoticed."""
        if not self._place or stamp is None:
            return
        # A file may change again in the same tick of its clock: some count whole seconds.
        tick_ns = 50_000_000 if stamp[3] % 1_000_000 else 2_000_000_000
        if abs(before - stamp[3]) > tick_ns:
            self._entries_of(folder)[key] = [stamp, value]
            self._changed.add(folder)

    def write(self) -> None:
        """Write changed entries; entries that cannot be written are read again next time."""
        with contextlib.suppress(OSError, ValueError):
            for folder in sorted(self._changed):
                names = self._files.names_in(folder)
                entries = self._entries_of(folder).items()
                present = {k: v for k, v in entries if k.partition(" ")[2] in names}
                text = json.dumps({"folder": folder, "known": present}, separators=(",", ":"))
                if len(text) <= self.MOST_BYTES:
                    _replace(self._file_of(folder), text)
            if self._changed:
                self._prune()
        self._changed = set()

    def _entries_of(self, folder: str) -> dict[str, Any]:
        if folder not in self._folders:
            self._folders[folder] = self._load(folder)
        return self._folders[folder]

    def _load(self, folder: str) -> dict[str, Any]:
        try:
            with open_regular(self._file_of(folder)) as stream:
                if os.fstat(stream.fileno()).st_uid != os.getuid():
                    return {}
                data = json.loads(stream.read(self.MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        entries = data.get("known") if isinstance(data, dict) else None
        return entries if isinstance(entries, dict) and data.get("folder") == folder else {}

    def _file_of(self, folder: str) -> str:
        key = f"{self.FORM} {sys.version_info[:2]} {folder}"
        name = digest(key.encode("utf-8", "surrogatepass"))[:40]
        return f"{self._place}/{name}.json"

    def _prune(self) -> None:
        """Remove the oldest files if the cache is too large."""
        with os.scandir(self._place) as entries:
            found = sorted((e.stat(follow_symlinks=False).st_mtime, e.path) for e in entries)
        sizes = {path: os.lstat(path).st_size for _, path in found}
        total = sum(sizes.values())
        for count, (_, path) in enumerate(found):
            few = len(found) - count <= self.MOST_FILES
            if few and total <= self.MOST_BYTES_IN_ALL:
                return
            os.unlink(path)  # noqa: PTH108 - a string, as scandir gives it
            total -= sizes[path]


def _make_private(place: str) -> bool:
    """Make a folder, and tell whether it is this user's alone."""
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib takes long to import
        found = os.lstat(place)
    except (OSError, ValueError):
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return private and found.st_uid == os.getuid()


def _replace(file: str, text: str) -> None:
    new = f"{file}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(new, flags, 0o600), "w", encoding="ascii") as stream:  # noqa: PTH123
            stream.write(text)
        os.replace(new, file)  # noqa: PTH105 - as above
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)  # noqa: PTH108 - as above
        raise
