"""The source of a command: a Python module, script or code, or any other program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.programs.fingerprint.command_line import PythonCommand, parse_python
from jupyter_gpugate.programs.fingerprint.describe import describe
from tests.kit.source_projects import Project, write


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["eval.py", "-m", "x"], PythonCommand(file="eval.py")),
        (["-u", "-X", "dev", "-Wignore", "eval.py"], PythonCommand(file="eval.py")),
        (["-W", "ignore", "-m", "pkg.mod", "-c"], PythonCommand(module="pkg.mod")),
        (["-Im", "pkg"], PythonCommand(module="pkg")),
        (["-mpkg"], PythonCommand(module="pkg")),
        (["-Xdev", "-OOc", "print()"], PythonCommand(code="print()")),
        (["--check-hash-based-pycs", "always", "x.py"], PythonCommand(file="x.py")),
        (["-"], PythonCommand()),
        (["-X"], PythonCommand()),
        ([], PythonCommand()),
    ],
)
def test_a_python_command_line_is_read_as_python_reads_it(
    words: list[str], command: PythonCommand
) -> None:
    """Options with and without values stand before the script, module or code."""
    assert parse_python(words) == command


def describe_program(project: Project, *argv: str) -> dict[str, Any]:
    """Describe a command in the project's folder."""
    request = {"argv": list(argv), "cwd": str(project.home), "path": [str(project.site)]}
    return describe({"kind": "program", **request})


def test_a_script_is_its_tree_and_its_own_modules(project: Project) -> None:
    """``python FILE`` counts the script and its own folder's modules; arguments do not."""
    write(
        project.home, {"tools/eval.py": "import near\nimport yaml_like\n", "tools/near.py": "x = 1"}
    )
    first = describe_program(project, sys.executable, "-u", "tools/eval.py", "--batch", "64")
    tools = project.home / "tools"
    assert first["files"] == [str(tools / "eval.py"), str(tools / "near.py")]
    assert (first["packages"], first["error"]) == ({"yaml_like": "6.0.1"}, None)
    project.edit("tools/eval.py", "import near", "import near  # beside")
    same = describe_program(project, sys.executable, "tools/eval.py", "--batch", "32")
    assert same["source_hash"] == first["source_hash"]
    project.edit("tools/near.py", "1", "2")
    other = describe_program(project, sys.executable, "-u", "tools/eval.py")
    assert other["source_hash"] != first["source_hash"]


def test_a_script_needs_no_ending_to_be_python(project: Project) -> None:
    """What a Python is told to run is read as Python."""
    write(project.home, {"evaluate": "x = 1\n"})
    first = describe_program(project, sys.executable, "evaluate")
    project.edit("evaluate", "x = 1", "x = 1  # one")
    assert (
        describe_program(project, sys.executable, "evaluate")["source_hash"] == first["source_hash"]
    )


def test_a_first_party_module_is_its_tree(project: Project) -> None:
    """``python -m`` counts the module, or a package's ``__main__``, and what they import."""
    write(project.home, {"project/__main__.py": "from project import layers\n"})
    answer = describe_program(project, sys.executable, "-m", "project")
    names = {str(Path(name).relative_to(project.home)) for name in answer["files"]}
    assert names == {
        "project/__init__.py",
        "project/__main__.py",
        "project/layers.py",
        "project/names.py",
    }
    assert describe_program(project, sys.executable, "-m", "late")["files"] == [
        str(project.home / "late.py"),
        str(project.home / "lazy.py"),
    ]


def test_an_installed_module_is_its_version(project: Project) -> None:
    """``python -m`` of an installed package counts by name and version."""
    answer = describe_program(project, sys.executable, "-m", "sklearn_like")
    assert (answer["packages"], answer["files"]) == ({"sklearn_like": "1.4"}, [])


def test_code_on_the_command_line_is_its_tree(project: Project) -> None:
    """``python -c`` counts the code's tree and imports."""
    first = describe_program(project, sys.executable, "-c", "import late; x=1")
    assert str(project.home / "late.py") in first["files"]
    same = describe_program(project, sys.executable, "-c", "import late\nx = 1")
    assert same["source_hash"] == first["source_hash"]


def executable(path: Path, text: str = "#!/bin/sh\n") -> str:
    """Write a program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_program_belongs_to_the_distribution_that_installed_it(
    project: Project, tmp_path: Path
) -> None:
    """An executable counts by its distribution's version, found by record or by entry point."""
    by_record = executable(project.site.parents[2] / "bin" / "sk")
    by_entry = executable(project.site.parents[2] / "bin" / "yl")
    entries = "[console_scripts]\nyl = yaml_like:main\n"
    write(project.site, {"YAML_Like-6.0.1.dist-info/entry_points.txt": entries})
    linked = tmp_path / "local-bin" / "sk"
    linked.parent.mkdir()
    linked.symlink_to(by_record)
    first = describe_program(project, by_record, "--fast")
    assert (first["packages"], first["files"]) == ({"scikit_like": "1.4"}, [])
    assert describe_program(project, by_entry)["packages"] == {"YAML_Like": "6.0.1"}
    assert describe_program(project, str(linked))["source_hash"] == first["source_hash"]
    executable(Path(by_record), "#!/bin/sh\n# another content\n")
    assert describe_program(project, by_record)["source_hash"] == first["source_hash"]
    project.rename("scikit_like-1.4.dist-info", "scikit_like-1.5.dist-info")
    assert describe_program(project, by_record)["source_hash"] != first["source_hash"]


def test_any_other_program_is_its_content(project: Project) -> None:
    """A program that nobody installed counts by its bytes, its arguments do not."""
    program = executable(project.home / "run-eval")
    first = describe_program(project, "./run-eval", "a")
    assert (first["packages"], first["files"]) == ({}, [program])
    assert describe_program(project, program, "b")["source_hash"] == first["source_hash"]
    executable(project.home / "run-eval", "#!/bin/sh\n#\n")
    assert describe_program(project, "./run-eval", "a")["source_hash"] != first["source_hash"]


@pytest.mark.parametrize("command", [["./starter", "--n", "2", "late.py"], ["sh", "script"]])
def test_a_script_behind_another_program_counts_too(project: Project, command: list[str]) -> None:
    """A ``.py`` after a launcher, and the script of a shell, are part of the source."""
    executable(project.home / "starter")
    write(project.home, {"script": "echo 1\n"})
    first = describe_program(project, *command)
    project.edit("late.py", "x = 1", "x = 2")
    project.edit("script", "1", "2")
    assert describe_program(project, *command)["source_hash"] != first["source_hash"]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["no-such-program-here"], "no-such-program-here: no such program"),
        (["./nothing"], "./nothing: no such program"),
        ([sys.executable, "nothing.py"], "nothing.py: no such file"),
        ([sys.executable, "-m", "nothing"], "-m nothing: no such module"),
    ],
)
def test_a_command_that_cannot_run_is_an_error(
    project: Project, argv: list[str], error: str
) -> None:
    """The answer names the program, script or module that does not exist."""
    assert describe_program(project, *argv)["error"] == error
