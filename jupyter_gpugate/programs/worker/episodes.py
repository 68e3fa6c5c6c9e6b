"""The episodes of a run, as the cell iterates over them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Optional

from .attempt import Attempt
from .events import Events
from .pickling import dump_by_reference, dump_by_value, pickling_hint
from .torch_memory import report_torch_memory
from .values import write_whole
from .wording import error_text

_POLL_S = 0.05  # between two checks whether the other workers have ended


class Episode:
    """One unit of the run's work; ``index`` counts from 0 over all workers."""

    def __init__(self, index: int, keep: Callable[[int, object], None]) -> None:
        self.index = index
        self._keep = keep

    def keep(self, value: object) -> None:
        """Store the episode's result; it is on the disk when this returns, and survives a retry."""
        self._keep(self.index, value)

    def __repr__(self) -> str:
        return f"Episode({self.index})"


class Episodes:
    """The episodes of one worker's share (w, w + N, ...); iterate over it.

    A resumed run leaves out the episodes that earlier attempts have kept.
    """

    def __init__(self, attempt: Attempt, events: Events, resumed: Mapping[int, Path]) -> None:
        self._attempt = attempt
        self._events = events
        self._resumed = dict(resumed)  # index -> file of the value, of every worker
        self._share = range(attempt.worker, int(attempt.launch["episodes"]), attempt.workers)
        self._finished = {index for index in resumed if index in self._share}
        self._kept: set[int] = set()
        self._open: Optional[int] = None
        self._iterated = False
        self._at_end = False
        attempt.kept.mkdir(mode=0o700, exist_ok=True)

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[Episode]:
        self._iterated = True
        for index in self._share:
            if index not in self._resumed:
                self._open = index
                yield Episode(index, self._keep)
                self._finish()
        self._end()

    @property
    def values(self) -> list[object]:
        """The kept values in the order of their episodes, over all attempts.

        Until this worker's loop has ended, these are its own values; after that they are those of
        all workers, once all their loops have ended.
        """
        if self._at_end:
            self._wait_for_the_others()
        files = {**self._resumed, **kept_files(self._attempt.kept)}
        wanted = [i for i in sorted(files) if self._at_end or i in self._share]
        return [self._load(index, files[index]) for index in wanted]

    def close(self) -> None:
        """End with the cell: a ``break`` ends an episode, and a cell without a loop is one."""
        if self._open is not None:
            self._finish()
        if not self._iterated and self._attempt.worker == 0:
            asked = int(self._attempt.launch["episodes"])
            if asked > 1:
                self._events.warn(
                    f"the cell never iterates over `episodes`: the run counts as one episode, "
                    f"though {asked} were asked for"
                )
            self._open = 0
            self._finish()
        elif len(self._finished) < len(self._share) and self._iterated:
            self._events.warn(
                f"the loop over `episodes` was left after {len(self._finished)} of "
                f"{len(self._share)} episodes" + self._of_this_worker()
            )
        self._end()

    def _of_this_worker(self) -> str:
        return f" of worker {self._attempt.worker}" if self._attempt.workers > 1 else ""

    def _keep(self, index: int, value: object) -> None:
        path = self._attempt.kept / f"{index}.pickle"
        try:
            write_whole(path, lambda file: dump_by_reference(value, file))
        except (pickle.PicklingError, AttributeError, TypeError):
            try:
                write_whole(path, lambda file: dump_by_value(value, file))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise TypeError(
                    f"the value of episode {index} cannot be kept: "
                    f"{error_text(error)}{pickling_hint(error)}"
                ) from error
        self._kept.add(index)

    def _load(self, index: int, path: Path) -> object:
        try:
            with path.open("rb") as file:
                return pickle.load(file)  # noqa: S301 - written by this run
        except Exception as error:
            raise ValueError(
                f"the kept value of episode {index} cannot be loaded: {error_text(error)}"
            ) from error

    def _finish(self) -> None:
        index, self._open = self._open, None
        if index is None:
            return
        self._finished.add(index)
        kept = index in self._kept
        if not kept:
            _mark(self._attempt.kept, "unkept")
        worker, done = self._attempt.worker, len(self._finished)
        self._events.send("episode", worker=worker, index=index, kept=kept, done=done)
        report_torch_memory(self._attempt, self._events)

    def _end(self) -> None:
        self._at_end = True
        _mark(self._attempt.kept, f"ended.{self._attempt.worker}")

    def _wait_for_the_others(self) -> None:
        marks = [f"ended.{worker}" for worker in range(self._attempt.workers)]
        while not all((self._attempt.kept / mark).exists() for mark in marks):
            time.sleep(_POLL_S)  # the failure of one worker ends the whole run


def _mark(folder: Path, name: str) -> None:
    path = folder / name
    if not path.exists():
        write_whole(path, lambda file: file.write(b""))


def kept_files(folder: Path) -> dict[int, Path]:
    """Return the files of the values kept in one attempt, by episode."""
    return {int(path.stem): path for path in folder.glob("*.pickle") if path.stem.isdecimal()}
