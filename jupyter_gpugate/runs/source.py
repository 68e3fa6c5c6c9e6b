"""What a run is made of: a hash of its own code, and name and version of what it has installed.

Executed by the interpreter of the run itself: one JSON request on stdin, one JSON answer on stdout
(`describe`).  A single file, standard library only, CPython 3.9 or later.  It reads files; it
imports and executes none of what it looks at.

The hash covers the syntax tree of the cell or script and of every first-party module that it
imports, transitively: comments and formatting do not count.  A module is first-party unless it
belongs to Python or to an installed distribution, which count by name and version.  What decides
torch's or JAX's memory besides the code is the ``runtime``, so their version is not in the hash.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import symtable
import sys
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

RUNTIMES = ("torch", "jax")
#: What the compiler raises, besides a SyntaxError, for odd characters and for too deep a nesting.
_UNREADABLE = (ValueError, RecursionError, MemoryError)
#: Names that every cell of a run or a notebook has without defining them.
PROVIDED = frozenset(dir(builtins)).union(
    ("__annotations__", "__builtins__", "__file__", "__name__"),
    ("episodes", "worker", "workers", "params"),
    ("In", "Out", "_", "__", "___", "display", "exit", "get_ipython", "quit"),
)


def describe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer ``{"kind": "cell", "source", "cwd", "path"}`` or ``{"kind": "program", "argv", ...}``.

    ``path`` is ``sys.path`` of the run, null for this interpreter's own.  The answer has
    ``source_hash``, ``files`` (first-party, absolute), ``packages`` (version by imported name),
    ``runtime``, ``python``, ``uses_names``, ``syntax_error`` (``line``, ``column``, ``message``,
    ``text``, or null), ``magic_lines`` (``line``, ``text``) and ``error``, null or why there is
    nothing to run.
    """
    for cached in (_names_in, _infos, _owners):
        cached.cache_clear()  # a kernel lives long, and its user edits files
    path = request["path"]
    if path is None:
        path = ["", *(entry for entry in sys.path if entry != str(Path(__file__).parent))]
    if request["kind"] == "cell":
        return _describe_cell(request["source"], request["cwd"], path)
    return _describe_program(request["argv"], request["cwd"], path)


def names_defined_by(source: str, namespace: Container[str]) -> list[str]:
    """Return the names that a cell uses, does not define, and ``namespace`` has, sorted."""
    return [name for name in used_names(source) if name in namespace]


def used_names(source: str) -> list[str]:
    """Return the names that a cell loads and neither defines nor is given by Python, sorted."""
    try:
        top = symtable.symtable(source, "<cell>", "exec")
    except (SyntaxError, *_UNREADABLE):
        return []
    used, bound = set(), set()
    for table in _tables(top):
        for symbol in table.get_symbols():
            ours = table is top or symbol.is_global()
            if ours and symbol.is_referenced():
                used.add(symbol.get_name())
            if ours and (symbol.is_assigned() or symbol.is_imported()):
                bound.add(symbol.get_name())
    return sorted(used - bound - PROVIDED)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


# -- cells -----------------------------------------------------------------------------------------

_MAGIC = re.compile(r"\s*([%!?]|[^=]+=\s*[%!])|.*\?\s*$")


def _describe_cell(source: str, cwd: str, path: Sequence[str]) -> dict[str, Any]:
    code = Code(_absolute(path, cwd))
    magic, error = _complaints(source)
    if error is None and not magic:
        code.add_tree("<cell>", _parse(source), package="")
    else:
        code.add_bytes("<cell>", source.encode("utf-8", "surrogatepass"))
    return {
        **code.answer(),
        "uses_names": used_names(source),
        "magic_lines": magic,
        "syntax_error": error,
    }


def _complaints(source: str) -> tuple[list[dict[str, Any]], Optional[dict[str, Any]]]:
    """Return the lines that are the notebook's own language, and what is wrong beside them."""
    magic: list[dict[str, Any]] = []
    lines = source.split("\n")
    if "\0" in source:
        number = source.partition("\0")[0].count("\n") + 1
        return magic, _complaint(number, lines, "there is a NUL character")
    while True:
        try:
            _compiles("\n".join(lines))
        except SyntaxError as error:
            number = min(error.lineno or 1, len(lines))
            text = lines[number - 1]
            if not _MAGIC.match(text):
                return magic, _complaint(number, lines, error.msg, error.offset)
            magic.append({"line": number, "text": text.strip()})
            lines[number - 1] = text[: len(text) - len(text.lstrip())] + "pass"
        except _UNREADABLE as error:
            return magic, _complaint(1, lines, f"{type(error).__name__}: {error}")
        else:
            return magic, None


def _complaint(
    number: int, lines: Sequence[str], message: str, column: Optional[int] = None
) -> dict[str, Any]:
    return {"line": number, "column": column, "message": message, "text": lines[number - 1]}


def _compiles(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(source, "<cell>", "exec", flags, dont_inherit=True)


def _parse(source: str | bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


# -- programs --------------------------------------------------------------------------------------

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
_TAKES_VALUE = frozenset("WX")


class Command(NamedTuple):
    """What a Python command line runs: a ``-m`` module, ``-c`` code, or a file; one is set."""

    module: str = ""
    code: str = ""
    file: str = ""


def _describe_program(argv: Sequence[str], cwd: str, path: Sequence[str]) -> dict[str, Any]:
    executable = _executable(argv[0], cwd)
    if executable is None:
        return {**Code([]).answer(), **_NO_CELL, "error": f"{argv[0]}: no such program"}
    python = _version()
    problem = None
    if _PYTHON.fullmatch(Path(argv[0]).name):
        path, python = _facts_of(executable, path)
        code, problem = _python_program(parse_python(argv[1:]), cwd, path)
    else:
        code = _other_program(executable, argv, cwd, path)
    return {**code.answer(), **_NO_CELL, "python": python, "error": problem}


_NO_CELL: dict[str, Any] = {"uses_names": [], "magic_lines": [], "syntax_error": None}


def _executable(name: str, cwd: str) -> Optional[Path]:
    if os.sep in name:
        path = Path(cwd, name)
        return path if path.is_file() else None
    found = shutil.which(name)
    return None if found is None else Path(found).absolute()


def parse_python(arguments: Sequence[str]) -> Command:
    """Read a Python command line's options up to what it runs."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            return Command(file="" if word == "-" else word)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                del rest[:1]
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm" or letter in _TAKES_VALUE:
                value = word[place:] or (rest.pop(0) if rest else "")
                if letter == "c":
                    return Command(code=value)
                if letter == "m":
                    return Command(module=value)
                break
    return Command()


def _python_program(command: Command, cwd: str, path: Sequence[str]) -> tuple[Code, Optional[str]]:
    code = Code(_absolute(["", *path], cwd))
    if command.module:
        if not code.add_main(command.module):
            return code, f"-m {command.module}: no such module"
    elif command.file:
        file = Path(cwd, command.file)
        code = Code(_absolute([str(file.resolve().parent), *path], cwd))
        main = file / "__main__.py" if file.is_dir() else file
        if not main.is_file():
            return code, f"{command.file}: no such file"
        code.add_file("__main__", main, python=True)
    else:
        try:
            code.add_tree("__main__", _parse(command.code), package="")
        except (SyntaxError, *_UNREADABLE):
            code.add_bytes("__main__", command.code.encode("utf-8", "surrogatepass"))
    return code, None


def _other_program(executable: Path, argv: Sequence[str], cwd: str, path: Sequence[str]) -> Code:
    """Describe a program by a ``.py`` among its words, and by who installed its executable."""
    scripts = [Path(cwd, word) for word in argv if word.endswith(".py")]
    script = next((file for file in scripts if file.is_file()), None)
    if executable.name in _SHELLS and script is None:
        words = [Path(cwd, word) for word in argv[1:] if not word.startswith("-")]
        script = next((file for file in words if file.is_file()), None)
    code = Code(_absolute([str(script.resolve().parent)] if script else [], cwd) + list(path))
    if script is not None:
        code.add_file("__main__", script)
    if script is None or not script.samefile(executable):
        code.add_executable(executable)
    return code


def _facts_of(interpreter: Path, path: Sequence[str]) -> tuple[list[str], str]:
    """Return path and version of the interpreter that a command names, asked if it is another."""
    if str(interpreter) == sys.executable:
        return list(path), _version()
    question = "import json,sys; print(json.dumps([sys.path[1:], list(sys.version_info[:3])]))"
    try:
        asked = subprocess.run(
            [str(interpreter), "-c", question], capture_output=True, timeout=30, check=True
        )
        told_path, version = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return list(path), ""
    return told_path, ".".join(map(str, version))


def _version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


# -- following imports -----------------------------------------------------------------------------


class Found(NamedTuple):
    """Where a module is: its file, none for a namespace package, and where its submodules are."""

    file: Optional[Path]
    folders: tuple[str, ...]


class Code:
    """Collects digests of first-party modules and versions of installed ones."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = tuple(path)
        self._digests: dict[str, str] = {}  # by module
        self._files: set[str] = set()
        self._packages: dict[str, str] = {}
        self._seen: set[str] = set()  # names that some module imports
        self._waiting: list[tuple[ast.AST, str]] = []  # trees whose imports are to be followed

    def add_tree(self, name: str, tree: ast.AST, package: str) -> None:
        """Add a syntax tree of a module in ``package`` and all that it imports."""
        self._digests[name] = _digest(_canonical(tree).encode("utf-8", "surrogatepass"))
        self._waiting.append((tree, package))
        while self._waiting:
            self._follow(*self._waiting.pop())

    def add_bytes(self, name: str, data: bytes) -> None:
        self._digests[name] = _digest(data)

    def add_file(self, name: str, file: Path, package: str = "", *, python: bool = False) -> None:
        """Add a file: tree and imports where it is ``python`` or named so, else its content."""
        self._files.add(str(file))
        data = _content(file)
        try:
            tree = _parse(data) if python or file.suffix == ".py" else None
        except (SyntaxError, *_UNREADABLE):
            tree = None
        if tree is None:
            self.add_bytes(name, data)
        else:
            self.add_tree(name, tree, package)

    def add_main(self, module: str) -> bool:
        """Add what ``-m module`` runs; return whether there is such a module."""
        found = self._import(module)
        if found is None:
            return False
        if found.folders and found.file is not None:
            self._import(f"{module}.__main__")
        return True

    def add_executable(self, file: Path) -> None:
        """Add a program by the distribution that installed it, else by its content."""
        roots = dict.fromkeys([file.parent.parent, file.resolve().parent.parent])
        sites = [str(site) for root in roots for site in root.glob("lib*/python*/*-packages")]
        for info in (info for folder in [*sites, *self._path] for info in _infos(folder)):
            if info.installs(file.name):
                self._packages[info.name] = info.version
                return
        self._files.add(str(file))
        self.add_bytes("<program>", _content(file))

    def answer(self) -> dict[str, Any]:
        counted = {k: v for k, v in self._packages.items() if k not in RUNTIMES}
        whole = json.dumps([sorted(self._digests.items()), sorted(counted.items())])
        runtime = [f"{name} {self._packages[name]}" for name in RUNTIMES if name in self._packages]
        return {
            "source_hash": _digest(whole.encode()),
            "files": sorted(self._files),
            "packages": dict(sorted(self._packages.items())),
            "runtime": ", ".join(runtime),
            "python": _version(),
            "error": None,
        }

    def _follow(self, tree: ast.AST, package: str) -> None:
        for name in _imported(tree, package):
            if name not in self._seen:
                self._seen.add(name)
                self._import(name)

    def _import(self, name: str) -> Optional[Found]:
        """Add a module and the packages above it; None where it is not first-party or not there."""
        folders, found = self._path, None
        parts = name.split(".")
        if parts[0] in sys.builtin_module_names:
            return None
        for depth, part in enumerate(parts, start=1):
            found = _locate(part, folders) or (_editable(part) if depth == 1 else None)
            if found is None or not self._add_module(".".join(parts[:depth]), found):
                return found
            folders = found.folders
        return found

    def _add_module(self, name: str, found: Found) -> bool:
        """Add one module; return whether what is below it is of interest too."""
        where = found.file or Path(found.folders[0])
        if _is_pythons_own(where):
            return False
        top = name.partition(".")[0]
        versions = _versions(top, where)
        if versions:
            self._packages[top] = versions
            # Several distributions, and one's own code, may share a namespace.
            return found.file is None
        if found.file is not None and name not in self._digests:
            self._digests[name] = ""  # before it is read, as imports go round in circles
            package = name if found.folders else name.rpartition(".")[0]
            self.add_file(name, found.file, package)
        return True


def _absolute(path: Sequence[str], cwd: str) -> list[str]:
    return [os.path.normpath(Path(cwd, entry)) for entry in path]


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the absolute name of everything that ``tree`` imports anywhere, or may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolved(node.module or "", node.level, package)
            yield base
            # A name imported from a package may be one of its modules; so may one in __all__.
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                bare = name.value.lstrip(".")
                yield _resolved(bare, len(name.value) - len(bare), package)
        elif package and isinstance(node, ast.Assign) and _is_all(node):
            words = (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
            yield from (f"{package}.{word}" for word in words if isinstance(word, str))


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def _resolved(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}" if name and base else name or base


@functools.cache
def _names_in(folder: str) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in Path(folder).iterdir())
    except OSError:
        return frozenset()


def _locate(name: str, folders: Sequence[str]) -> Optional[Found]:
    """Find a module as Python does, by its file's name alone."""
    suffixes = [*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.SOURCE_SUFFIXES]
    portions = []
    for folder in folders:
        names = _names_in(folder)
        if name in names:
            below = str(Path(folder, name))
            for suffix in suffixes:
                if f"__init__{suffix}" in _names_in(below):
                    return Found(Path(below, f"__init__{suffix}"), (below,))
        for suffix in suffixes:
            if name + suffix in names:
                return Found(Path(folder, name + suffix), ())
        if name in names and Path(folder, name).is_dir():
            portions.append(str(Path(folder, name)))
    return Found(None, tuple(portions)) if portions else None


def _editable(name: str) -> Optional[Found]:
    """Find a package that an editable install maps to its folder; that takes a table, no code."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            spec = finder.find_spec(name, None)
            if spec is not None and spec.origin is not None:
                return Found(Path(spec.origin), tuple(spec.submodule_search_locations or ()))
    return None


def _is_pythons_own(where: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(where.parts):
        return False
    return Path(os.__file__).resolve().parent in where.resolve().parents


# -- installed distributions -----------------------------------------------------------------------

_INFO = re.compile(r"(.+?)(?:-([^-]+))?(?:-py[\d.]+)?\.(?:dist|egg)-info")
_TOP_IN_RECORD = re.compile(rb"(?m)^\"?([^/,.\"\r\n]+)(?:/|\.py,|\.[^/,]*so,)")


class Info(NamedTuple):
    """One distribution's metadata folder."""

    name: str
    version: str
    folder: Path

    def tops(self) -> frozenset[str]:
        """Return the names that can be imported of it."""
        listed = _content(self.folder / "top_level.txt").decode("utf-8", "replace").split()
        record = _TOP_IN_RECORD.findall(_content(self.folder / "RECORD")) if not listed else []
        return frozenset([*listed, *(name.decode("utf-8", "replace") for name in record)])

    def installs(self, program: str) -> bool:
        """Return whether it has put ``program`` into the environment's ``bin``."""
        word = re.escape(program).encode()
        entries, record = (_content(self.folder / n) for n in ("entry_points.txt", "RECORD"))
        own = re.search(rb"(?m)^(\.\./)+bin/" + word + rb",", record)
        return bool(own or re.search(rb"(?m)^\s*" + word + rb"\s*=", entries))


@functools.cache
def _infos(folder: str) -> tuple[Info, ...]:
    found = []
    for entry in sorted(_names_in(folder)):
        match = _INFO.fullmatch(entry)
        if match:
            where = Path(folder, entry)
            found.append(Info(match[1], match[2] or _told_version(where), where))
    return tuple(found)


def _told_version(where: Path) -> str:
    told = re.search(rb"(?m)^Version: *(\S+)", _content(where / "PKG-INFO"))
    return told[1].decode("utf-8", "replace") if told else ""


@functools.cache
def _owners(folder: str) -> Mapping[str, list[Info]]:
    owners: dict[str, list[Info]] = {}
    for info in _infos(folder):
        for top in info.tops():
            owners.setdefault(top, []).append(info)
    return owners


def _versions(top: str, where: Path) -> str:
    """Return the version of what has installed ``top``, several of them by name; "" for nobody."""
    site = next((p for p in where.parents if p.name in {"site-packages", "dist-packages"}), None)
    if site is None:
        return ""
    plain = top.lower().replace("_", "-")
    named = [i for i in _infos(str(site)) if re.sub("[-_.]+", "-", i.name).lower() == plain]
    infos = named or _owners(str(site)).get(top, [])
    if len(infos) == 1:
        return infos[0].version or "unknown"
    return ", ".join(f"{info.name} {info.version}" for info in infos)


# -- digests ---------------------------------------------------------------------------------------


def _canonical(tree: ast.AST) -> str:
    """Write a tree down without places and empty fields, alike in all versions of Python."""
    out: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.Constant):
            out.append(f"{type(item.value).__name__} {item.value!r}")
        elif isinstance(item, ast.AST):
            out.append(f"({type(item).__name__}")
            waiting.append(")")
            for name in reversed(item._fields):
                value = getattr(item, name, None)
                if isinstance(item, ast.JoinedStr):
                    value = _joined(value)
                if value is not None and value != []:
                    waiting += [value, f".{name}"]
        elif isinstance(item, list):
            waiting += ["]", *reversed(item), "["]
        else:
            out.append(item if isinstance(item, str) else repr(item))
    return "\n".join(out)


def _joined(values: Any) -> list[Any]:
    """Join the literal pieces of an f-string, which versions of Python cut differently."""
    joined: list[Any] = []
    for value in values:
        last = joined[-1] if joined else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(str(last.value) + str(value.value))
        elif not isinstance(value, ast.Constant) or value.value:
            joined.append(value)
    return joined


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    json.dump(describe(json.load(sys.stdin)), sys.stdout)
