"""A gate that a program of the run needs: started outside of the run's process tree."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

CLONE_PARENT = 0x8000
CLONE_CALL = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}


def start_wanted_gate(request: str, argv: list[str]) -> None:
    """Start a gate if the file of a request for one is there; the request is removed.

    ``argv`` comes from the instructions, which were written before any user code ran.
    """
    if not os.path.exists(request):
        return
    try:
        with open(request, "rb") as file:
            wanted: dict[str, Any] = json.load(file)
        os.unlink(request)
        start_beside(argv, wanted["environ"], wanted["cwd"], wanted["log"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"the gate that the run needs cannot be started: {error!r}\n")


def start_beside(argv: list[str], environ: dict[str, str], cwd: str, log: str) -> None:
    """Start a program as a child of this process's parent, outside of the tree below.

    There must be no other thread: the child is a bare copy of this one until it executes.
    """
    call = CLONE_CALL[os.uname().machine]
    environ = {k: v for k, v in environ.items() if not k.startswith("GPUGATE_RUN_ID")}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    output = os.open(log, flags, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # PyDLL keeps hold of the interpreter's lock, which no other thread could hand to the child.
        child = ctypes.PyDLL(None).syscall(call, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            try:
                os.setsid()
                os.umask(0o022)
                os.chdir(cwd)
                for ours, theirs in ((null, 0), (output, 1), (output, 2)):
                    os.dup2(ours, theirs)
                os.execve(argv[0], argv, environ)  # noqa: S606 - there is no shell to start
            finally:
                os._exit(127)
    finally:
        os.close(output)
        os.close(null)
    if child < 0:
        raise OSError("no process can be made")
