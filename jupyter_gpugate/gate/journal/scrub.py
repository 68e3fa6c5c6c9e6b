"""Removes values from a journal that older versions recorded and that must not be kept."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import Table, func, select, update

from jupyter_gpugate.core.parameters import scrubbed
from jupyter_gpugate.gate.journal import schema
from jupyter_gpugate.gate.journal.database import JournalFile

#: A row with one such value was written by a version that keeps no words.
_DIGEST: Final = f'*,"#{"[0-9a-f]" * 24}"]*'
_NUMBER: Final = '*,"=[0-9+-]*"]*'
_AT_ONCE: Final = 500


def scrub(file: JournalFile) -> int:
    """Replace the words among parameter values by digests; return the number of changed rows.

    The words are erased from the file.  Raises `JournalError` where it cannot be written.
    """
    tables = ((schema.events, "seq"), (schema.observations, "id"))
    changed = sum(_scrub(file, table, key) for table, key in tables)
    if changed:
        file.compact()
    return changed


def _scrub(file: JournalFile, table: Table, key: str) -> int:
    data, number = table.c.data, table.c[key]
    old = func.instr(data, '"parameters":[[') > 0, _lacks(data, _DIGEST), _lacks(data, _NUMBER)
    suspects = select(number, data).where(*old).order_by(number).limit(_AT_ONCE)
    changed, last = 0, -1
    while rows := file.read(suspects.where(number > last)):
        last = rows[-1][0]
        clean = _clean(rows)
        with file.transaction(durable=True) as connection:
            for at, text in clean:
                connection.execute(update(table).where(number == at).values(data=text))
        changed += len(clean)
    return changed


def _lacks(data: Any, pattern: str) -> Any:
    return data.op("NOT GLOB")(pattern)


def _clean(rows: Any) -> list[tuple[int, str]]:
    """Return the rows that change; unreadable rows are left as they are."""
    changed = []
    for at, text in rows:
        try:
            clean = json.dumps(scrubbed(json.loads(text)), separators=(",", ":"))
        except (ValueError, TypeError, RecursionError):
            continue
        if clean != text:
            changed.append((at, clean))
    return changed
