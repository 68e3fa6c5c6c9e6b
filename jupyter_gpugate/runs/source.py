"""What a run is made of: a hash of its own code, and name and version of what it has installed.

Executed by the interpreter of the run itself: one JSON request on stdin, one JSON answer on stdout
(`describe`).  A single file, standard library only, CPython 3.9 or later.  It reads files; it
imports and executes none of what it looks at.

The hash covers the syntax tree of the cell or script and of every first-party module that it
imports, transitively: comments and formatting do not count.  A module is first-party unless it
belongs to Python or to an installed distribution, which count by name and version wherever their
folder lies.  What decides torch's or JAX's memory besides the code is the ``runtime``, so their
version is not in the hash.

What was read of a file is kept in the folder ``cache`` of the request, and stands for as long as
the file's stat does.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import hashlib
import importlib.machinery
import json
import os
import re
import shutil
import stat
import symtable
import sys
import time
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

RUNTIMES = ("torch", "jax")
#: Another Python that a command names is asked where its modules are: how long, how much it says.
_ASKED_S = 30.0
_MOST_TOLD = 1 << 20
#: No hand-written module is larger; larger ones count by their bytes.
_MOST_READ = 32 << 20
#: What the compiler raises, besides a SyntaxError, for odd characters and for too deep a nesting.
_UNREADABLE = (ValueError, RecursionError, MemoryError)
#: Names that every cell of a run or a notebook has without defining them.
PROVIDED = frozenset(dir(builtins)).union(
    ("__annotations__", "__builtins__", "__file__", "__name__"),
    ("episodes", "worker", "workers", "params"),
    ("In", "Out", "_", "__", "___", "display", "exit", "get_ipython", "quit"),
)


def describe(request: Mapping[str, Any], processes: int = 1) -> dict[str, Any]:
    """Answer ``{"kind": "cell", "source", "cwd", "path"}`` or ``{"kind": "program", "argv", ...}``.

    ``path`` is ``sys.path`` of the run, null for this interpreter's own; ``cache``, which may be
    missing, is a folder of this user's alone.  The answer has ``source_hash``, ``files``
    (first-party, absolute), ``folders`` (where modules were looked for), ``packages`` (version by
    imported name), ``runtime``, ``python``, ``uses_names``, ``syntax_error`` (``line``, ``column``,
    ``message``, ``text``, or null), ``magic_lines`` (``line``, ``text``) and ``error``, null or why
    there is nothing to run.  Many files are read by so many ``processes``.
    """
    for cached in (_archive, _infos, _named, _owners, _is_pythons_own):
        cached.cache_clear()  # files may have been edited between two calls
    _listed.clear()
    path = request["path"]
    if path is None:
        path = ["", *(entry for entry in sys.path if entry != str(Path(__file__).parent))]
    _kept.begin(request.get("cache"))
    reader = FileReader(processes)
    if request["kind"] == "cell":
        answer = _describe_cell(request["source"], request["cwd"], path, reader)
    else:
        answer = _describe_program(request["argv"], request["cwd"], path, reader)
    _kept.write()
    return answer


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


def _describe_cell(
    source: str, cwd: str, path: Sequence[str], reader: FileReader
) -> dict[str, Any]:
    code = Code(_absolute(path, cwd), reader)
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


def _describe_program(
    argv: Sequence[str], cwd: str, path: Sequence[str], reader: FileReader
) -> dict[str, Any]:
    executable = _executable(argv[0], cwd)
    if executable is None:
        return {**Code([], reader).answer(), **_NO_CELL, "error": f"{argv[0]}: no such program"}
    python = _version()
    problem = None
    if _PYTHON.fullmatch(Path(argv[0]).name):
        path, python = _facts_of(executable, path)
        code, problem = _python_program(parse_python(argv[1:]), cwd, path, reader)
    else:
        code = _other_program(executable, argv, cwd, path, reader)
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


def _python_program(
    command: Command, cwd: str, path: Sequence[str], reader: FileReader
) -> tuple[Code, Optional[str]]:
    code = Code(_absolute(["", *path], cwd), reader)
    if command.module:
        if not code.add_main(command.module):
            return code, f"-m {command.module}: no such module"
    elif command.file:
        file = Path(cwd, command.file)
        code = Code(_absolute([str(file.resolve().parent), *path], cwd), reader)
        main = file / "__main__.py" if file.is_dir() else file
        if not main.is_file():
            return code, f"{command.file}: no such file"
        code.add_file("__main__", str(main), python=True)
    else:
        try:
            code.add_tree("__main__", _parse(command.code), package="")
        except (SyntaxError, *_UNREADABLE):
            code.add_bytes("__main__", command.code.encode("utf-8", "surrogatepass"))
    return code, None


def _other_program(
    executable: Path, argv: Sequence[str], cwd: str, path: Sequence[str], reader: FileReader
) -> Code:
    """Describe a program by a ``.py`` among its words, and by who installed its executable."""
    scripts = [Path(cwd, word) for word in argv if word.endswith(".py")]
    script = next((file for file in scripts if file.is_file()), None)
    if executable.name in _SHELLS and script is None:
        words = [Path(cwd, word) for word in argv[1:] if not word.startswith("-")]
        script = next((file for file in words if file.is_file()), None)
    own = [str(script.resolve().parent)] if script else []
    code = Code([*_absolute(own, cwd), *path], reader)
    if script is not None:
        code.add_file("__main__", str(script))
    if script is None or not script.samefile(executable):
        code.add_executable(executable)
    return code


def _facts_of(interpreter: Path, path: Sequence[str]) -> tuple[list[str], str]:
    """Return path and version of the interpreter that a command names, asked if it is another."""
    if str(interpreter) == sys.executable:
        return list(path), _version()
    question = "import json,sys; print(json.dumps([sys.path[1:], list(sys.version_info[:3])]))"
    try:
        told_path, version = json.loads(_told_by([str(interpreter), "-c", question]))
        return list(map(str, told_path)), ".".join(map(str, version))
    except (OSError, ValueError, TypeError, RecursionError):
        return list(path), ""


def _told_by(argv: Sequence[str]) -> bytes:
    """Return what a program prints; `ValueError` for one that fails, hangs or does not end."""
    import subprocess  # few submits need it, and its import takes a while
    import threading

    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        timer = threading.Timer(_ASKED_S, process.kill)
        timer.start()
        try:
            told = process.stdout.read(_MOST_TOLD) if process.stdout else b""
            if len(told) == _MOST_TOLD:
                process.kill()
            process.wait()
        finally:
            timer.cancel()
    if process.returncode != 0:
        raise ValueError(f"{argv[0]} does not report where its modules are")
    return told


def _version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


# -- following imports -----------------------------------------------------------------------------


class Found(NamedTuple):
    """Where a module is: its file, none for a namespace package, and where its submodules are."""

    file: Optional[str]
    folders: tuple[str, ...]


class Wanted(NamedTuple):
    """A first-party file to be read; ``package`` is what its relative imports start from."""

    name: str
    file: str
    package: str
    python: bool


class Code:
    """Collects digests of first-party modules and versions of installed ones."""

    def __init__(self, path: Sequence[str], reader: FileReader) -> None:
        self._path = tuple(path)
        self._reader = reader
        self._digests: dict[str, str] = {}  # by module
        self._files: set[str] = set()
        self._packages: dict[str, list[Info]] = {}
        self._modules: dict[str, tuple[Optional[Found], bool]] = {}
        self._waiting: list[Wanted] = []

    def add_tree(self, name: str, tree: ast.AST, package: str) -> None:
        """Add a syntax tree of a module in ``package`` and all that it imports."""
        self._add(name, facts_of(tree), package)

    def add_bytes(self, name: str, data: bytes) -> None:
        self._digests[name] = _digest(data)

    def add_file(self, name: str, file: str, package: str = "", *, python: bool = False) -> None:
        """Add a file: tree and imports where it is ``python`` or named so, else its content."""
        archive = None if _is_file(file) else _archive_of(file)
        self._files.add(archive.file if archive else file)
        self._waiting.append(Wanted(name, file, package, python or file.endswith(".py")))

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
                self._packages[info.name] = [info]
                return
        self._files.add(str(file))
        self._digests["<program>"] = _digest_of(str(file))

    def answer(self) -> dict[str, Any]:
        """Read the pending files and everything that they import, and return the result."""
        while self._waiting:
            wanted, self._waiting = self._waiting, []
            for one, facts in zip(wanted, self._reader.read(wanted)):
                self._add(one.name, facts, one.package)
        packages = {top: _versions(infos) for top, infos in sorted(self._packages.items())}
        counted = {k: v for k, v in packages.items() if k not in RUNTIMES}
        whole = json.dumps([sorted(self._digests.items()), sorted(counted.items())])
        return {
            "source_hash": _digest(whole.encode()),
            "files": sorted(self._files),
            "folders": sorted(_listed),
            "packages": packages,
            "runtime": ", ".join(f"{n} {packages[n]}" for n in RUNTIMES if n in packages),
            "python": _version(),
            "error": None,
        }

    def _add(self, name: str, facts: Facts, package: str) -> None:
        self._digests[name] = facts.digest
        for imported in facts.imports:
            for module in imported.modules(package):
                self._import(module)

    def _import(self, name: str) -> Optional[Found]:
        """Add a module and the packages above it; None where it is not there."""
        folders, end = self._path, 0
        while True:
            end = name.find(".", end)
            module = name if end < 0 else name[:end]
            if module not in self._modules:
                self._modules[module] = self._looked_up(module, folders)
            found, goes_on = self._modules[module]
            if found is None or not goes_on or end < 0:
                return found
            folders, end = found.folders, end + 1

    def _looked_up(self, module: str, folders: Sequence[str]) -> tuple[Optional[Found], bool]:
        """Find a module, and return whether its submodules matter as well."""
        above, _, part = module.rpartition(".")
        if not part or module in sys.builtin_module_names:
            return None, False
        found = _locate(part, folders) or (None if above else _editable(part))
        return found, found is not None and self._add_module(module, found)

    def _add_module(self, name: str, found: Found) -> bool:
        """Add one module; return whether what is below it is of interest too."""
        where = _above(found.file) if found.file else found.folders[0]
        if _is_pythons_own(where):
            return False
        top, depth = name.partition(".")[0], name.count(".") + 1
        if found.file is None:
            # Several distributions, and one's own code, may share a namespace.
            portions = found.folders if depth == 1 else ()
            infos = [i for p in portions for i in _installers(top, _above(p))]
            if infos:
                self._packages[top] = list(dict.fromkeys(infos))
            return True
        root = found.folders[0] if found.folders else found.file
        for _ in range(depth):
            root = _above(root)
        infos = _installers(top, root)
        if infos:
            self._packages.setdefault(top, infos)
            return False
        package = name if found.folders else name.rpartition(".")[0]
        self.add_file(name, found.file, package)
        return True


def _absolute(path: Sequence[str], cwd: str) -> list[str]:
    return [os.path.normpath(os.path.join(cwd, entry)) for entry in path]  # noqa: PTH118 - fast


def _resolved(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}" if name and base else name or base


_listed: dict[str, frozenset[str]] = {}  # what comes or goes there may change the answer


def _names_in(folder: str) -> frozenset[str]:
    names = _listed.get(folder)
    if names is None:
        names = _listed[folder] = _listing(folder)
    return names


def _listing(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - a string, and nothing but names
    except NotADirectoryError:
        archive = _archive_of(folder)
        return archive.folders.get(archive.inner, frozenset()) if archive else frozenset()
    except (OSError, ValueError):
        return frozenset()


_SUFFIXES = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.SOURCE_SUFFIXES)


def _locate(name: str, folders: Sequence[str]) -> Optional[Found]:
    """Find a module as Python does, by its file's name alone."""
    portions = []
    for folder in folders:
        names = _names_in(folder)
        below = _joined_path(folder, name)
        if name in names:
            for suffix in _SUFFIXES:
                if f"__init__{suffix}" in _names_in(below):
                    return Found(f"{below}/__init__{suffix}", (below,))
        for suffix in _SUFFIXES:
            if name + suffix in names:
                return Found(f"{below}{suffix}", ())
        if name in names and _is_folder(below):
            portions.append(below)
    return Found(None, tuple(portions)) if portions else None


def _editable(name: str) -> Optional[Found]:
    """Find a package that an editable install maps to its folder; that takes a table, no code."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            spec = finder.find_spec(name, None)
            if spec is not None and spec.origin is not None:
                return Found(spec.origin, tuple(spec.submodule_search_locations or ()))
    return None


@functools.cache
def _is_pythons_own(folder: str) -> bool:
    if not _PACKAGES.isdisjoint(folder.split("/")):
        return False
    own = os.path.realpath(_above(os.__file__))
    real = os.path.realpath(folder)
    return real == own or real.startswith(f"{own}/")


# -- the file system, and archives on the module path ----------------------------------------------


class Archive(NamedTuple):
    """A zip file, the names in each of its folders, and a place within it."""

    file: str
    folders: Mapping[str, frozenset[str]]
    inner: str


def _archive_of(path: str) -> Optional[Archive]:
    """Return the archive that a path leads into, if it does."""
    file, inner = path, ""
    while file not in ("", "/") and not _is_file(file):
        file, _, name = file.rpartition("/")
        inner = f"{name}/{inner}" if inner else name
    folders = _archive(file) if file not in ("", "/") else None
    return None if folders is None else Archive(file, folders, inner)


@functools.cache
def _archive(file: str) -> Optional[Mapping[str, frozenset[str]]]:
    import zipfile  # few module paths have an archive

    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return None
    folders: dict[str, set[str]] = {"": set()}
    for name in listed:
        above = name.rstrip("/")
        while above:
            above, _, last = above.rpartition("/")
            folders.setdefault(above, set()).add(last)
    return {folder: frozenset(names) for folder, names in folders.items()}


def _content(file: str, most: int = _MOST_READ) -> bytes:
    """Return a file's content, nothing for what is not a regular file or has more than ``most``."""
    try:
        with _opened(file) as stream:
            data = stream.read(most + 1)
    except NotADirectoryError:
        data = _content_in_archive(file, most)
    except (OSError, ValueError):
        return b""
    return data if len(data) <= most else b""


def _content_in_archive(file: str, most: int) -> bytes:
    import zipfile

    archive = _archive_of(file)
    if archive is None:
        return b""
    try:
        with zipfile.ZipFile(archive.file) as opened, opened.open(archive.inner) as stream:
            return stream.read(most + 1)
    except Exception:  # noqa: BLE001 - whatever a damaged archive makes its readers raise
        return b""


def _opened(file: str) -> Any:
    """Open a plain file; a pipe or a device would not end, or never begin."""
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = open(number, "rb")  # noqa: PTH123, SIM115 - a descriptor, closed by the caller
    if not stat.S_ISREG(os.fstat(number).st_mode):
        stream.close()
        raise OSError(f"{file} is not a regular file")
    return stream


def _digest_of(file: str) -> str:
    """Return the digest of a file's content, however large it is."""
    digest = hashlib.sha256()
    try:
        with _opened(file) as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    except NotADirectoryError:
        digest.update(_content(file))
    except (OSError, ValueError):
        return _digest(b"")
    return digest.hexdigest()


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _is_file(path: str) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - asked once for each file of a source


def _is_folder(path: str) -> bool:
    if os.path.isdir(path):  # noqa: PTH112 - as above
        return True
    archive = _archive_of(path)
    return archive is not None and archive.inner in archive.folders


def _joined_path(folder: str, name: str) -> str:
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- installed distributions -----------------------------------------------------------------------

_PACKAGES = frozenset({"site-packages", "dist-packages"})
_INFO = re.compile(r"(.+?)(?:-([^-]+))?(?:-py[\d.]+)?\.(?:dist|egg)-info")
_EGG = re.compile(r"(.+?)-([^-]+)(?:-.*)?\.egg")
_TOP_IN_RECORD = re.compile(rb"(?m)^\"?([^/,.\"\r\n]+)(?:/|\.py,|\.[^/,]*so,)")
#: What older installers wrote in the place of RECORD, from the folder of the metadata on.
_TOP_IN_LIST = re.compile(rb"(?m)^\.\./([^/.\r\n]+)(?:/|\.py$|\.[^/]*so$)")
_IS_EDITABLE = re.compile(rb"\"editable\"\s*:\s*true")


class Info(NamedTuple):
    """One distribution's metadata folder."""

    name: str
    version: str
    folder: str

    def is_installed(self) -> bool:
        """Distinguish installed packages from leftovers of a build or an editable install."""
        if _IS_EDITABLE.search(self._read("direct_url.json")):
            return False
        name = self.folder.rpartition("/")[2]
        in_sources = name.endswith(".egg-info") and "-" not in name[: -len(".egg-info")]
        if not in_sources or not _PACKAGES.isdisjoint(self.folder.split("/")):
            return True
        return bool(self._read("installed-files.txt"))

    def tops(self) -> frozenset[str]:
        """Return the names that can be imported of it."""
        site, _, name = self.folder.rpartition("/")
        stamp = self._stamp()
        known = _kept.get(site, f"tops {name}", stamp)
        if isinstance(known, list) and all(isinstance(top, str) for top in known):
            return frozenset(known)
        before = time.time_ns()
        tops = frozenset(self._listed_tops())
        _kept.put(site, f"tops {name}", stamp, sorted(tops), before)
        return tops

    def _stamp(self) -> Optional[list[int]]:
        names = ("top_level.txt", "RECORD", "installed-files.txt")
        stamps = [stamp for name in names if (stamp := _stamp(f"{self.folder}/{name}"))]
        return stamps[0] if stamps else None

    def _listed_tops(self) -> Iterable[str]:
        listed = self._read("top_level.txt").decode("utf-8", "replace").split()
        if listed:
            return listed
        found = _TOP_IN_RECORD.findall(self._read("RECORD"))
        found = found or _TOP_IN_LIST.findall(self._read("installed-files.txt"))
        return (name.decode("utf-8", "replace") for name in found)

    def installs(self, program: str) -> bool:
        """Return whether it has put ``program`` into the environment's ``bin``."""
        word = re.escape(program).encode()
        entries, record = self._read("entry_points.txt"), self._read("RECORD")
        own = re.search(rb"(?m)^(\.\./)+bin/" + word + rb",", record)
        return bool(own or re.search(rb"(?m)^\s*" + word + rb"\s*=", entries))

    def _read(self, name: str) -> bytes:
        return _content(f"{self.folder}/{name}")


@functools.cache
def _infos(folder: str) -> tuple[Info, ...]:
    found = []
    for entry in sorted(_names_in(folder)):
        where = _joined_path(folder, entry)
        match = _INFO.fullmatch(entry)
        if match:
            found.append(Info(match[1], match[2] or _told(where, b"Version"), where))
        elif entry == "EGG-INFO":
            match = _EGG.fullmatch(folder.rpartition("/")[2])
            name, version = match.groups() if match else ("", "")
            told = (_told(where, b"Name") or name, _told(where, b"Version") or version)
            found.append(Info(*told, where))
    return tuple(found)


def _told(where: str, field: bytes) -> str:
    told = re.search(rb"(?m)^" + field + rb": *(\S+)", _content(f"{where}/PKG-INFO"))
    return told[1].decode("utf-8", "replace") if told else ""


@functools.cache
def _named(folder: str) -> Mapping[str, list[Info]]:
    named: dict[str, list[Info]] = {}
    for info in _infos(folder):
        named.setdefault(_plain(info.name), []).append(info)
    return named


@functools.cache
def _owners(folder: str) -> Mapping[str, list[Info]]:
    owners: dict[str, list[Info]] = {}
    for info in _infos(folder):
        for top in info.tops():
            owners.setdefault(top, []).append(info)
    return owners


def _plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _installers(top: str, folder: str) -> list[Info]:
    """Return the distribution that installed ``top`` in a folder of the module path, if any."""
    parts = folder.split("/")
    ends = [end for end, part in enumerate(parts, start=1) if part in _PACKAGES]
    site = "/".join(parts[: ends[-1]]) if ends else folder
    for place in dict.fromkeys([folder, site]):
        infos = _named(place).get(_plain(top)) or _owners(place).get(top, [])
        installed = [info for info in infos if info.is_installed()]
        if installed:
            return installed
    return []


def _versions(infos: Sequence[Info]) -> str:
    if len(infos) == 1:
        return infos[0].version or "unknown"
    return ", ".join(f"{info.name} {info.version}" for info in infos)


# -- digests ---------------------------------------------------------------------------------------


class Imported(NamedTuple):
    """One import as it is written; ``__all__`` of a package has the level -1."""

    level: int
    module: str
    words: tuple[str, ...]

    def modules(self, package: str) -> Iterator[str]:
        """Yield the absolute name of everything that it imports, or may import."""
        if self.level < 0:
            if package:
                yield from (f"{package}.{word}" for word in self.words)
            return
        base = _resolved(self.module, self.level, package)
        yield base
        # A name imported from a package may be one of its modules; so may one in __all__.
        yield from (f"{base}.{word}" for word in self.words)


class Facts(NamedTuple):
    """What one file contributes to a source."""

    digest: str
    imports: tuple[Imported, ...]


def facts_of(tree: ast.AST) -> Facts:
    """Return what a syntax tree contributes, alike in all versions of Python."""
    notes: list[Any] = []
    try:
        text = _written(tree, notes)
    except RecursionError:
        text, notes = _canonical(tree), [node for node in ast.walk(tree) if _is_noted(node)]
    imports = dict.fromkeys(one for node in notes for one in _imports_of(node))
    return Facts(_digest(text.encode("utf-8", "surrogatepass")), tuple(imports))


def _facts_of_file(file: str, *, python: bool) -> Facts:
    data = _content(file) if python else b""
    if python:
        with contextlib.suppress(SyntaxError, *_UNREADABLE):
            return facts_of(_parse(data))
    return Facts(_digest_of(file), ())


_BY_NAME = frozenset({"import_module", "__import__"})


def _is_noted(node: Any) -> bool:
    if isinstance(node, ast.Call):
        return _called(node) in _BY_NAME
    return isinstance(node, (ast.Import, ast.ImportFrom)) or (
        isinstance(node, ast.Assign) and _is_all(node)
    )


def _imports_of(node: Any) -> Iterator[Imported]:
    if isinstance(node, ast.Import):
        yield from (Imported(0, alias.name, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        words = tuple(alias.name for alias in node.names if alias.name != "*")
        yield Imported(node.level, node.module or "", words)
    elif isinstance(node, ast.Call):
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            bare = name.value.lstrip(".")
            yield Imported(len(name.value) - len(bare), bare, ())
    else:
        found = (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
        yield Imported(-1, "", tuple(word for word in found if isinstance(word, str)))


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


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


# The same text as `_canonical`, in a third of the time: one writer for each class of nodes, found
# by its class, and imports noted on the way.

Writer = Callable[[Any, list[Any]], str]


def _written(item: Any, notes: list[Any]) -> str:
    return (_WRITERS.get(item.__class__) or _writer_of(item.__class__))(item, notes)


def _write_list(items: list[Any], notes: list[Any]) -> str:
    return "[\n" + "\n".join([_written(item, notes) for item in items]) + "\n]"


def _write_constant(node: ast.Constant, _notes: list[Any]) -> str:
    return f"{type(node.value).__name__} {node.value!r}"


def _write_name(node: ast.Name, _notes: list[Any]) -> str:
    return f"(Name\n.id\n{node.id}\n.ctx\n({type(node.ctx).__name__}\n)\n)"


def _write_attribute(node: ast.Attribute, notes: list[Any]) -> str:
    value = _written(node.value, notes)
    context = type(node.ctx).__name__
    return f"(Attribute\n.value\n{value}\n.attr\n{node.attr}\n.ctx\n({context}\n)\n)"


def _write_string(node: ast.JoinedStr, notes: list[Any]) -> str:
    values = _joined(node.values)
    return f"(JoinedStr\n.values\n{_write_list(values, notes)}\n)" if values else "(JoinedStr\n)"


_WRITERS: dict[type, Writer] = {
    str: lambda text, _notes: str(text),
    list: _write_list,
    ast.Constant: _write_constant,
    ast.Name: _write_name,
    ast.Attribute: _write_attribute,
    ast.JoinedStr: _write_string,
}
_NOTED = (ast.Import, ast.ImportFrom, ast.Call, ast.Assign)


def _writer_of(kind: type) -> Writer:
    """Make the writer of a class of nodes, or of plain values, and keep it."""
    if issubclass(kind, ast.AST):
        writer = _writer_of_nodes(kind)
    else:
        writer = lambda value, _notes: repr(value)  # noqa: E731 - one of two
    _WRITERS[kind] = writer
    return writer


def _writer_of_nodes(kind: type[ast.AST]) -> Writer:
    begin = f"({kind.__name__}"
    fields = [(name, f"\n.{name}\n") for name in kind._fields]
    noted = issubclass(kind, _NOTED)

    def write(node: Any, notes: list[Any]) -> str:
        if noted and _is_noted(node):
            notes.append(node)
        text = begin
        for name, label in fields:
            value = getattr(node, name, None)
            if value is not None and value != []:
                text += label + _written(value, notes)
        return text + "\n)"

    return write


# -- many files, and what is kept of them ----------------------------------------------------------

#: Fewer files are read sooner than other processes start.
_SHARED_FROM = 16


class FileReader:
    """Reads files, those that are not known yet by several processes at once."""

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def read(self, wanted: Sequence[Wanted]) -> list[Facts]:
        """Return the facts of each file."""
        before = time.time_ns()
        stamps = [_stamp(one.file) for one in wanted]
        facts = [_known_facts(one, stamp) for one, stamp in zip(wanted, stamps)]
        missing = [place for place, known in enumerate(facts) if known is None]
        fresh = self._fresh([wanted[place] for place in missing])
        for place, read in zip(missing, fresh):
            facts[place] = read
            folder, key = _place_of(wanted[place])
            _kept.put(folder, key, stamps[place], read, before)
        return [known for known in facts if known is not None]

    def _fresh(self, wanted: Sequence[Wanted]) -> list[Facts]:
        if self._processes < 2 or len(wanted) < _SHARED_FROM:  # noqa: PLR2004 - itself and another
            return _read_here(wanted)
        places = sorted(range(len(wanted)), key=lambda place: -_size(wanted[place].file))
        shares = [places[first :: self._processes] for first in range(self._processes)]
        begun = [(share, _read_elsewhere([wanted[n] for n in share])) for share in shares[1:]]
        read = dict(zip(shares[0], _read_here([wanted[place] for place in shares[0]])))
        for share, ended in begun:
            read.update(zip(share, ended() or _read_here([wanted[place] for place in share])))
        return [read[place] for place in range(len(wanted))]


def _read_here(wanted: Sequence[Wanted]) -> list[Facts]:
    return [_facts_of_file(one.file, python=one.python) for one in wanted]


def _read_elsewhere(wanted: Sequence[Wanted]) -> Callable[[], Optional[list[Facts]]]:
    """Read files in a child; return a function that waits for the result, or None on failure."""
    ours, theirs = os.pipe()
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child == 0:
        try:
            with open(theirs, "w", encoding="ascii") as answer:  # noqa: PTH123 - a descriptor
                json.dump(_read_here(wanted), answer)
        finally:
            os._exit(0)
    os.close(theirs)

    def ended() -> Optional[list[Facts]]:
        with open(ours, encoding="ascii") as answer:  # noqa: PTH123 - a descriptor
            told = answer.read()
        if child > 0:
            os.waitpid(child, 0)
        try:
            facts = [_facts_from(one) for one in json.loads(told)]
        except ValueError:
            return None
        read = [one for one in facts if one is not None]
        return read if len(read) == len(wanted) else None

    return ended


def _size(file: str) -> int:
    stamp = _stamp(file)
    return stamp[1] if stamp else 0


def _place_of(wanted: Wanted) -> tuple[str, str]:
    folder, _, name = wanted.file.rpartition("/")
    return folder, f"{'tree' if wanted.python else 'bytes'} {name}"


def _known_facts(wanted: Wanted, stamp: Optional[list[int]]) -> Optional[Facts]:
    return _facts_from(_kept.get(*_place_of(wanted), stamp))


_DIGEST = re.compile("[0-9a-f]{64}")


def _facts_from(data: Any) -> Optional[Facts]:
    """Take facts from JSON; None where it holds none."""
    try:
        digest, imports = data
        read = Facts(digest, tuple(Imported(n, m, tuple(words)) for n, m, words in imports))
    except (TypeError, ValueError):
        return None
    texts = [word for one in read.imports for word in (one.module, *one.words)]
    sound = isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None
    sound = sound and all(isinstance(one.level, int) for one in read.imports)
    return read if sound and all(isinstance(text, str) for text in texts) else None


def _stamp(file: str) -> Optional[list[int]]:
    """Return a stamp that changes whenever a file does; None unless it is a regular file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - once for each file of a source
    except NotADirectoryError:
        archive = _archive_of(file)
        return _stamp(archive.file) if archive else None
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns]


class Kept:
    """A cache of facts about files by their stamps, with one JSON file per source folder.

    Places that others can write to are neither read nor written.
    """

    #: The version of the format; changes with the content or the form of entries.
    FORM = 1
    MOST_BYTES = 4 << 20
    MOST_BYTES_IN_ALL = 64 << 20
    MOST_FILES = 4096

    def __init__(self) -> None:
        self._place = ""
        self._folders: dict[str, dict[str, Any]] = {}
        self._changed: set[str] = set()

    def begin(self, place: Optional[str]) -> None:
        """Clear the memory, and use this folder from now on."""
        self._place = place if place and _is_private(place) else ""
        self._folders, self._changed = {}, set()

    def get(self, folder: str, key: str, stamp: Optional[list[int]]) -> Any:
        """Return the facts under a key, if they have the same stamp."""
        if not self._place or stamp is None:
            return None
        entry = self._known(folder).get(key)
        if not isinstance(entry, list) or len(entry) != 2:  # noqa: PLR2004 - stamp and value
            return None
        return entry[1] if entry[0] == stamp else None

    def put(
        self, folder: str, key: str, stamp: Optional[list[int]], value: Any, before: int
    ) -> None:
        """Store facts read after ``before``, unless the file may still change unnoticed."""
        if not self._place or stamp is None:
            return
        # A file may change again in the same tick of its clock: some count whole seconds.
        tick_ns = 50_000_000 if stamp[3] % 1_000_000 else 2_000_000_000
        if abs(before - stamp[3]) > tick_ns:
            self._known(folder)[key] = [stamp, value]
            self._changed.add(folder)

    def write(self) -> None:
        """Write changed entries; entries that cannot be written are read again next time."""
        with contextlib.suppress(OSError, ValueError):
            for folder in sorted(self._changed):
                there = _names_in(folder)
                known = self._known(folder).items()
                entries = {k: v for k, v in known if k.partition(" ")[2] in there}
                text = json.dumps({"folder": folder, "known": entries}, separators=(",", ":"))
                if len(text) <= self.MOST_BYTES:
                    self._replace(self._file_of(folder), text)
            if self._changed:
                self._prune()
        self._changed = set()

    def _known(self, folder: str) -> dict[str, Any]:
        if folder not in self._folders:
            self._folders[folder] = self._read(folder)
        return self._folders[folder]

    def _read(self, folder: str) -> dict[str, Any]:
        try:
            with _opened(self._file_of(folder)) as stream:
                if os.fstat(stream.fileno()).st_uid != os.getuid():
                    return {}
                data = json.loads(stream.read(self.MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        known = data.get("known") if isinstance(data, dict) else None
        return known if isinstance(known, dict) and data.get("folder") == folder else {}

    def _file_of(self, folder: str) -> str:
        what = f"{self.FORM} {sys.version_info[:2]} {folder}"
        name = _digest(what.encode("utf-8", "surrogatepass"))[:40]
        return f"{self._place}/{name}.json"

    def _replace(self, file: str, text: str) -> None:
        new = f"{file}.{os.getpid()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(new, flags, 0o600), "w", encoding="ascii") as stream:  # noqa: PTH123
                stream.write(text)
            os.replace(new, file)  # noqa: PTH105
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)  # noqa: PTH108
            raise

    def _prune(self) -> None:
        """Remove the oldest entries if the cache is too large."""
        with os.scandir(self._place) as entries:
            found = sorted((e.stat(follow_symlinks=False).st_mtime, e.path) for e in entries)
        sizes = {path: os.lstat(path).st_size for _, path in found}
        total = sum(sizes.values())
        for count, (_, path) in enumerate(found):
            few = len(found) - count <= self.MOST_FILES
            if few and total <= self.MOST_BYTES_IN_ALL:
                return
            os.unlink(path)  # noqa: PTH108
            total -= sizes[path]


_kept = Kept()


def _is_private(place: str) -> bool:
    """Make a folder that is this user's alone; whether it is one."""
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)  # noqa: PTH103
        found = os.lstat(place)
    except (OSError, ValueError):
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return private and found.st_uid == os.getuid()


def _processors() -> int:
    return min(4, len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    gc.disable()  # a tree has no circles, and each of its nodes would be looked at again and again
    json.dump(describe(json.load(sys.stdin), _processors()), sys.stdout)
