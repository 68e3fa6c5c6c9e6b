"""Claims the role of the user's gate for one process, and records where it listens."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.gate.lock import GateLock, user_lock
from jupyter_gpugate.places import SOCKET_RECORD, abstract_path, check_own, write_private

#: Settings that may differ between the processes of a user.
OF_ONE_PROCESS = ("root",)


class Claim:
    """The lock of a user, independent of settings, and the lock of the state directory.

    Two homes may be set to one state directory, and an older version uses only its lock.
    """

    def __init__(self, place: Path, state: Path, settings: JsonObject) -> None:
        self._place = place
        self._state = state
        self._settings = settings
        self._of_user: GateLock | None = None  # once its place is known
        self._of_state = GateLock(state / "gate.lock")
        self._told = state / SOCKET_RECORD

    @property
    def name(self) -> str:
        """The gate's name on this machine; "" before the first `take`."""
        return self._of_user.name if self._of_user is not None else ""

    @property
    def listener(self) -> socket.socket | None:
        """The listener under the gate's name, while this process is the gate."""
        return self._of_user.listener if self._of_user is not None else None

    def take(self) -> bool:
        """Become the gate if there is none; raise `OSError` if the lock files cannot be used."""
        self._of_user = self._of_user or user_lock()
        try:
            if self._of_user.acquire():
                check_own(self._state, "state_directory")
                if self._of_state.acquire():
                    return True
        except BaseException:
            self.release()
            raise
        self.release()
        return False

    def release(self) -> None:
        """Release both locks."""
        self._of_state.release()
        if self._of_user is not None:
            self._of_user.release()

    def renew(self, socket_path: Path | None) -> None:
        """Write the records again if they were removed or have changed."""
        locks = [lock for lock in (self._of_user, self._of_state) if lock is not None]
        renewed = [lock.renew() for lock in locks]
        if any(renewed) or self._recorded() != str(socket_path or ""):
            self.record(socket_path)

    def record(self, socket_path: Path | None) -> None:
        """Record for other processes where the gate listens, and its settings."""
        listens = str(socket_path or "")
        record = {"socket": listens, "place": str(self._place), "settings": self._settings}
        with contextlib.suppress(OSError):  # a full disk; it is tried again
            if self._of_user is not None:
                self._of_user.record(json.dumps(record))
            if listens:
                # A client of another home, or of an older version, looks here.
                write_private(self._told, listens)
            else:
                self._told.unlink(missing_ok=True)

    def differences(self) -> str:
        """Describe the settings of the active gate that differ from these."""
        theirs = self._in_force().get("settings") or {}
        differing = [
            f"{name} {theirs[name]}, not {value}"
            for name, value in self._settings.items()
            if name not in OF_ONE_PROCESS and name in theirs and theirs[name] != value
        ]
        return "; ".join(differing)

    def addresses(self) -> list[str]:
        """Return the places where the active gate may be reached, most likely first."""
        with contextlib.suppress(OSError):
            self._of_user = self._of_user or user_lock()
        found = (
            str(self._in_force().get("socket") or ""),
            self._recorded(),
            str(self._place),
            abstract_path(self.name) if self.name else "",
        )
        return [address for address in dict.fromkeys(found) if address]

    def _in_force(self) -> JsonObject:
        try:
            record = json.loads(self._of_user.recorded() if self._of_user is not None else "")
        except ValueError:
            return {}
        return record if isinstance(record, dict) else {}

    def _recorded(self) -> str:
        try:
            return self._told.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""
