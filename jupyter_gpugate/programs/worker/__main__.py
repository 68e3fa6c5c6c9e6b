"""Starts a worker: ``python FOLDER ATTEMPT_DIR INDEX``; processes of its cell execute it too."""

from __future__ import annotations

import sys

if not __package__:  # executed by its path: name the packages that it lies in
    _folder, _, _ = __file__.rpartition("/")
    _programs, _, _name = _folder.rpartition("/")
    if __name__ == "__main__" and sys.path[:1] == [_folder]:
        del sys.path[0]  # the cell must not find these modules
    __package__ = f"gpugate_programs.{_name}"
    __spec__ = type(sys.__spec__)(f"{__package__}.__main__", None)  # a warning comes if they differ
    sys.modules["gpugate_programs"] = type(sys)("gpugate_programs")
    sys.modules["gpugate_programs"].__path__ = [_programs]

_no_files, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # this folder keeps them
try:
    if __name__ == "__mp_main__":
        from .child import define_in_child
    else:
        from .main import main
finally:
    sys.dont_write_bytecode = _no_files

if __name__ == "__mp_main__":
    define_in_child(globals())
elif __name__ == "__main__":
    main(sys.argv)
