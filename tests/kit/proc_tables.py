"""Walks over a fake /proc."""

from __future__ import annotations

import errno
import os

import pytest

KERNEL = ("python", "-m", "ipykernel_launcher", "-f", "/run/kernel-1.json")


def open_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every path that is opened from here on."""
    opened: list[str] = []
    real = os.open

    def recording(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", recording)
    return opened


def deny(monkeypatch: pytest.MonkeyPatch, end: str) -> list[str]:
    """Refuse to open paths that end so, as hidepid=1 does; returns what was asked for."""
    asked: list[str] = []
    real = os.open

    def refusing(path: str, flags: int) -> int:
        if path.endswith(end):
            asked.append(path)
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    return asked
