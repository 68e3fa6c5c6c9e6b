"""Which command lines are notebook kernels, and what their environment says of them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from jupyter_gpugate.core.samples import Process
from jupyter_gpugate.gate.machine.kernels import Kernels, UserNames, is_kernel, session_name

FILE = "/run/user/1000/jupyter/kernel-1f0c9e5a.json"


@pytest.mark.parametrize(
    "words",
    [
        ("/opt/env/bin/python", "-m", "ipykernel_launcher", "-f", FILE),
        ("python3.11", "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "--f=" + FILE),
        ("python", "-m", "ipykernel", "--profile=x"),
        ("python", "-m", "ipykernel.kernelapp"),
        ("python3.13t", "/opt/env/lib/python3.13/site-packages/ipykernel_launcher.py", "-f", FILE),
        ("/opt/env/bin/ipykernel_launcher",),
        ("conda-run", "python", "-m", "ipykernel_launcher", "-f", FILE),
        ("/usr/bin/xcpp", "-f", FILE, "-std=c++17"),
        ("julia", "-i", "--color=yes", "-f", FILE),
    ],
)
def test_kernels_are_recognised(words: tuple[str, ...]) -> None:
    """A kernel is known by ipykernel's module or script, or by its connection file."""
    assert is_kernel("".join(f"{word}\0" for word in words).encode())


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("",),
        ("python", "-m", "jupyter", "lab"),
        ("python", "train.py", "-f", "config.json"),
        ("python", "train.py", "-f", "/data/kernel-sizes.json.gz"),
        ("vim", "ipykernel_launcher.py"),
        ("grep", "ipykernel_launcher"),
        ("python", "-m", "ipykernels_of_mine"),
        ("jupyter-console", "--existing", FILE),
        ("python", "-m"),
        ("cat", "-f"),
    ],
)
def test_other_programs_are_no_kernels(words: tuple[str, ...]) -> None:
    """Speaking of a kernel, or of a file named a little like one, makes no kernel."""
    assert not is_kernel("".join(f"{word}\0" for word in words).encode())


def test_command_line_need_not_be_text() -> None:
    """A command line of any bytes is judged."""
    assert not is_kernel(b"kernel\xff\xfe\0\x80")
    assert is_kernel(b"p\xff\0-m\0ipykernel\0")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (b"HOME=/root\0JPY_SESSION_NAME=/home/ada/a.ipynb\0X=1\0", "/home/ada/a.ipynb"),
        (b"JPY_SESSION_NAME=n=1.ipynb\0", "n=1.ipynb"),
        (b"JPY_SESSION_NAME=\0", None),
        (b"MY_JPY_SESSION_NAME=x\0", None),
        (b"JPY_SESSION_NAME=\xff.ipynb\0", "\ufffd.ipynb"),
        (b"", None),
    ],
)
def test_session_name_is_the_notebook(environ: bytes, expected: str | None) -> None:
    """The notebook is what Jupyter put into the kernel's environment, if it did."""
    assert session_name(environ) == expected


def test_user_names_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known user is looked up once; an unknown one is a number, and asked for again."""
    asked = []

    def lookup(uid: int) -> SimpleNamespace:
        asked.append(uid)
        if uid != 7:
            raise KeyError(uid)
        return SimpleNamespace(pw_name="ada")

    monkeypatch.setattr(pwd, "getpwuid", lookup)
    names = UserNames()

    assert [names.of(7), names.of(7), names.of(8), names.of(8)] == ["ada", "ada", "8", "8"]
    assert asked == [7, 8, 8]


def table(*rows: tuple[int, int]) -> dict[int, Process]:
    """Processes by pid, each with its parent's."""
    return {pid: Process(pid, 10 * pid, parent, os.getuid(), 0) for pid, parent in rows}


KERNEL = b"python\0-m\0ipykernel_launcher\0-f\0/run/kernel-1.json\0"
ENVIRON = b"HOME=/home/ada\0JPY_SESSION_NAME=/home/ada/train.ipynb\0"


def test_what_a_dead_kernel_left_behind_keeps_its_notebooks_name() -> None:
    """A process without a kernel above it is told by its own environment, and by nothing else."""
    kernels = Kernels()
    asked: list[int] = []

    def environ(pid: int, text: bytes) -> Callable[[], bytes]:
        def read() -> bytes:
            asked.append(pid)
            return text

        return read

    processes = table((20, 1), (21, 20), (30, 1), (40, 1), (50, 5), (5, 1))
    for pid, text in ((20, ENVIRON), (21, ENVIRON), (30, b""), (50, ENVIRON)):
        kernels.look_at(processes[pid], b"python\0worker\0", environ(pid, text))
    kernels.look_at(processes[40], b"sh\0", environ(40, ENVIRON + b"GPUGATE_RUN_ID=r1\0"))
    kernels.look_at(processes[5], KERNEL, environ(5, ENVIRON))
    found = {kernel.key.pid: kernel.name for kernel in kernels.among(processes)}
    assert found == dict.fromkeys((5, 20), "/home/ada/train.ipynb")
    kernels.look_at(processes[20], b"python\0worker\0", environ(20, b""))
    assert asked.count(20) == 1, "an environment is read once"
    kernels.forget(5)
    assert {k.key.pid for k in kernels.among(table((20, 1), (21, 20), (50, 1)))} >= {20, 50}
    kernels.forget(20)
    assert 20 not in {k.key.pid for k in kernels.among(table((21, 1), (50, 1)))}


def test_an_environment_that_may_not_be_read_names_nobody() -> None:
    """Another user's process is nobody's notebook."""
    kernels = Kernels()

    def forbidden() -> bytes:
        raise PermissionError

    processes = table((20, 1))
    kernels.look_at(processes[20], b"python\0", forbidden)
    assert kernels.among(processes) == ()
