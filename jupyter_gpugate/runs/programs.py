"""The copy of the programs that run alone, one for each version, in the folder of all runs.

It is named by its content, so that an upgrade does not change a live run, and no other user can
write there.  Python keeps the compiled files in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import jupyter_gpugate.programs
from jupyter_gpugate.places import OPEN, check_private
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.folder import Torn, opened, own_root
from jupyter_gpugate.runs.ids import RUN_ID
from jupyter_gpugate.runs.removal import (
    ABANDONED_S,
    remove_at_once,
    remove_left_behind,
    remove_tree,
)

#: The name by which the programs import one another: not that of the installed package.
PACKAGE: Final = "gpugate_programs"
#: The folder of the copies; no run has such a name.
FOLDER: Final = "programs"

_SOURCE: Final = Path(jupyter_gpugate.programs.__file__).parent
_DIGEST: Final = re.compile(r"[0-9a-f]{16}")
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

#: Contents of files by their names, by the folder that they are in; "" is the top.
Files = Mapping[str, Mapping[str, bytes]]


class Programs:
    """The programs of this version."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._place = runs / FOLDER
        self._files = _installed()  # read once: after an upgrade the disk has another version
        self.digest = _digest(self._files)

    def ready(self) -> Path:
        """Return the folder of the programs; write it if it is missing or damaged.

        Raises `OSError` where that cannot be done, or where others could replace the programs.
        """
        own_root(self._runs)
        own_root(self._place)
        copy = self._place / self.digest
        if not _is_whole(copy, self._files):
            self._write(copy)
        os.utime(copy)  # in use: see `remove_unused`
        return copy / PACKAGE

    def remove_unused(self) -> list[str]:
        """Remove other versions that no unfinished run uses; return which files cannot be removed.

        A copy in recent use stays: another machine may be about to start a run from it.
        """
        with suppress(OSError, Torn):
            used = {self.digest, *_used(self._runs)}
            unused = [name for name in _digests(self._place) if name not in used]
            old = [name for name in unused if _is_abandoned(self._place / name)]
            left = [remove_at_once(self._place / name) for name in old]
            left += remove_left_behind(self._place, _DIGEST)
            return [problem for problem in left if problem]
        return []

    def _write(self, copy: Path) -> None:
        draft = copy.with_name(f".new-{copy.name}-{secrets.token_hex(4)}")
        try:
            _fill(draft, self._files)
            try:
                draft.rename(copy)
            except OSError:  # its place is taken
                if not _is_whole(copy, self._files):  # or else another process was faster
                    remove_at_once(copy)
                    draft.rename(copy)
        finally:
            remove_tree(draft)


def _installed() -> Files:
    """Read the programs as they are installed."""
    files: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for path in sorted(_SOURCE.rglob("*.py")):
        files[path.parent.relative_to(_SOURCE).as_posix()][path.name] = path.read_bytes()
    return dict(files)


def _digest(files: Files) -> str:
    """Name a version by the names and contents of its files."""
    whole = hashlib.sha256()
    for folder, contents in files.items():
        for name, content in contents.items():
            whole.update(b"%b/%b %d\n" % (folder.encode(), name.encode(), len(content)) + content)
    return whole.hexdigest()[:16]


def _is_whole(copy: Path, files: Files) -> bool:
    """Return whether a copy holds these very files, and is closed to other users.

    A folder that was open to others may hold compiled files of theirs.
    """
    try:
        check_private(copy, OPEN, follow=False)
        for folder, contents in files.items():
            with opened(copy, PACKAGE, *Path(folder).parts) as inside:
                if any(inside.read(name) != content for name, content in contents.items()):
                    return False
    except (OSError, Torn):
        return False
    return True


def _fill(draft: Path, files: Files) -> None:
    """Write a copy, not synced to the disk: it is compared with its source before each use."""
    draft.mkdir(mode=0o700)
    for folder, contents in files.items():
        place = draft / PACKAGE / folder
        place.mkdir(mode=0o700)
        for name, content in contents.items():
            with os.fdopen(os.open(place / name, _NEW_FILE, 0o600), "wb") as file:
                file.write(content)


def _digests(place: Path) -> list[str]:
    return sorted(filter(_DIGEST.fullmatch, os.listdir(place)))  # noqa: PTH208 - names are wanted


def _used(runs: Path) -> Iterator[str]:
    """Yield the versions that unfinished runs use; raise `Torn` where that cannot be read."""
    for run_id in filter(RUN_ID.fullmatch, os.listdir(runs)):  # noqa: PTH208 - names are wanted
        run = runs / run_id
        attempt = directory.newest_attempt(run) if directory.may_be_unfinished(run) else 0
        if attempt:
            launch = directory.launch_of(run / "attempts" / str(attempt))
            if launch is None:
                raise Torn(f"{run}: launch.json cannot be read")
            yield str(launch.get("programs"))


def _is_abandoned(copy: Path) -> bool:
    return time.time() - copy.stat().st_mtime > ABANDONED_S
