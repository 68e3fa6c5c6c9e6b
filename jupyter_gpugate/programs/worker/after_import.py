"""Actions on a module once something else has imported it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Optional


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported elsewhere; imports none itself."""

    def __init__(self, calls: Mapping[str, Callable[[Any], None]]) -> None:
        self._calls = dict(calls)
        for name in [name for name in calls if name in sys.modules]:
            self._calls.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Any, target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        call = self._calls.pop(fullname, None)
        if call is None:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                _call_after(spec.loader, call)
                return spec
        return None


def _call_after(loader: Any, call: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        call(module)

    loader.exec_module = exec_module
