"""Where the state lies: on a disk of this machine, for this user alone."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from jupyter_gpugate import places
from jupyter_gpugate.gate.journal import local_disk
from jupyter_gpugate.gate.journal.local_disk import (
    file_system_type,
    network_file_system,
    state_directory,
)
from jupyter_gpugate.places import make_private

NFS = 0x6969
EXT4 = 0xEF53


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user a home and a fallback that are empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(places, "FALLBACK", tmp_path / "var-tmp")
    return tmp_path / "home"


@pytest.fixture
def fallback(tmp_path: Path) -> Path:
    """Name the directory that is used where the home will not do."""
    return tmp_path / "var-tmp" / f"gpugate-{os.geteuid()}"


def mounted_from_elsewhere(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    """Make these places look like NFS, and everything else like a local disk."""

    def answer(path: Path) -> int:
        return NFS if any(place in (path, *path.parents) for place in places) else EXT4

    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(local_disk, "file_system_type", answer)


@pytest.mark.parametrize("path", ["/", "/proc", "/sys"])
def test_the_type_is_what_the_system_says(path: str) -> None:
    """The number read through the C library is the one that `stat -f` prints."""
    printed = subprocess.run(["stat", "-f", "-c", "%t", path], capture_output=True, check=True)

    assert file_system_type(Path(path)) == int(printed.stdout, 16)


def test_a_path_that_cannot_be_asked_is_an_error() -> None:
    """No file system is taken for local because nobody answered."""
    with pytest.raises(FileNotFoundError):
        file_system_type(Path("/proc/no/such/place"))


@pytest.mark.parametrize(
    ("number", "name"), [(NFS, "NFS"), (0xFF534D42, "CIFS"), (EXT4, None), (0x01021994, None)]
)
def test_network_file_systems_are_known_by_their_type(
    number: int, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not exist yet is on the file system of what does."""
    monkeypatch.setattr(local_disk, "file_system_type", lambda path: number * (path == tmp_path))

    assert network_file_system(tmp_path / "not" / "yet") == name


def test_the_state_lies_in_the_users_home(home: Path) -> None:
    """With nothing set, the standard place for state is made, for this user alone."""
    directory = state_directory()

    assert directory == home / ".local" / "state" / "gpugate"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_set_state_home_goes_first(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG_STATE_HOME counts where it is an absolute path, as its specification says."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_directory() == tmp_path / "state" / "gpugate"

    monkeypatch.setenv("XDG_STATE_HOME", "relative/state")
    assert state_directory() == home / ".local" / "state" / "gpugate"


def test_a_home_on_the_network_is_passed_over(
    home: Path, fallback: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state goes to the first place that is local, and nothing is made elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mounted_from_elsewhere(monkeypatch, home, tmp_path / "state")

    assert state_directory() == fallback
    assert stat.S_IMODE(fallback.stat().st_mode) == 0o700
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
def test_a_home_that_cannot_be_written_is_passed_over(
    fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a usable home still has a gate."""
    monkeypatch.setenv("HOME", "/proc/nowhere")

    assert state_directory() == fallback


def test_a_directory_that_others_can_read_is_closed(tmp_path: Path) -> None:
    """What was made with a loose umask is the user's alone from now on."""
    loose = tmp_path / "gpugate"
    loose.mkdir()
    loose.chmod(0o755)

    make_private(loose, "another one")

    assert stat.S_IMODE(loose.stat().st_mode) == 0o700


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    """In a directory that everybody writes to, a link leads nowhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gpugate").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PermissionError, match="not a directory of user"):
        make_private(tmp_path / "gpugate", "another one")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.usefixtures("home")
def test_anothers_directory_is_refused(fallback: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that somebody else made first is not written to."""
    monkeypatch.setenv("HOME", "/proc/nowhere")
    fallback.mkdir(parents=True)
    os.chown(fallback, 12345, 12345)

    with pytest.raises(PermissionError, match="move it away"):
        state_directory()
