"""Folders and files of a user, reached so that nothing in them leads elsewhere or is half there.

A file appears whole: written under another name, synced, renamed, the folder synced.  No link is
followed below the folder that was opened, and only plain files of this user are read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.places import WRITABLE, NotPrivate, check_private
from jupyter_gpugate.runs.removal import remove_tree

#: A record that is larger was not written by us; `Folder.write_record` sees to that.
RECORD_LIMIT: Final = 16 << 20

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

#: JSON from a run's directory: its own program, or another version, may have written it.
Stored = JsonObject


class Torn(Exception):
    """A file differs from the one that was written here; the message says how."""


class TooLarge(ValueError):
    """A record would exceed the limit of its readers."""


class Folder:
    """An open folder; its entries are reached by plain names."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def is_own(self) -> bool:
        """Return whether the folder is this user's."""
        return os.fstat(self._descriptor).st_uid == os.geteuid()

    def names(self) -> list[str]:
        return os.listdir(self._descriptor)  # noqa: PTH208 - below a descriptor

    def open_file(self, name: str) -> int:
        """Open a plain file of this user for reading; raise `Torn` for anything else."""
        try:
            file = os.open(name, _FILE, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise Torn(f"{name} is not a regular file") from None
            raise
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(file)
            raise Torn(f"{name} is not a regular file of this user")
        return file

    def read(self, name: str, limit: int = RECORD_LIMIT) -> bytes:
        """Read a whole file; raise `Torn` where it is larger than ``limit`` bytes."""
        with os.fdopen(self.open_file(name), "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise Torn(f"{name} is larger than {limit} bytes")
        return data

    def read_record(self, name: str) -> Stored:
        """Read a JSON object; raise `Torn` for anything else."""
        try:
            return decoded(self.read(name))
        except Torn as torn:
            raise Torn(f"{name}: {torn}") from None

    def write_record(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON object that `read_record` takes; raise `TooLarge` for any other."""
        data = encoded(content)
        if len(data) > RECORD_LIMIT:
            raise TooLarge(f"{name} would be larger than {RECORD_LIMIT} bytes")
        self.write(name, data)

    def write(self, name: str, data: bytes) -> None:
        """Write a file that appears whole, with mode 0600, and replaces an existing one."""
        draft = f".{name}.{secrets.token_hex(4)}"
        here = self._descriptor
        file = os.open(draft, _NEW_FILE, 0o600, dir_fd=here)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(draft, name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            self.remove(draft)
            raise
        self.sync()

    def remove(self, name: str) -> None:
        """Remove a file or link that need not be there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)
            self.sync()

    def remove_folder(self, name: str) -> str:
        """Remove a folder if it exists; return which files remain, and why, or ""."""
        return remove_tree(name, self._descriptor)

    def put_aside(self, name: str) -> Path | None:
        """Rename a torn file; return its new path, or None if it could not be moved."""
        here, aside = self._descriptor, f"{name}.torn-{secrets.token_hex(4)}"
        try:
            os.rename(name, aside, src_dir_fd=here, dst_dir_fd=here)
        except OSError:
            return None
        return self.path / aside

    def sync(self) -> None:
        """Bring the folder's own entries to the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems sync no folders
                raise


@contextlib.contextmanager
def opened(path: Path, *below: str) -> Iterator[Folder]:
    """Open ``path``, then each name below it, following no link from ``path``'s own name on."""
    descriptor = os.open(path, _FOLDER)
    try:
        for name in below:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield Folder(path.joinpath(*below), descriptor)
    finally:
        os.close(descriptor)


def opened_attempt(attempt: Path) -> contextlib.AbstractContextManager[Folder]:
    """Open an attempt's folder, following no link from the name of its run directory on."""
    return opened(attempt.parents[1], attempt.parent.name, attempt.name)


def own_root(root: Path) -> None:
    """Make the folder of all runs, closed to others, or check the existing one.

    An existing folder keeps its mode: everything that is created in it is private by itself.
    Raises `PermissionError` if others could replace the programs of a run.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        check_private(root, WRITABLE)
    except NotPrivate as fault:
        remedy = "run `chmod go-w` on it" if fault.is_open else "set another folder"
        raise PermissionError(f"{fault}: {remedy}") from None


def in_words(error: BaseException) -> str:
    """Return the message of an error, for people."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def appear(draft: Path, place: Path) -> Path:
    """Rename a finished folder to its place; raise `FileExistsError` where that is taken."""
    with opened(draft) as folder:
        folder.sync()
    try:
        draft.rename(place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from None
        raise
    with opened(place.parent) as parent:
        parent.sync()
    return place


def encoded(content: Mapping[str, Any]) -> bytes:
    """Encode a record; text of the environment in other encodings survives."""
    return json.dumps(content).encode("ascii")


def decoded(data: bytes) -> Stored:
    """Return a JSON object; raise `Torn` for anything else."""
    if not data.strip():
        raise Torn("is empty")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Torn(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Torn("is not a JSON object")
    return content
