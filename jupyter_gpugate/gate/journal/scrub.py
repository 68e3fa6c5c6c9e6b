"""Removes values from a journal that older versions recorded and that must not be kept."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import Table, func, select, update

from jupyter_gpugate.core.private import scrubbed
from jupyter_gpugate.gate.journal import schema
from jupyter_gpugate.gate.journal.database import JournalFile

_DIGEST: Final = f'*,"#{"[0-9a-f]" * 24}"]*'
_AT_ONCE: Final = 500


def scrub(file: JournalFile) -> int:
    """Replace the values of parameters by their digests; return the number of changed rows.

    The values are erased from the file.  Raises `JournalError` where it cannot be written.
    """
    tables = ((schema.events, "seq"), (schema.observations, "id"))
    changed = sum(_scrub(file, table, key) for table, key in tables)
    if changed:
        file.compact()
    return changed


def _scrub(file: JournalFile, table: Table, key: str) -> int:
    data, number = table.c.data, table.c[key]
    holds_values = func.instr(data, '"parameters":[[') > 0, data.op("NOT GLOB")(_DIGEST)
    suspects = select(number, data).where(*holds_values).order_by(number).limit(_AT_ONCE)
    changed, last = 0, -1
    while rows := file.read(suspects.where(number > last)):
        last = rows[-1][0]
        clean = _clean(rows)
        with file.transaction(durable=True) as connection:
            for at, text in clean:
                connection.execute(update(table).where(number == at).values(data=text))
        changed += len(clean)
    return changed


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
