"""IPython's shell, with displays sent as events and the magics of a kernel."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Optional

from .events import Events
from .execution import execute
from .widgets import WidgetTexts

#: Magics of kernels that only concern their page: a run ignores them.
_PAGE_MAGICS = ("autosave", "clear", "connect_info", "less", "man", "more", "qtconsole", "subshell")


def ipython_shell(module: types.ModuleType, events: Events) -> Any:
    """Return a shell of this process's IPython; raise ImportError if there is none."""
    from traitlets.config import Config

    widgets = WidgetTexts(events)
    shell = _shell_class(widgets).instance(
        config=Config(HistoryManager={"enabled": False, "hist_file": ":memory:"}),
        display_pub_class=_publisher_class(widgets),
        displayhook_class=_hook_class(widgets),
        user_module=module,
        user_ns=module.__dict__,
    )
    _add_kernel_magics(shell)
    _mark_output_widgets()
    return shell


def _publisher_class(widgets: WidgetTexts) -> Any:
    from IPython.core.displaypub import DisplayPublisher

    class Publisher(DisplayPublisher):
        def publish(
            self,
            data: Mapping[str, Any],
            metadata: Optional[Mapping[str, Any]] = None,
            *_: object,
            transient: Optional[Mapping[str, Any]] = None,
            update: bool = False,
            **__: object,
        ) -> None:
            widgets.show(data, metadata, transient, update=update)

        def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's
            widgets.clear(wait=bool(wait))

    return Publisher


def _hook_class(widgets: WidgetTexts) -> Any:
    from IPython.core.displayhook import DisplayHook

    class Hook(DisplayHook):
        def quiet(self) -> bool:
            return False  # decided when the cell was compiled

        def write_output_prompt(self) -> None:
            pass

        def log_output(self, format_dict: object) -> None:
            pass

        def write_format_data(
            self, format_dict: Mapping[str, Any], md_dict: Optional[Mapping[str, Any]] = None
        ) -> None:
            widgets.show(format_dict, md_dict, result=True)

    return Hook


def _shell_class(widgets: WidgetTexts) -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    class Shell(InteractiveShell):
        def init_virtualenv(self) -> None:
            pass  # sys.path is the kernel's, to the letter

        enable_gui = refuse_windows
        ask_exit = end_cell

        def run(self, codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
            with self.builtin_trap, self.display_trap:
                self.events.trigger("pre_execute")
                try:
                    return execute(codes, namespace)
                finally:
                    self.events.trigger("post_execute")  # open figures are shown here
                    with contextlib.suppress(Exception):  # widgets may be of any class
                        widgets.catch_up()

        def traceback(
            self, error: BaseException, frames: Optional[types.TracebackType]
        ) -> list[str]:
            printer = self.InteractiveTB.structured_traceback
            return list(printer(type(error), error, frames, tb_offset=0))

    return Shell


def refuse_windows(_shell: object, gui: Optional[str] = None) -> None:
    """Refuse the event loops of windows; figures that are shown inline ask for none."""
    if gui not in (None, "inline", "asyncio"):
        raise RuntimeError(
            f"runs have no screen for windows of `{gui}`: use `inline`, or save figures to files"
        )


def end_cell(_shell: object) -> NoReturn:
    """End the cell, as `exit()` and `quit()` ask the shell to."""
    raise SystemExit


def _add_kernel_magics(shell: Any) -> None:
    """Add the line magics that a kernel has beyond IPython's own."""

    def store(line: str) -> Any:
        shell.extension_manager.load_extension("storemagic")
        return shell.run_line_magic("store", line)

    for name in _PAGE_MAGICS:
        shell.register_magic_function(lambda _line: None, "line", name)
    shell.register_magic_function(store, "line", "store")


def _mark_output_widgets() -> None:
    """Let `Output` widgets note when they are entered, which they do only beside a kernel."""

    class Parent:
        """The message that an `Output` in a notebook captures the replies to."""

        def get_parent(self) -> dict[str, Any]:
            return {"header": {"msg_id": "run"}}

    with contextlib.suppress(ImportError, AttributeError):
        import comm

        made: Any = type("Comm", (comm.DummyComm,), {"kernel": Parent()})
        comm.create_comm = made
