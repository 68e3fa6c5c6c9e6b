"""A real IPython shell with the magics, for a gate that the test plays."""

from __future__ import annotations

from typing import Any, cast

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import ExecutionResult

DONE = {"status": "ended", "end": "completed", "attempt": 1}


class Notebook:
    """A shell with the extension loaded, and what it shows."""

    def __init__(self, shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = shell
        self._capsys = capsys
        publisher: Any = CapturingDisplayPublisher
        shell.display_pub = publisher(shell=shell)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """All displays so far, as published."""
        return cast(CapturingDisplayPublisher, self.shell.display_pub).outputs

    def page(self) -> list[dict[str, Any]]:
        """Return the displays as they stand on the page, each as it was renewed last."""
        places: dict[str, dict[str, Any]] = {}
        for number, display in enumerate(self.shown):
            name = (display.get("transient") or {}).get("display_id", str(number))
            assert display["update"] == (name in places), display
            places[name] = display
        return list(places.values())

    def texts(self) -> list[str]:
        """Return the plain text of each display so far."""
        return [display["data"].get("text/plain", "") for display in self.shown]

    def run(self, source: str) -> ExecutionResult:
        """Run a cell; its error is in the result."""
        return cast(ExecutionResult, self.shell.run_cell(source))

    def usage_error(self, source: str) -> str:
        """Run a cell that a user got wrong, and return the one line that it is told."""
        self._capsys.readouterr()
        self.run(source)
        said = "".join(self._capsys.readouterr())
        assert said.startswith("UsageError: "), said
        assert said.count("\n") == 1, said
        return said.strip()
