"""Starts the supervisor of one attempt: ``python -I -S supervisor/__main__.py ATTEMPT_DIR``.

Python keeps no compiled form of this file, so it can repair those of the others.
"""

import sys

if not __package__:  # executed by its path: name the packages that it lies in
    folder, _, _ = __file__.rpartition("/")
    programs, _, name = folder.rpartition("/")
    if sys.path[:1] == [folder]:
        del sys.path[0]  # its modules are not to be imported by their bare names
    __package__ = f"gpugate_programs.{name}"
    __spec__ = type(sys.__spec__)(f"{__package__}.__main__", None)  # Python warns if they disagree
    sys.modules["gpugate_programs"] = type(sys)("gpugate_programs")
    sys.modules["gpugate_programs"].__path__ = [programs]

try:
    from .main import main
except (EOFError, TypeError, ValueError):
    # A full disk has cut a compiled file short, which Python does not notice when it writes it.
    import os
    from contextlib import suppress

    for place, _folders, names in os.walk(__file__.rpartition("/")[0].rpartition("/")[0]):
        for file in names if place.endswith("/__pycache__") else ():
            with suppress(FileNotFoundError):  # another supervisor was faster
                os.unlink(f"{place}/{file}")
    from .main import main

main()
