"""Input values that a client has staged for a run: moved at its submit, removed at its end."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jupyter_gpugate.places import STAGING
from jupyter_gpugate.runs.folder import Torn, in_words, opened

_FILE: Final = re.compile(r"[^\W\d]\w*(\.buffers|\.pickle)")


class NotStaged(ValueError):
    """Staged inputs cannot be used; the message says why."""


def fill(place: Path, staged: str, named: Sequence[str]) -> None:
    """Make the folder of a run's inputs, with all that are named; raises `NotStaged`."""
    if staged:
        _take_over(Path(staged), place, named)
    elif named:
        raise NotStaged(_unstaged(named[0]))
    else:
        place.mkdir(mode=0o700)


def forget_inputs(run: Path) -> None:
    """Remove the inputs of an ended run, which are only copies."""
    with opened(run) as folder:
        folder.remove_folder("inputs")


def _unstaged(name: str) -> str:
    return f"no value was staged for {name}"


def _take_over(staged: Path, place: Path, named: Sequence[str]) -> None:
    """Move a client's staged inputs to ``place``; raise `NotStaged` on a mismatch."""
    if not staged.is_absolute():
        raise NotStaged(f"{staged} is not an absolute path")
    # The folder is moved, so it must be one that was made for this run.
    if staged.parts[-3:-1] != STAGING or staged.name == "..":
        raise NotStaged(
            f"{staged} is not in a folder {'/'.join(STAGING)}: inputs elsewhere are refused"
        )
    try:
        with opened(staged) as folder:
            found = folder.names()
            for name in found:
                if not _FILE.fullmatch(name):
                    raise NotStaged(f"{name!r} is not the name of an input file")
                os.close(folder.open_file(name))
            for name in named:
                if f"{name}.pickle" not in found:
                    raise NotStaged(_unstaged(name))
            folder.sync()
    except (OSError, Torn, ValueError) as error:
        raise NotStaged(f"{staged}: {in_words(error)}") from error
    shutil.move(staged, place)  # also from another file system
    place.chmod(0o700)
