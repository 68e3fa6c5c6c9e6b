"""The project around the code: what it declares, what it says, and what it must not say."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.core.state import Traits
from jupyter_gpugate.server.extension import GpuGate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jupyter_gpugate"
#: What stands in the manual for a default that is no value.
UNNAMED = ("none", "as above")
#: Libraries of a run's own environment, used where they are and never required.
GUESTS = {"cloudpickle", "comm", "jax", "numpy", "pandas", "tensorflow", "torch"}
#: In two pieces each, so that this list is no find itself.
FORBIDDEN = [
    "".join(pieces)
    for pieces in (
        ("pypi", ".org"),
        ("python", "hosted"),
        ("registry.", "npmjs"),
        ("deb.", "debian"),
        ("download.", "pytorch"),
        ("../", "shared"),
        ("/work", "/main"),
        ("gg", "env"),
        ("DESIGN", ".md"),
        ("PROTOCOL", ".md"),
        ("NOTEBOOK", ".md"),
        ("ROWS", ".md"),
        ("RULES", ".md"),
        ("FAULTS", ".md"),
        ("CASES", ".md"),
        ("RECIPES", ".md"),
        ("SPEED", ".md"),
        ("clau", "de"),
        ("sub", "agent"),
    )
]


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def version() -> str:
    """Read the one place where the version is written."""
    return str(ast.literal_eval((PACKAGE / "_version.py").read_text().partition("=")[2].strip()))


def test_the_manual_names_every_setting_with_its_default() -> None:
    """A server has the defaults that are written down, and so has a gate without a server."""
    manual = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `c\.GpuGate\.(\w+)` \| (.+?) \|", manual, re.MULTILINE))
    own = GpuGate.class_own_traits(config=True)
    assert set(told) == set(own)
    named = {
        name: ast.literal_eval(text.strip("`"))
        for name, text in told.items()
        if text not in UNNAMED
    }
    assert {name: own[name].default_value for name in named} == named
    without_server = {name: getattr(Traits(), name) for name in named if hasattr(Traits(), name)}
    assert without_server == {name: named[name] for name in without_server}
    assert len(without_server) > 5


def project_files() -> list[Path]:
    """List the files that belong to the project: those that git would keep."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def pages() -> list[Path]:
    """Return every page that a person reads."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def normal(name: str) -> str:
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_names() -> set[str]:
    """Return the distributions that the package itself requires."""
    dependencies = project()["project"]["dependencies"]
    return {normal(re.split(r"[^\w.-]", line)[0]) for line in dependencies}


def test_no_file_names_what_it_must_not() -> None:
    """The project stands alone: it names no package registry and no place where it was made."""
    pattern = re.compile("|".join(map(re.escape, FORBIDDEN)))
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in project_files()
        for match in pattern.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_the_constraints_are_names_and_versions() -> None:
    """constraints.txt pins each package once, by version alone: no address, no path."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)] == []
    names = [normal(line.partition("==")[0]) for line in pins]
    assert sorted(names) == sorted(set(names))


def test_what_is_imported_is_required() -> None:
    """Each library that the package imports is one that it requires; torch is not required."""
    owners = importlib.metadata.packages_distributions()
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    modules += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]
    tops = (
        {m.partition(".")[0] for m in modules} - sys.stdlib_module_names - GUESTS - {PACKAGE.name}
    )
    required = required_names()
    undeclared = {t for t in tops if not required & set(map(normal, owners.get(t, ())))}
    assert undeclared == set()
    assert "torch" not in required


def test_the_version_is_the_same_everywhere() -> None:
    """The changelog's newest entry is this version or unreleased, and an install agrees."""
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] in {"Unreleased", version()}
    try:
        installed = importlib.metadata.version("jupyter_gpugate")
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == version()


def test_links_between_pages_lead_somewhere() -> None:
    """Every link from one page to another file of the project finds it."""
    links = [
        (page, target)
        for page in pages()
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert len(links) > 5
    assert [(p.name, t) for p, t in links if not (p.parent / t).exists()] == []


def test_every_page_is_in_the_index() -> None:
    """No page of the documentation is left out of its table of contents."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split()
    assert {p.stem for p in (ROOT / "docs").glob("*.md")} - {"index"} <= set(index)


def test_pages_name_existing_targets() -> None:
    """Every ``make`` command in the pages, and in CI, is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    commands = r"(?:`|^)make(?: [A-Z]+=\S+)* ([a-z]+)"
    texts = [path.read_text(encoding="utf-8") for path in [*pages(), ROOT / ".ci" / "run"]]
    named = {name for text in texts for name in re.findall(commands, text, re.MULTILINE)}
    assert "test" in named
    assert named <= targets


def test_every_switched_off_rule_has_a_reason() -> None:
    """A lint rule that is off says why, on the same line."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[tool.ruff.lint]")[2].partition("[tool.ruff.lint.flake8")[0]
    rules = [line for line in section.splitlines() if re.match(r'  "[A-Z]+\d*",', line)]
    assert len(rules) > 10
    assert [line for line in rules if not re.search(r",\s+# \w+", line)] == []


@pytest.mark.parametrize("folder", ["core", "gate", "server"])
def test_untyped_json_has_a_name_and_a_reason(folder: str) -> None:
    """`dict[str, Any]` is written only as an alias, with a comment on what has no fixed form."""
    alias, bare = re.compile(r"\w+ = dict\[str, Any\]"), []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, (before, line) in enumerate(itertools.pairwise(lines), start=2):
            explained = alias.fullmatch(line) and before.startswith("#: ")
            if "dict[str, Any]" in line and not explained:
                bare.append(f"{path.relative_to(ROOT)}:{number}")
    assert bare == []
