"""Starts a worker: ``python worker/__main__.py ATTEMPT_DIR INDEX``; processes of its cell as well.

Python keeps no compiled form of this file, so it can repair those of the others.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

if not __package__:  # executed by its path: name the packages that it lies in
    _folder, _, _ = __file__.rpartition("/")
    _programs, _, _name = _folder.rpartition("/")
    if __name__ == "__main__" and sys.path[:1] == [_folder]:
        del sys.path[0]  # the cell must not find these modules
    __package__ = f"gpugate_programs.{_name}"
    __spec__ = type(sys.__spec__)(f"{__package__}.__main__", None)  # a warning comes if they differ
    sys.modules["gpugate_programs"] = type(sys)("gpugate_programs")
    sys.modules["gpugate_programs"].__path__ = [_programs]


def _program() -> Callable[[Any], None]:
    """Load what this process executes."""
    if __name__ == "__mp_main__":
        from .child import define_in_child

        return define_in_child
    from .main import main

    return main


def _remove_compiled() -> None:
    """Remove the compiled files: a full disk cuts them short, and Python does not notice."""
    import os
    from contextlib import suppress

    for place, _, names in os.walk(__file__.rpartition("/")[0].rpartition("/")[0]):
        for file in names if place.endswith("/__pycache__") else ():
            with suppress(FileNotFoundError):  # another worker was faster
                os.unlink(f"{place}/{file}")  # noqa: PTH108 - pathlib may not be loaded yet


_no_files, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # this folder keeps them
try:
    _execute = _program()
except (EOFError, TypeError, ValueError):
    _remove_compiled()
    _execute = _program()
finally:
    sys.dont_write_bytecode = _no_files

if __name__ == "__mp_main__":
    _execute(globals())
elif __name__ == "__main__":
    _execute(sys.argv)
