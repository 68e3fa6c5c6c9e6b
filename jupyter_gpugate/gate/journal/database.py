"""The SQLite file below the journal: opened with checks, written in whole transactions.

Everything that the disk and the database say against it becomes a `JournalError`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Select, StaticPool, create_engine
from sqlalchemy.exc import DBAPIError

from jupyter_gpugate.gate.failpoints import failpoint
from jupyter_gpugate.gate.journal import schema
from jupyter_gpugate.gate.journal.local_disk import network_file_system
from jupyter_gpugate.places import check_own, check_plain, open_private

#: How long a call waits for another process that writes.
BUSY_S: Final = 2.0
#: The log is cut back to this after a large transaction has made it grow.
LOG_LIMIT_BYTES: Final = 8 << 20

_DAMAGED: Final = ("malformed", "not a database", "no such table", "no such column")
_IN_WORDS: Final = {
    "disk is full": "the disk is full",
    "readonly": "it can only be read",
    "is locked": "another process keeps it locked",
    "unable to open": "it cannot be opened",
    "disk I/O error": "the disk fails",
}


class JournalError(Exception):
    """The journal cannot be used; the text says why, for the user of the gate."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DamagedJournalError(JournalError):
    """The file is no longer a journal."""


class JournalFile:
    """One open file; not to be used by two threads at once."""

    def __init__(self, path: Path) -> None:
        """Open the file or create an empty one; see `Journal.open` for the refused cases."""
        self.path = path
        self._is_copied = False  # restored on the disk, but not opened there yet
        self._open()

    def _open(self) -> None:
        path = self.path
        with explained(path):
            _refuse_network(path)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
            self._opened_as = path.lstat()
            # SQLite would follow a link that has the name of its log.
            for part in ("-wal", "-shm", "-journal"):
                check_plain(Path(f"{path}{part}"))
            engine = create_engine(
                URL.create("sqlite", database=str(path)),
                poolclass=StaticPool,
                connect_args={
                    "timeout": BUSY_S,
                    "isolation_level": None,
                    "check_same_thread": False,
                },
            )
            self._connection = engine.connect()
            # Invalid text is handled where its row, one of many, is decoded.
            driver: Any = self._connection.connection.driver_connection
            driver.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            with explained(path):
                self._prepare()
        except BaseException:
            with suppress(JournalError):
                self.close()
            raise

    def close(self) -> None:
        with explained(self.path):
            self._connection.close()
            self._connection.engine.dispose()

    def read(self, query: Select[Any]) -> Sequence[Any]:
        """Return all rows of a query."""
        with explained(self.path), self._connection.begin():
            return self._connection.execute(query).all()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[Connection]:
        """Write all statements of the block or, if it raises, none.

        A ``durable`` block is on the disk when it ends.
        """
        with explained(self.path):
            failpoint("store.begin.before")
            self.restore()
            # SQLite would go on writing to a file that no later gate finds.
            if not os.path.samestat(self._opened_as, self.path.stat()):
                raise FileNotFoundError(errno.ENOENT, "it was replaced while in use")
            self._pragma(f"synchronous = {'FULL' if durable else 'NORMAL'}")
            try:
                # The driver begins none of its own, and here is the place to wait for the lock.
                self._connection.exec_driver_sql("BEGIN IMMEDIATE")
                failpoint("store.begin.after")
                yield self._connection
                failpoint("store.commit.before")
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise
            failpoint("store.commit.after")

    def compact(self) -> None:
        """Rewrite the file without deleted or overwritten data, and empty its log."""
        with explained(self.path):
            driver: Any = self._connection.connection.driver_connection
            driver.execute("VACUUM")
            self._pragma("wal_checkpoint(TRUNCATE)")

    def restore(self) -> None:
        """Write the file again if it was removed, alone or with its folder."""
        if self._is_copied or not os.path.lexists(self.path):
            with explained(self.path):
                self._bring_back()

    def _bring_back(self) -> None:
        """Copy all entries to the file's place and go on there.

        The connection still reads all of it, so that a copy can be made.
        """
        if not self._is_copied:
            _refuse_network(self.path)
            check_own(self.path.parent, "state_directory")
            draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            draft.unlink(missing_ok=True)
            try:
                os.close(open_private(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL))
                driver: Any = self._connection.connection.driver_connection
                driver.execute("VACUUM INTO ?", (str(draft),))
                _sync(draft)
                # A log that is left belongs to what was removed.
                for part in ("-wal", "-shm", "-journal"):
                    Path(f"{self.path}{part}").unlink(missing_ok=True)
                self.path.hardlink_to(draft)
            finally:
                draft.unlink(missing_ok=True)
            self._is_copied = True
            _sync(self.path.parent)
            with suppress(JournalError):
                self.close()
        self._open()
        self._is_copied = False

    def _prepare(self) -> None:
        """Check whose file it is and whether it is whole; fill one that is empty."""
        version = self._pragma("user_version")
        empty = self._pragma("schema_version") == 0
        if not empty and self._pragma("application_id") != schema.APPLICATION_ID:
            raise JournalError(f"{self.path} is a database of another program: set another path")
        if version > schema.SCHEMA_VERSION:
            raise JournalError(
                f"{self.path} was written by a newer jupyter_gpugate (format {version}, this one"
                f" knows {schema.SCHEMA_VERSION}): upgrade this one, or set another path"
            )
        if not empty and version < schema.SCHEMA_VERSION:
            raise DamagedJournalError(f"unknown format {version}")
        found = self._pragma("quick_check(1)")
        if found != "ok":
            raise DamagedJournalError(str(found))
        if not empty:
            self._check_tables()
        self._pragma("journal_mode = WAL")
        self._pragma(f"journal_size_limit = {LOG_LIMIT_BYTES}")
        if empty:
            with self.transaction(durable=True) as connection:
                schema.create(connection)

    def _check_tables(self) -> None:
        """Raise `DamagedJournalError` where a table or a column of this version is missing."""
        driver: Any = self._connection.connection.driver_connection
        for table in schema.metadata.sorted_tables:
            found = {row[1] for row in driver.execute(f"PRAGMA table_info({table.name})")}
            missing = {column.name for column in table.columns} - found
            if missing:
                raise DamagedJournalError(f"{table.name} lacks {', '.join(sorted(missing))}")

    def _pragma(self, text: str) -> Any:
        """Set or ask outside of any transaction; return the first value of the answer."""
        driver: Any = self._connection.connection.driver_connection
        answer = driver.execute(f"PRAGMA {text}").fetchone()
        return answer[0] if answer else None


def move_aside(path: Path, wall: float) -> Path:
    """Rename a damaged file and its log to ``PATH.corrupt-TIME``; return the new name."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall))
    aside = Path(f"{path}.corrupt-{moment}")
    while aside.exists():
        aside = Path(f"{aside}+")
    with explained(path):
        failpoint("store.rename.before")
        for part in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                Path(f"{path}{part}").rename(f"{aside}{part}")
        failpoint("store.rename.after")
    return aside


def _sync(path: Path) -> None:
    """Bring a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_network(path: Path) -> None:
    network = network_file_system(path)
    if network is not None:
        raise JournalError(
            f"{path} is on {network}, which other machines may write to as well: set the state"
            " directory to one on a local disk, or leave it unset to have one chosen"
        )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the disk and the database into a `JournalError` about ``path``."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        raise _in_words(path, error) from error


def _in_words(path: Path, error: Exception) -> JournalError:
    if isinstance(error, OSError):
        full = error.errno == errno.ENOSPC
        where = path if full else error.filename or path
        return JournalError(f"{where}: {'the disk is full' if full else error.strerror or error}")
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    if any(sign in text for sign in _DAMAGED):
        return DamagedJournalError(text)
    words = next((words for sign, words in _IN_WORDS.items() if sign in text), text)
    return JournalError(f"{path}: {words}")
