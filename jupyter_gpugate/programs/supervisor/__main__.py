"""Starts the supervisor of one attempt: ``python -I -S PROGRAMS/supervisor ATTEMPT_DIR``."""

import sys

if __spec__ and not __package__:  # started as a folder: name the packages that it lies in
    folder = sys.path.pop(0)  # its modules are not to be imported by their bare names
    programs, _, name = folder.rpartition("/")
    __package__ = f"gpugate_programs.{name}"
    __spec__ = type(__spec__)(f"{__package__}.__main__", None)  # Python warns if they disagree
    sys.modules["gpugate_programs"] = type(sys)("gpugate_programs")
    sys.modules["gpugate_programs"].__path__ = [programs]

from .main import main

main()
