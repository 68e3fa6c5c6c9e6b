"""Finds the socket of the user's own gate, and starts a gate where there is none.

The socket is only trusted when its folder belongs to this user alone and the process that listens
on it runs under this user's uid.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Optional

from jupyter_gpugate import places
from jupyter_gpugate.client import enclosing_run, gate_record
from jupyter_gpugate.client.environment import for_a_gate
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.proc import RUN_MODULE, importable, isolation, peer_of

#: A gate imports its readers, opens its journal and adopts runs before it listens.
START_WAIT_S: Final = 90.0
#: How long the socket of another gate may take after a new gate has ended in its favour.
FORESTALLED_S: Final = 10.0
_LONGEST_PATH: Final = 4096
_PREAMBLE: Final = re.compile(r"^(?:[\d-]{10} [\d:,]+ [A-Z]+ |(\w+\.)*[A-Z]\w+: )")
#: Run by an interpreter of its own: forking this process, with its threads, is not safe.  It ends
#: as the gate ends, for as long as it is left to watch it.
_DETACH: Final = """\
import sys
sys.path[:] = sys.path[-3:]  # Python's own library: that alone, also without -I
import os, signal
child = os.fork()
if child:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(1 if os.waitpid(child, 0)[1] else 0)
else:
    os.setsid()
    os.dup2(2, 1)
    os.execv(sys.argv[1], sys.argv[1:])
"""


def named(environ: Mapping[str, str] = os.environ) -> Optional[Path]:
    """Return the socket that the user has named; one set by a server does not count.

    Raises `GateError` for a relative path.
    """
    explicit = environ.get(places.SOCKET_VARIABLE)
    if not explicit or explicit == environ.get(places.SERVER_VARIABLE):
        return None
    if not os.path.isabs(explicit):  # noqa: PTH117 - as text
        raise GateError(f"{places.SOCKET_VARIABLE}: {explicit} is not an absolute path")
    return Path(explicit)


def candidates(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Every socket that may be this user's, the likeliest first."""
    named_path = environ.get(places.SOCKET_VARIABLE)
    paths = [Path(named_path)] if named_path else []
    paths += gate_record.sockets()
    paths.append(places.runtime_folder(environ) / places.SOCKET_NAME)
    paths += [path for path in map(_recorded, places.state_folders(environ)) if path is not None]
    paths += [places.spare_runtime_folder() / places.SOCKET_NAME, *gate_record.kept_by_the_kernel()]
    return list(dict.fromkeys(paths))


def find(environ: Mapping[str, str] = os.environ) -> Optional[Path]:
    """Return the first socket that a process listens on; stale ones are skipped.

    Raises `GateError` for a folder or a listener that is not this user's own, unless the user's
    own gate is found in another place; and for a socket that the user has named and that is not
    the gate's.
    """
    explicit = named(environ)
    mistrust: Optional[GateError] = None
    for path in candidates(environ):
        try:
            dial(path, timeout_s=2.0).close()
        except GateUnreachable:
            continue
        except GateError as error:
            if path == explicit:
                raise GateError(f"{places.SOCKET_VARIABLE}: {error}") from None
            mistrust = mistrust or error
            continue
        if explicit in (None, path) or explicit in gate_record.places():
            return path
        raise GateError(
            f"{places.SOCKET_VARIABLE}: no gate answers on {explicit}; your gate listens on "
            f"{path}: unset the variable, or stop that gate first"
        )
    if mistrust is not None:
        raise mistrust
    return None


def dial(path: Path, timeout_s: float) -> socket.socket:
    """Connect to ``path`` after checking its owner.

    Raises `GateUnreachable` if no process listens, `GateError` if the wrong one does.
    """
    if not str(path).startswith(places.ABSTRACT):
        _check_folder(path.parent)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(timeout_s)
        line.connect(places.socket_address(str(path)))
        _check_listener(line, path)
    except OSError as error:
        line.close()
        raise GateUnreachable(f"no gate answers on {path}: {error.strerror or error}") from None
    except GateError:
        line.close()
        raise
    return line


def start_gate(
    give_up: Callable[[], bool] = lambda: False, environ: Mapping[str, str] = os.environ
) -> Path:
    """Start a gate of this user's own and return its socket once it listens.

    The gate is no child of this process and has its own session: neither an interrupt nor the
    end of this kernel reaches it.  Raises `GateError` with the last line of its log if it does not
    come up.
    """
    log = _own_log(environ)
    attempt = enclosing_run.attempt_above()
    if attempt is not None:
        _launch_outside(attempt, log, give_up, environ)
        return _awaited(None, log, give_up, environ)
    watch = _launch(log, environ)
    try:
        return _awaited(watch, log, give_up, environ)
    finally:
        watch.kill()
        watch.wait()


def _awaited(
    watch: Optional[subprocess.Popen[bytes]],
    log: Path,
    give_up: Callable[[], bool],
    environ: Mapping[str, str],
) -> Path:
    deadline = time.monotonic() + START_WAIT_S
    while time.monotonic() < deadline and not give_up():
        ended_with = watch.poll() if watch is not None else None
        found = find(environ)
        if found is not None:
            return found
        if ended_with is not None and ended_with > 0:
            break
        # One that another gate forestalled ends too: then that one's socket is about to appear.
        if ended_with == 0:
            deadline = min(deadline, time.monotonic() + FORESTALLED_S)
        time.sleep(0.1)
    if give_up():
        raise GateUnreachable("the wait for the gate was given up")
    raise GateError(f"the gate did not start: {_last_words(log)} ({log} has more)")


def _recorded(folder: Path) -> Optional[Path]:
    """Return the socket that the gate of this state folder has named, if it is this user's."""
    try:
        with os.fdopen(
            places.open_private(folder / places.SOCKET_RECORD, os.O_RDONLY), "rb"
        ) as record:
            named = Path(os.fsdecode(record.read(_LONGEST_PATH).strip()))
    except OSError:
        return None
    return named if named.is_absolute() and "\0" not in str(named) else None


def _check_folder(folder: Path) -> None:
    try:
        places.check_private(folder, places.OPEN, follow=False)
    except places.NotPrivate as fault:
        raise GateError(f"{fault}: {_remedy_for(folder, fault)}") from None
    except OSError as error:
        raise GateUnreachable(f"no gate in {folder}: {error.strerror}") from None


def _remedy_for(folder: Path, fault: places.NotPrivate) -> str:
    """Say what to do: our own folder can be made private, another one may have to stay open."""
    if not fault.is_open:
        return f"have it removed, or set {places.SOCKET_VARIABLE} to a socket in another folder"
    if folder in (places.runtime_folder(), places.spare_runtime_folder()):
        return f"chmod 700 {folder}"
    return f"set {places.SOCKET_VARIABLE} to a socket in a folder that only you can enter"


def _check_listener(line: socket.socket, path: Path) -> None:
    uid = peer_of(line).uid
    if uid != os.geteuid():
        raise GateError(f"the process behind {path} runs under uid {uid}, not under yours")


def _own_log(environ: Mapping[str, str]) -> Path:
    named_path = environ.get(places.SOCKET_VARIABLE)
    folder = Path(named_path).parent if named_path else places.runtime_folder(environ)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(folder)
    return folder / "gate.log"


def _launch_outside(
    attempt: Path, log: Path, give_up: Callable[[], bool], environ: Mapping[str, str]
) -> None:
    """Start a gate that does not belong to the run of this process."""
    log.unlink(missing_ok=True)
    inherited = importable(for_a_gate(environ))
    where = {"log": str(log), "cwd": _home_or_root()}
    if not enclosing_run.ask_for_gate(attempt, inherited, give_up, **where) and not give_up():
        raise GateUnreachable(
            "no gate is running, and a gate that is started inside a run would end with it: start "
            "one outside, with `jupyter gpugate serve --user`"
        )


def _launch(log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a gate as the child of a process that ends as it ends, and that may be killed."""
    gate = [sys.executable, "-c", RUN_MODULE, "jupyter_gpugate", "serve", "--user"]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, *isolation(environ), "-c", _DETACH, *gate],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            cwd=_home_or_root(),
            env=importable(for_a_gate(environ)),
        )
    except OSError as error:
        raise GateError(f"a gate cannot be started: {error}; see {log}") from None
    finally:
        os.close(descriptor)


def _home_or_root() -> str:
    own = places.home()
    return own if os.path.isdir(own) else "/"  # noqa: PTH112 - "" is no home


def _last_words(log: Path) -> str:
    """Return the last line of a log, without its time and level or the class of an error."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError as error:
        return str(error)
    return _PREAMBLE.sub("", lines[-1], count=1) if lines else "its log is empty"
