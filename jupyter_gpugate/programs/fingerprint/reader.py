"""Reads many first-party files, with several processes where that is faster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

from .cache import FileCache
from .files import FileSystem
from .summaries import Summary, summary_from_json, summary_of_file

#: Fewer files are read sooner than other processes start.
_SHARED_FROM = 16


class SourceFile(NamedTuple):
    """A first-party file; ``package`` is the base of its relative imports."""

    name: str
    file: str
    package: str
    python: bool


class FileReader:
    """Summarizes files: those not in the cache by several processes at once."""

    def __init__(self, files: FileSystem, cache: FileCache, processes: int) -> None:
        self._files = files
        self._cache = cache
        self._processes = processes

    def read(self, wanted: Sequence[SourceFile]) -> list[Summary]:
        """Return the summary of each file."""
        before = time.time_ns()
        stamps = [self._files.stamp(one.file) for one in wanted]
        read = [self._cached(one, stamp) for one, stamp in zip(wanted, stamps)]
        missing = [place for place, cached in enumerate(read) if cached is None]
        for place, fresh in zip(missing, self._read_all([wanted[n] for n in missing])):
            read[place] = fresh
            folder, key = _cache_key(wanted[place])
            self._cache.put(folder, key, stamps[place], fresh, before)
        return [summary for summary in read if summary is not None]

    def _cached(self, wanted: SourceFile, stamp: Optional[list[int]]) -> Optional[Summary]:
        return summary_from_json(self._cache.get(*_cache_key(wanted), stamp))

    def _read_all(self, wanted: Sequence[SourceFile]) -> list[Summary]:
        if self._processes < 2 or len(wanted) < _SHARED_FROM:  # noqa: PLR2004 - itself and another
            return self._read_here(wanted)
        places = sorted(range(len(wanted)), key=lambda place: -self._size(wanted[place].file))
        shares = [places[first :: self._processes] for first in range(self._processes)]
        begun = [(share, self._read_in_child([wanted[n] for n in share])) for share in shares[1:]]
        read = dict(zip(shares[0], self._read_here([wanted[place] for place in shares[0]])))
        for share, result in begun:
            read.update(zip(share, result() or self._read_here([wanted[place] for place in share])))
        return [read[place] for place in range(len(wanted))]

    def _read_here(self, wanted: Sequence[SourceFile]) -> list[Summary]:
        return [summary_of_file(self._files, one.file, python=one.python) for one in wanted]

    def _read_in_child(self, wanted: Sequence[SourceFile]) -> Callable[[], Optional[list[Summary]]]:
        """Read files in a child; return a function that waits for the result, None on failure."""
        ours, theirs = os.pipe()
        try:
            child = os.fork()
        except OSError:
            child = -1
        if child == 0:
            try:
                with open(theirs, "w", encoding="ascii") as answer:  # noqa: PTH123 - a descriptor
                    json.dump(self._read_here(wanted), answer)
            finally:
                os._exit(0)
        os.close(theirs)

        def result() -> Optional[list[Summary]]:
            with open(ours, encoding="ascii") as answer:  # noqa: PTH123 - a descriptor
                text = answer.read()
            if child > 0:
                os.waitpid(child, 0)
            return _summaries_from(text, len(wanted))

        return result

    def _size(self, file: str) -> int:
        stamp = self._files.stamp(file)
        return stamp[1] if stamp else 0


def _cache_key(wanted: SourceFile) -> tuple[str, str]:
    folder, _, name = wanted.file.rpartition("/")
    return folder, f"{'tree' if wanted.python else 'bytes'} {name}"


def _summaries_from(text: str, count: int) -> Optional[list[Summary]]:
    """Read so many summaries from JSON; None where the text has other data."""
    try:
        summaries = [summary_from_json(one) for one in json.loads(text)]
    except ValueError:
        return None
    read = [one for one in summaries if one is not None]
    return read if len(read) == count else None
