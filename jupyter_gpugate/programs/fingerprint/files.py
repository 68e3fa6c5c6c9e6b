"""Reads files and folders, those inside zip archives on the module path as well."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

#: No hand-written module is larger; larger ones count by their bytes.
_MOST_READ = 32 << 20


class Archive(NamedTuple):
    """A zip file, the names in each of its folders, and a path inside it."""

    file: str
    folders: Mapping[str, frozenset[str]]
    inner: str


class FileSystem:
    """Files and folders; listings are kept, so an instance serves one request only."""

    def __init__(self) -> None:
        #: The names in each folder that was searched: new and removed ones may change the answer.
        self.listed: dict[str, frozenset[str]] = {}
        self._archives: dict[str, Optional[Mapping[str, frozenset[str]]]] = {}

    def names_in(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; none where it cannot be listed."""
        names = self.listed.get(folder)
        if names is None:
            names = self.listed[folder] = self._list(folder)
        return names

    def _list(self, folder: str) -> frozenset[str]:
        try:
            return frozenset(os.listdir(folder))  # noqa: PTH208 - a string, and nothing but names
        except NotADirectoryError:
            archive = self.archive_of(folder)
            return archive.folders.get(archive.inner, frozenset()) if archive else frozenset()
        except (OSError, ValueError):
            return frozenset()

    def is_folder(self, path: str) -> bool:
        if os.path.isdir(path):  # noqa: PTH112 - asked for each module of a source
            return True
        archive = self.archive_of(path)
        return archive is not None and archive.inner in archive.folders

    def archive_of(self, path: str) -> Optional[Archive]:
        """Return the archive that a path leads into, if it does."""
        file, inner = path, ""
        while file not in ("", "/") and not is_file(file):
            file, _, name = file.rpartition("/")
            inner = f"{name}/{inner}" if inner else name
        if file in ("", "/"):
            return None
        if file not in self._archives:
            self._archives[file] = _folders_in_archive(file)
        folders = self._archives[file]
        return None if folders is None else Archive(file, folders, inner)

    def content(self, file: str) -> bytes:
        """Return a file's content, empty for a special file or one that is too large."""
        try:
            with open_regular(file) as stream:
                data: bytes = stream.read(_MOST_READ + 1)
        except NotADirectoryError:
            data = self._content_in_archive(file)
        except (OSError, ValueError):
            return b""
        return data if len(data) <= _MOST_READ else b""

    def _content_in_archive(self, file: str) -> bytes:
        import zipfile

        archive = self.archive_of(file)
        if archive is None:
            return b""
        try:
            with zipfile.ZipFile(archive.file) as opened, opened.open(archive.inner) as stream:
                return stream.read(_MOST_READ + 1)
        except Exception:  # noqa: BLE001 - a damaged archive raises almost anything
            return b""

    def digest_of(self, file: str) -> str:
        """Return the digest of a file's content, however large it is."""
        content = hashlib.sha256()
        try:
            with open_regular(file) as stream:
                while piece := stream.read(1 << 20):
                    content.update(piece)
        except NotADirectoryError:
            content.update(self.content(file))
        except (OSError, ValueError):
            return digest(b"")
        return content.hexdigest()

    def stamp(self, file: str) -> Optional[list[int]]:
        """Return a stamp that changes whenever a file does; None unless it is a regular file."""
        try:
            found = os.stat(file)  # noqa: PTH116 - once for each file of a source
        except NotADirectoryError:
            archive = self.archive_of(file)
            return self.stamp(archive.file) if archive else None
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return [found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns]


def _folders_in_archive(file: str) -> Optional[Mapping[str, frozenset[str]]]:
    """List the folders of a zip file; None for any other file."""
    import zipfile  # few module paths have an archive

    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return None
    folders: dict[str, set[str]] = {"": set()}
    for name in listed:
        above = name.rstrip("/")
        while above:
            above, _, last = above.rpartition("/")
            folders.setdefault(above, set()).add(last)
    return {folder: frozenset(names) for folder, names in folders.items()}


def open_regular(file: str) -> Any:
    """Open a regular file; a pipe or a device might never open or never end."""
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = open(number, "rb")  # noqa: PTH123, SIM115 - a descriptor, closed by the caller
    if not stat.S_ISREG(os.fstat(number).st_mode):
        stream.close()
        raise OSError(f"{file} is not a regular file")
    return stream


def is_file(path: str) -> bool:
    """Tell whether a path leads to a regular file, outside of archives."""
    return os.path.isfile(path)  # noqa: PTH113 - asked once for each file of a source


def parent_of(path: str) -> str:
    """Return the folder of a path, as a string."""
    return path.rpartition("/")[0]


def join(folder: str, name: str) -> str:
    """Join a folder and a name in it."""
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
