"""The copy of the programs that run alone: when it is written, trusted and removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jupyter_gpugate.runs import directory, programs
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.removal import ABANDONED_S, remove_at_once
from tests.kit.run_directories import RUN_ID, as_plain_user, make, modes, names

OTHER = "0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give the folder of all runs."""
    return tmp_path / "runs"


def inodes(copy: Path) -> dict[str, int]:
    """Identify the files of a copy."""
    return {str(path): path.stat().st_ino for path in copy.rglob("*")}


def other_version(root: Path, *, unused_s: float = 2 * ABANDONED_S) -> Path:
    """Put the copy of another version in place, used last some time ago."""
    copy = root / "programs" / OTHER
    (copy / "gpugate_programs").mkdir(parents=True)
    used = copy.stat().st_mtime - unused_s
    os.utime(copy, (used, used))
    return copy


def use(root: Path, digest: str) -> Path:
    """Make an unfinished run that was started from a version; return its attempt."""
    run = make(root)
    return directory.create_attempt(run, 1, {"attempt": 1, "programs": digest})


def test_a_version_is_written_once(root: Path) -> None:
    """All runs of a version share one copy of its programs, which belongs to its user alone."""
    made = Programs(root)
    copy = made.ready()
    assert copy == root / "programs" / made.digest / "gpugate_programs"
    assert (copy / "supervisor" / "__main__.py").read_bytes() == (
        programs._SOURCE / "supervisor" / "__main__.py"
    ).read_bytes()
    assert list(copy.rglob("*.pyc")) == []
    assert set(modes(root / "programs").values()) == {"0o700", "0o600"}
    written = inodes(copy)
    assert Programs(root).ready() == copy
    assert inodes(copy) == written
    assert names(root / "programs") == [made.digest]


def test_a_version_is_named_by_its_content(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file or name makes another version, and another folder."""
    changed = root.parent / "changed"
    shutil.copytree(programs._SOURCE, changed)
    before = Programs(root)
    monkeypatch.setattr(programs, "_SOURCE", changed)
    assert Programs(root).digest == before.digest
    with (changed / "__init__.py").open("a") as file:
        file.write("# changed\n")
    after = Programs(root)
    (changed / "__init__.py").rename(changed / "renamed.py")
    assert len({before.digest, after.digest, Programs(root).digest}) == 3
    assert before.ready() != after.ready()


def test_an_upgrade_under_a_run_side_mixes_no_versions(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run side writes the programs that it was loaded with, whatever is installed by then."""
    installed = root.parent / "installed"
    shutil.copytree(programs._SOURCE, installed)
    monkeypatch.setattr(programs, "_SOURCE", installed)
    made = Programs(root)
    before = (installed / "__init__.py").read_text()
    (installed / "__init__.py").write_text("# upgraded\n")
    assert (made.ready() / "__init__.py").read_text() == before


@pytest.mark.parametrize("damage", ["changed", "missing", "linked", "removed", "open", "a file"])
def test_a_copy_that_is_not_whole_is_written_again(root: Path, damage: str) -> None:
    """No program starts from files that others could write, or that are not of its version."""
    made = Programs(root)
    copy = made.ready()
    main = copy / "supervisor" / "__main__.py"
    if damage == "changed":
        main.write_text(main.read_text().replace("main()", "exit()"))
    elif damage == "missing":
        main.unlink()
    elif damage == "linked":
        main.rename(root / "elsewhere")
        main.symlink_to(root / "elsewhere")
    elif damage == "open":
        copy.parent.chmod(0o777)
    else:
        shutil.rmtree(copy.parent)
        if damage == "a file":
            copy.parent.write_text("")
    assert made.ready() == copy
    assert programs._is_whole(copy.parent, made._files)
    assert not main.is_symlink()
    assert list(copy.rglob("*.pyc")) == []
    assert names(root / "programs") == [made.digest]


def test_two_processes_may_write_a_version_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second uses what the first has written, and leaves nothing behind."""
    made, fill = Programs(root), programs._fill
    written: dict[str, int] = {}

    def late(draft: Path, files: programs.Files) -> None:
        fill(draft, files)
        monkeypatch.setattr(programs, "_fill", fill)
        written.update(inodes(Programs(root).ready()))

    monkeypatch.setattr(programs, "_fill", late)
    assert inodes(made.ready()) == written
    assert names(root / "programs") == [made.digest]


def test_programs_are_not_put_where_others_may_write(root: Path) -> None:
    """In a folder that another user can write to, somebody could replace a user's programs."""
    made = Programs(root)
    made.ready()
    (root / "programs").chmod(0o777)
    with pytest.raises(PermissionError, match="open to others"):
        made.ready()


def test_a_disk_that_fails_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that cannot be written raises the error of the disk, and leaves no half of it."""

    def full(draft: Path, _: programs.Files) -> None:
        draft.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(programs, "_fill", full)
    with pytest.raises(OSError, match="No space left"):
        Programs(root).ready()
    assert names(root / "programs") == []


def test_another_version_is_removed_once_nobody_uses_it(root: Path) -> None:
    """The copies of earlier versions go, with what is left of half-written ones."""
    made = Programs(root)
    made.ready()
    other_version(root)
    draft = root / "programs" / f".new-{OTHER}-00112233"
    draft.mkdir()
    os.utime(draft, (0, 0))
    assert made.remove_unused() == []
    assert names(root / "programs") == [made.digest]


def test_a_version_stays_while_an_unfinished_run_uses_it(root: Path) -> None:
    """A live run may still load from its programs; when it has ended, they can go."""
    other = other_version(root)
    attempt = use(root, OTHER)
    Programs(root).remove_unused()
    assert other.is_dir()
    directory.forget_environment(root / RUN_ID)
    Programs(root).remove_unused()
    assert not other.exists()
    assert attempt.is_dir()


def test_a_version_that_was_used_just_now_stays(root: Path) -> None:
    """Another machine that shares the folder may be about to start a run from it."""
    other = other_version(root, unused_s=60)
    Programs(root).remove_unused()
    assert other.is_dir()


def test_no_version_is_removed_while_a_run_cannot_be_read(root: Path) -> None:
    """An unfinished run whose instructions are torn may use any of them."""
    other = other_version(root)
    (use(root, OTHER) / "launch.json").write_text('{"programs": ')
    assert Programs(root).remove_unused() == []
    assert other.is_dir()


def test_a_run_of_the_former_layout_uses_no_copy(root: Path) -> None:
    """Its programs lie in its attempt's directory, so it keeps no version alive."""
    other = other_version(root)
    run = make(root)
    attempt = directory.create_attempt(run, 1, {"attempt": 1})
    assert "programs" not in json.loads((attempt / "launch.json").read_text())
    Programs(root).remove_unused()
    assert not other.exists()
    assert stat.S_ISDIR(attempt.lstat().st_mode)


def test_many_starts_mend_a_damaged_copy_together(root: Path) -> None:
    """A copy that a power cut has torn is written again once, and no start fails of it."""
    sides = [Programs(root), Programs(root)]
    for _ in range(20):
        copy = sides[0].ready()
        (copy / "supervisor" / "main.py").write_text("torn")
        with ThreadPoolExecutor(8) as pool:
            starts = [pool.submit(side.ready) for side in sides * 4]
        assert {start.result() for start in starts} == {copy}
        assert names(root / "programs") == [sides[0].digest]


def test_a_damaged_copy_is_replaced_before_its_files_go(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live run whose cell starts processes finds its programs while they are mended."""
    made, seen = Programs(root), []
    copy = made.ready()
    (copy / "worker" / "main.py").write_text("torn")

    def removed(path: Path) -> str:
        seen.append(programs._is_whole(copy.parent, made._files))
        return remove_at_once(path)

    monkeypatch.setattr("jupyter_gpugate.runs.programs.remove_at_once", removed)
    made.ready()
    assert seen == [True]


def test_what_others_may_read_is_not_written_again(root: Path) -> None:
    """The programs are no secret; on some file systems every folder can be read by everybody."""
    made = Programs(root)
    written = inodes(made.ready())
    for path in (root / "programs").rglob("*"):
        path.chmod(0o755)
    assert inodes(made.ready()) == written


@pytest.mark.parametrize("closed", ["run", "attempts"])
def test_a_version_stays_while_a_run_keeps_others_out_of_its_directory(closed: str) -> None:
    """A run that has closed its own directory may be live, and may use any version."""
    with TemporaryDirectory() as place:  # every user can get there
        root = Path(place) / "runs"
        other = other_version(root)
        attempt = use(root, OTHER)
        (attempt.parents[1] if closed == "run" else attempt.parent).chmod(0)
        assert as_plain_user(Path(place), lambda: str(Programs(root).remove_unused())) == "[]"
        assert other.exists()


def test_a_folder_of_somebody_else_is_not_taken_for_a_version(root: Path) -> None:
    """The folder of the runs may hold other files, and ``programs`` is a common name."""
    thesis = root / "programs" / OTHER / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine")
    os.utime(thesis.parent, (0, 0))
    assert Programs(root).remove_unused() == []
    assert thesis.exists()
