"""The copy of the programs that run alone, one for each version, in the folder of all runs.

It is named by its content, so that an upgrade does not change a live run, and no other user can
write there.  Python keeps the compiled files in it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import jupyter_gpugate.programs
from jupyter_gpugate.places import WRITABLE, check_private
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

#: Errors of a rename to a place that something else has.
_TAKEN: Final = {errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY}

#: Contents of files by their names, by the folder that they are in; "" is the top.
Files = Mapping[str, Mapping[str, bytes]]


class Programs:
    """The programs of this version."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._place = runs / FOLDER
        self._files = _installed()  # read once: after an upgrade the disk has another version
        self.digest = _digest(self._files)
        self._lock = threading.Lock()

    def ready(self) -> Path:
        """Return the folder of the programs; write it if it is missing or damaged.

        Raises `OSError` where that cannot be done, or where others could replace the programs.
        """
        own_root(self._runs)
        own_root(self._place)
        copy = self._place / self.digest
        with self._lock:  # starts come from several threads
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
        damaged: list[Path] = []
        try:
            _fill(draft, self._files)
            while not _appeared(draft, copy) and not _is_whole(copy, self._files):
                # Live runs load from it: another one is in its place before the files go.
                damaged.append(copy.with_name(f".gone-{copy.name}-{secrets.token_hex(4)}"))
                with suppress(FileNotFoundError):
                    copy.rename(damaged[-1])
        finally:
            remove_tree(draft)
            for aside in damaged:
                remove_at_once(aside)


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
    """Return whether a copy holds these very files, and no other user can write to it.

    A folder that others could write to may hold compiled files of theirs.
    """
    try:
        check_private(copy, WRITABLE, follow=False)
        for folder, contents in files.items():
            check_private(copy / PACKAGE / folder, WRITABLE, follow=False)
            with suppress(FileNotFoundError):
                check_private(copy / PACKAGE / folder / "__pycache__", WRITABLE, follow=False)
            with opened(copy, PACKAGE, *Path(folder).parts) as inside:
                if any(inside.read(name) != content for name, content in contents.items()):
                    return False
    except (OSError, Torn):
        return False
    return True


def _appeared(draft: Path, copy: Path) -> bool:
    """Rename a finished draft to its place; return False where that is taken."""
    try:
        draft.rename(copy)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True


def _fill(draft: Path, files: Files) -> None:
    """Write a copy, not synced to the disk: it is compared with its source before each use."""
    draft.mkdir(mode=0o700)
    for folder, contents in files.items():
        place = draft / PACKAGE / folder
        place.mkdir(mode=0o700)
        (place / "__pycache__").mkdir(mode=0o700)  # whatever the umask of who compiles them
        for name, content in contents.items():
            with os.fdopen(os.open(place / name, _NEW_FILE, 0o600), "wb") as file:
                file.write(content)


def _digests(place: Path) -> list[str]:
    """The versions in the folder of the copies, which may hold files of others."""
    names = sorted(filter(_DIGEST.fullmatch, os.listdir(place)))  # noqa: PTH208 - names are wanted
    return [name for name in names if (place / name / PACKAGE).is_dir()]


def _used(runs: Path) -> Iterator[str]:
    """Yield the versions that unfinished runs use; raise `Torn` where that cannot be read."""
    for run_id in filter(RUN_ID.fullmatch, os.listdir(runs)):  # noqa: PTH208 - names are wanted
        run = runs / run_id
        if any(_is_closed(folder) for folder in (run, run / "attempts")):
            raise Torn(f"{run} cannot be read")
        attempt = directory.newest_attempt(run) if directory.may_be_unfinished(run) else 0
        if attempt:
            launch = directory.launch_of(run / "attempts" / str(attempt))
            if launch is None:
                raise Torn(f"{run}: launch.json cannot be read")
            yield str(launch.get("programs"))


def _is_closed(folder: Path) -> bool:
    """Whether a folder is there that cannot be listed, because its run has changed its mode."""
    return folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK)


def _is_abandoned(copy: Path) -> bool:
    return time.time() - copy.stat().st_mtime > ABANDONED_S
