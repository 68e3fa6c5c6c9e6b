"""One worker from its start to its end."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .attempt import Attempt
from .console import print_utf8, refuse_input
from .ending import leave
from .episodes import Episodes
from .errors import report_error
from .events import Events
from .execution import compiled
from .hooks import follow_imports
from .outputs import write_outputs
from .resuming import resumable
from .shells import PlainShell, shell_for
from .torch_memory import report_torch_memory


def main(argv: Sequence[str]) -> NoReturn:
    """Run worker ``INDEX`` of ``ATTEMPT_DIR``."""
    descriptor = int(os.environ.pop("GPUGATE_EVENTS_FD"))
    os.environ["GPUGATE_EVENTS"] = f"/proc/{os.getpid()}/fd/{descriptor}"
    events = Events(descriptor, os.environ.pop("GPUGATE_MARK", ""))
    attempt = Attempt(Path(argv[1]), int(argv[2]))
    os.environ["GPUGATE_ATTEMPT_DIR"] = str(attempt.directory)  # for processes that the cell starts
    if attempt.launch["path"] is None:  # the interpreter's own, as for a script in this folder
        attempt.launch["path"] = ["", *sys.path]
    sys.path[:] = attempt.launch["path"]
    sys.argv = [attempt.cell]
    print_utf8()
    refuse_input()
    code, loop = run_worker(attempt, events)
    leave(code, loop, events)


def run_worker(attempt: Attempt, events: Events) -> tuple[object, Any]:
    """Run the cell as ``__main__``; return what `sys.exit` takes, and the cell's event loop."""
    module = types.ModuleType("__main__")
    module.__file__ = attempt.cell
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module
    shell: Any = PlainShell(events)
    loop = None
    try:
        follow_imports(attempt, events.warn)
        codes = compiled(attempt.source(), attempt.cell)
        shell = shell_for(module, events)
        episodes = Episodes(attempt, events, resumable(attempt, events))
        module.__dict__.update(attempt.names(episodes))
        try:
            loop = shell.run(codes, module.__dict__)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                return leaving.code, loop
        episodes.close()
        write_outputs(attempt, module.__dict__, events)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is how the run ends
        report_error(error, shell, attempt, events)
        return 1, loop
    finally:
        report_torch_memory(attempt, events)
    return 0, loop
