"""The journal's tables, and the stamp that identifies the program and the version of a file.

A change of the tables raises `SCHEMA_VERSION` and brings the step that carries the older files
over; tests/data holds a file of each version.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

SCHEMA_VERSION: Final = 1
#: Marks a SQLite file as a journal of the gate.
APPLICATION_ID: Final = 0x67706774

metadata = MetaData()

#: The events, in order.  ``open``: to be folded at the next start.
events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("run_id", String),
    Column("open", Boolean, nullable=False),
    Column("data", Text, nullable=False),
    Index("events_of_run", "run_id", "seq"),
    Index("events_open", "seq", sqlite_where=text("open")),
    sqlite_autoincrement=True,
)

#: Facts that hold until they are withdrawn: the inventory of devices, locks, the drain.
standing = Table(
    "standing",
    metadata,
    Column("key", String, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("data", Text, nullable=False),
)

#: The calibration; no retention of events touches it.
observations = Table(
    "observations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=False),
    Column("data", Text, nullable=False),
    Index("observations_of_name", "owner", "name"),
)

#: Actions that affect other runs, and their actors.
audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("action", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("reason", String, nullable=False),
)


def create(connection: Connection) -> None:
    """Make the tables and the stamp, within the caller's transaction."""
    metadata.create_all(connection)
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
