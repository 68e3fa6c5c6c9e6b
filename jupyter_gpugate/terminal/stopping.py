"""The commands that stop and remove runs, and remove locks: `cancel`, `rm` and `release`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import GateError, SubmissionError
from jupyter_gpugate.client.finding import expanded, find_exactly, find_unfinished, is_group
from jupyter_gpugate.faces import groups, tables, words
from jupyter_gpugate.terminal import answers
from jupyter_gpugate.terminal.exits import FAILED, OK
from jupyter_gpugate.terminal.follow import say

#: Runs that are stopped, or removed, at the same time.
_AT_ONCE = 16
#: Runs that a question lists.
_MOST_LISTED = 20

Row = Mapping[str, Any]
#: Does something about the run that a word means, and returns its id and the answer.
Order = Callable[[str], "tuple[str, Row]"]


def cancel(options: argparse.Namespace) -> int:
    """Stop runs with all their processes."""
    client = connect()
    whole = _whole(options, "cancel")
    if whole:
        asked = {"name": options.name} if options.name else {}
        rows = client.runs(status="unfinished", **asked)
        # Those that wait are stopped first: otherwise they would start meanwhile.
        rows.sort(key=lambda row: row["status"] != "queued")
        if not _chosen(options, rows, "cancel", f"{whole} is waiting or active"):
            return OK if not rows else FAILED
    order = _cancelling(client)
    return _carry_out(options, [row["run_id"] for row in rows] if whole else options.runs, order)


def remove(options: argparse.Namespace) -> int:
    """Remove ended runs with their directories."""
    client = connect()
    whole = _whole(options, "rm")
    if whole:
        rows = client.runs(status="ended", name=options.name)
        live = client.runs(1, status="unfinished", name=options.name)
        if live:
            say(f"runs named {options.name} that are waiting or active stay; cancel them first")
        if not _chosen(options, rows, "remove", f"{whole} has ended"):
            return OK if not rows else FAILED
    given = [row["run_id"] for row in rows] if whole else expanded(client, options.runs)
    return _carry_out(options, given, _removing(client))


def release(options: argparse.Namespace) -> int:
    """End a lock."""
    answer = connect().unlock(options.resource)
    answers.show(options, answer, tables.unlocked(answer))
    return OK


def _whole(options: argparse.Namespace, verb: str) -> str:
    """Return the group of runs that is meant, in words, or "" where runs are given one by one."""
    everything = getattr(options, "all", False)
    given = [bool(options.runs), bool(options.name), everything]
    choices = "RUN ..., --name NAME" + (" or --all" if hasattr(options, "all") else "")
    if sum(given) != 1:
        which = "several ways at once" if sum(given) else "none"
        raise SubmissionError(f"which runs? {which} given: {verb} takes one of {choices}")
    return f"no run named {options.name}" if options.name else "no run" if everything else ""


def _chosen(options: argparse.Namespace, rows: Sequence[Row], verb: str, none: str) -> bool:
    """Ask once about several runs; return whether there is something to do and it is confirmed."""
    if not rows:
        answers.show(options, {}, none)
        return False
    listed = [[str(row["run_id"]), words.named(row)] for row in rows[:_MOST_LISTED]]
    more = f"\n  and {len(rows) - _MOST_LISTED:,} more" if len(rows) > _MOST_LISTED else ""
    question = f"{verb} {'this run' if len(rows) == 1 else f'these {len(rows):,} runs'}?"
    if not options.yes:
        say(tables.text([("", listed)]).strip("\n") + more)
    if answers.confirmed(options, question, f"{verb} {len(rows):,} run{'s' * (len(rows) > 1)}"):
        return True
    say("nothing was changed")
    return False


def _cancelling(client: Client) -> Order:
    def order(word: str) -> tuple[str, Row]:
        if is_group(word):
            return groups.cancelled(answer := client.cancel_group(word)), answer
        run_id = find_unfinished(client, word)
        return tables.cancelled(run_id, answer := client.cancel(run_id)), answer

    return order


def _removing(client: Client) -> Order:
    def order(word: str) -> tuple[str, Row]:
        run_id = find_exactly(client, word)
        try:
            answer = client.delete(run_id)
        except GateError as error:
            if error.code != "state":
                raise
            fix = f"jupyter gpugate cancel {run_id}"
            message = f"{run_id} has not ended; only ended runs can be removed: `{fix}` stops it"
            raise GateError(message, code=error.code, status=error.status) from None
        left = f"; left over: {answer['left']}" if answer.get("left") else ""
        return f"{run_id} is removed{left}", answer

    return order


def _carry_out(options: argparse.Namespace, given: Sequence[str], order: Order) -> int:
    """Carry out an order on every run, say what came of each, and fail if one of them did."""
    found: dict[str, Row] = {}
    failed = False
    unique = list(dict.fromkeys(given))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        works = [(word, threads.submit(order, word)) for word in unique]
        for word, work in works:
            try:
                text, found[word] = work.result()
            except GateError as error:
                failed = True
                found[word] = answers.error(error.message, error.code, error.detail)
                if not options.json:
                    answers.complain(str(error) if word in str(error) else f"{word}: {error}")
            else:
                if not options.json:
                    answers.show(options, {}, text)
    if options.json:
        answers.show(options, found, "")
    return FAILED if failed else OK
