"""Starts the fingerprint of what a run executes: ``INTERPRETER fingerprint/__main__.py``.

Python keeps no compiled form of this file, so it can repair those of the others.
"""

import sys

if not __package__:  # executed by its path: name the packages that it lies in
    folder, _, _ = __file__.rpartition("/")
    programs, _, name = folder.rpartition("/")
    if sys.path[:1] == [folder]:
        del sys.path[0]  # nobody may import its modules by their bare names
    __package__ = f"gpugate_programs.{name}"
    __spec__ = type(sys.__spec__)(f"{__package__}.__main__", None)  # Python warns if they disagree
    sys.modules["gpugate_programs"] = type(sys)("gpugate_programs")
    sys.modules["gpugate_programs"].__path__ = [programs]

sys.dont_write_bytecode = False  # this folder keeps them, whatever the run's environment says
try:
    from .describe import main
except (EOFError, TypeError, ValueError):
    # A full disk has cut a compiled file short, which Python does not notice when it writes it.
    import os
    from contextlib import suppress

    for place, _folders, names in os.walk(__file__.rpartition("/")[0].rpartition("/")[0]):
        for file in names if place.endswith("/__pycache__") else ():
            with suppress(FileNotFoundError):  # another process was faster
                os.unlink(f"{place}/{file}")  # noqa: PTH108 - pathlib may not be loaded yet
    from .describe import main

main()
