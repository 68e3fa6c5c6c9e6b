"""The directory of one attempt: its instructions, and the records of its supervisor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from .attempt_files import as_json, write_whole
from .processes import Proc


class Attempt:
    """One attempt as its directory has it; the run may remove or replace the directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(self.file("launch.json"), "rb") as launch:
            self.launch: dict[str, Any] = json.load(launch)
        with open("/proc/sys/kernel/random/boot_id") as boot_id:
            self.boot_id = boot_id.read().strip()
        self._place = os.lstat(path)

    def file(self, name: str) -> str:
        """Return the path of a file in the directory."""
        return os.path.join(self.path, name)

    def identity(self) -> dict[str, Any]:
        """Return the fields by which the gate identifies this attempt in every message."""
        return {"run_id": self.launch["run_id"], "fence": self.launch["fence"]}

    def environment(self) -> dict[str, str]:
        """Read the run's environment."""
        with open(self.file(self.launch["env_file"]), "rb") as env_file:
            environment: dict[str, str] = json.load(env_file)
        return environment

    def is_gone(self) -> bool:
        """Return whether the run has removed or replaced its directory."""
        try:
            return not os.path.samestat(self._place, os.lstat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def write_tree(self, supervisor: Proc, tree: Iterable[Proc], cgroup: str | None) -> None:
        """Record the processes of the run; a gate finds them by it if the supervisor is killed.

        It is not synced to the disk: after a power cut no process of this tree is left.  A gate
        that finds the cgroup without the supervisor removes it.
        """
        if self.is_gone():
            return
        own = {"boot_id": self.boot_id, "supervisor": supervisor, "cgroup": cgroup}
        path = self.file("tree.json")
        with suppress(OSError):
            with open(f"{path}.new", "wb") as new:
                new.write(as_json({**own, "tree": sorted(tree)}))
            os.replace(f"{path}.new", path)

    def is_recorded(self, outcome: dict[str, Any]) -> bool:
        """Record the end; False where that has to be tried again."""
        try:
            write_whole(self.file("outcome.json"), as_json(outcome))
            write_whole(self.file("_DONE"), b"")
        except PermissionError:  # the run has closed its directory: the next try finds it open
            self._regain()
            return False
        except OSError:
            return False
        return True

    def _regain(self) -> None:
        attempts = os.path.dirname(self.path)
        for place in (os.path.dirname(attempts), attempts, self.path):
            with suppress(OSError):
                if not os.path.islink(place):
                    os.chmod(place, 0o700)
