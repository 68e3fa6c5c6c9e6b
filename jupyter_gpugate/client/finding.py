"""Finds the run that a person means: by its id, by a part of it, or by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jupyter_gpugate.client.connection import Client
from jupyter_gpugate.client.errors import GateError
from jupyter_gpugate.core.run_spec import GROUP_ID, NAME, RUN_ID

_ID: Final = re.compile(RUN_ID)
_GROUP: Final = re.compile(GROUP_ID)
_NAME: Final = re.compile(NAME)
#: Candidates that a message lists.
_MOST_LISTED: Final = 8
_UNFINISHED: Final = "unfinished"

Row = Mapping[str, Any]


def find_run(client: Client, text: str) -> str:
    """Return the id of the run that is meant: the one unfinished run, else the newest of a name.

    Raises `GateError` (404) where there is none, (409) where several may be meant.
    """
    if _ID.fullmatch(text):
        return text
    _refuse_group(text)
    live = _candidates(client, text, status=_UNFINISHED)
    ended = [] if live else _candidates(client, text)
    if ended and ended[0]["name"] == text:
        return str(ended[0]["run_id"])
    return _only([*live, *ended], text)


def find_run_or_group(client: Client, text: str) -> str:
    """Return the id of a group as it is, else the id of the run that is meant, as `find_run`."""
    return text if is_group(text) else find_run(client, text)


def with_ids(client: Client, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a submit with ids for the runs and groups that it starts after."""
    if not body.get("after"):
        return body
    return {**body, "after": [find_run_or_group(client, word) for word in body["after"]]}


def expanded(client: Client, words: Iterable[str]) -> list[str]:
    """Return words in which each group is replaced by the ids of its runs."""
    found: list[str] = []
    for word in words:
        if is_group(word):
            found += [str(row["run_id"]) for row in (client.group(word).body or {})["runs"]]
        else:
            found.append(word)
    return found


def is_group(text: str) -> bool:
    """Return whether a text is the id of a group."""
    return bool(_GROUP.fullmatch(text))


def find_unfinished(client: Client, text: str) -> str:
    """Return the id of the one unfinished run that is meant, as for a cancel."""
    if _ID.fullmatch(text):
        return text
    live = _candidates(client, text, status=_UNFINISHED)
    if live:
        return _only(live, text)
    ended = _candidates(client, text)
    if not ended:
        raise _not_found(text)
    newest = ended[0]
    raise GateError(
        f"{text}: no such run is waiting or active; the newest, {newest['run_id']}, has ended: "
        f"{newest.get('end')}",
        code="state",
        status=409,
    )


def find_exactly(client: Client, text: str) -> str:
    """Return the id of the only run, live or ended, that is meant, as for a removal."""
    return text if _ID.fullmatch(text) else _only(_candidates(client, text), text)


def _refuse_group(text: str) -> None:
    if is_group(text):
        problem = f"{text} is a group of runs; `jupyter gpugate show {text}` lists them"
        raise GateError(problem, code="ambiguous", status=409)


def _candidates(client: Client, text: str, **asked: str) -> Sequence[Row]:
    """Return the runs of this name or, if there are none, those with this part of an id."""
    if not _NAME.fullmatch(text):
        raise _not_found(text)
    found = client.runs(_MOST_LISTED + 1, run=text, **asked)
    named = [row for row in found if row["name"] == text]
    return named or found


def _only(found: Sequence[Row], text: str) -> str:
    if len(found) == 1:
        return str(found[0]["run_id"])
    if not found:
        raise _not_found(text)
    listed = ", ".join(str(row["run_id"]) for row in found[:_MOST_LISTED])
    more = ", ..." if len(found) > _MOST_LISTED else ""
    raise GateError(
        f"{text} may mean several runs: {listed}{more}; give the id of one",
        code="ambiguous",
        status=409,
    )


def _not_found(text: str) -> GateError:
    problem = f"there is no run {text}; `jupyter gpugate runs` lists your runs"
    return GateError(problem, code="not_found", status=404)
