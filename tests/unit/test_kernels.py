"""Which command lines are notebook kernels, and what their environment says of them."""

from __future__ import annotations

import pwd
from types import SimpleNamespace

import pytest

from jupyter_gpugate.gate.kernels import UserNames, is_kernel, session_name

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
