"""``%%gated_eval`` and the line magics."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union, cast

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from jupyter_gpugate.client import environment, results, submission, sweeps, values
from jupyter_gpugate.client import options as given
from jupyter_gpugate.client.connection import Client, connect
from jupyter_gpugate.client.errors import GateError, RunCancelled, RunDetached, SubmissionError
from jupyter_gpugate.client.finding import find_unfinished, is_group
from jupyter_gpugate.client.following import State
from jupyter_gpugate.client.groups import Sweep
from jupyter_gpugate.client.options import (
    CELL_OPTIONS,
    ESTIMATE_OPTIONS,
    LOCK_OPTIONS,
    RESOURCE,
    RUN_OPTIONS,
    Option,
)
from jupyter_gpugate.client.verb_options import RUNS
from jupyter_gpugate.client.waiting import (
    Interrupts,
    Patience,
    Verdict,
    connected,
    submitted,
    until_end,
)
from jupyter_gpugate.faces import groups, tables
from jupyter_gpugate.notebook import panel, scope
from jupyter_gpugate.notebook.group import Group
from jupyter_gpugate.notebook.live import LiveCard, is_interactive
from jupyter_gpugate.notebook.replay import Replay
from jupyter_gpugate.notebook.run import Run, raise_for_end
from jupyter_gpugate.notebook.sweeping import SweptCell, run_sweep

F = TypeVar("F", bound=Callable[..., Any])

# IPython gives its own decorators and `display` no types.
_argument: Any = argument
_magic_arguments: Any = magic_arguments
_display: Any = display
_named_line_magic = cast("Callable[[str], Callable[[F], F]]", line_magic)

_RUN_NAME = Option("name", {"type": given.run_name, "help": "the run's name"})


def _magic(register: Any, *options: Option) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        made: Any = register(_with_help(function))
        for option in reversed(options):
            made = _argument(option.flag, **option.settings)(made)
        made = _magic_arguments()(made)
        made.parser.allow_abbrev = False
        # IPython puts one sign before it, and argparse takes two for one.
        sign = "%%" if register is cell_magic else ""
        arguments = " ".join(
            str(option.settings.get("metavar", "NAME"))
            for option in options
            if not option.flag.startswith("-")
        )
        made.parser.usage = f"{sign}{function.__name__} {arguments} [options]"
        made.__doc__ = made.parser.format_help()
        return cast(F, made)

    return decorate


def _parsed(magic: Any, line: str) -> Namespace:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()} in `{line}`") from None
    options, unknown = magic.parser.parse_known_args(words)
    if unknown:
        raise UsageError(given.unrecognized(unknown, magic.parser))
    return cast(Namespace, options)


def _with_help(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a magic answer ``--help`` as a command does."""

    @functools.wraps(function)
    def magic(self: Any, line: str, *cell: str) -> Any:
        if {"-h", "--help"}.isdisjoint(line.split()):
            return function(self, line, *cell)
        text: Any = getattr(type(self), function.__name__).__doc__
        print(text.replace("::\n\n  ", "usage: ", 1).rstrip())  # noqa: T201 - the requested help
        return None

    return magic


@magics_class
class GpuGateMagics(Magics):
    """Runs a cell when its memory is free, and shows the gate's queue and estimates."""

    @_magic(
        cell_magic,
        Option("name", {**_RUN_NAME.settings, "nargs": "?"}),
        *CELL_OPTIONS,
        *RUN_OPTIONS,
    )
    def gated_eval(self, line: str, cell: str) -> Union[Run, Group, None]:
        """Run this cell in a process of its own once the memory it needs is free."""
        options = _parsed(self.gated_eval, line)
        if options.name is None:
            raise UsageError("the run needs a name: %%gated_eval NAME --episodes N")
        source = f"# %%gated_eval {options.name}\n{cell}"
        wait = _Wait(self.shell, options)
        with _one_liners():
            inputs = self._checked(options, source)
            body = submission.cell(options, source)
            staged = values.stage(inputs) if inputs else None
            swept = sweeps.points(options)
            if swept:
                sweep = SweptCell(Sweep(body, swept), list(inputs), staged)
                return run_sweep(self.shell, options, sweep)
            if staged is not None:
                body["inputs"] = {"names": list(inputs), "staged": str(staged)}
            with wait.interrupts.taken():
                run = wait.submit(body, staged)
                outcome = None if options.detach else wait.follow(run)
            if outcome is None:
                if wait.interrupts.count:
                    raise RunDetached("it was queued before the interrupt", {"run_id": run.run_id})
                return run
            wait.finish(run, *outcome)
        return None

    @_named_line_magic("%gated_eval")
    def misplaced_gated_eval(self, line: str) -> None:
        """Raise a helpful error if `%%gated_eval` is not on the first line of its cell."""
        first = f"%%gated_eval {line}".strip()
        raise UsageError(
            f"`{first}` must be the first line of its cell: move the lines above it further down"
        )

    @_named_line_magic("gated_eval")
    def half_signed_gated_eval(self, line: str) -> None:
        """Raise a helpful error for `%gated_eval`, which would be a line magic."""
        raise UsageError(
            f"use `{f'%%gated_eval {line}'.strip()}`, with two %, on the first line of a cell, and "
            "the code of the run on the lines below"
        )

    @_magic(line_magic)
    def gpu_queue(self, line: str) -> None:
        """Show active runs, waiting runs with their reasons, and the use of memory."""
        _parsed(self.gpu_queue, line)
        with _one_liners():
            snapshot = connect().queue()
        _display(tables.queue(snapshot), raw=True)

    @_magic(line_magic, _RUN_NAME, *ESTIMATE_OPTIONS)
    def gpu_estimate(self, line: str) -> None:
        """Show the need of a run, the origin of each number, and whether it would start now."""
        options = _parsed(self.gpu_estimate, line)
        question = {k: v for k, v in vars(options).items() if v is not None}
        with _one_liners():
            answer = connect().estimate(question)
        _display(tables.estimate(answer), raw=True)

    @_magic(line_magic, RUNS)
    def gpu_cancel(self, line: str) -> None:
        """Stop runs with all their processes."""
        options = _parsed(self.gpu_cancel, line)
        with _one_liners():
            client = connect()
            refused: list[str] = []
            for word in options.runs:
                try:
                    result = _cancelled(client, word)
                except GateError as error:
                    refused.append(str(error))
                else:
                    _display({"text/plain": result}, raw=True)
            if refused:
                raise UsageError("; ".join(refused))

    @_magic(line_magic, *LOCK_OPTIONS)
    def gpu_lock(self, line: str) -> None:
        """Keep your runs off a GPU, or off the machine, while you work by hand."""
        options = _parsed(self.gpu_lock, line)
        with _one_liners():
            kernel, visible = environment.this_process(), os.environ.get("CUDA_VISIBLE_DEVICES")
            answer = connect().lock(options.resource, options.time, kernel, visible)
        _display({"text/plain": tables.locked(answer)}, raw=True)

    @_magic(line_magic, RESOURCE)
    def gpu_release(self, line: str) -> None:
        """Remove the lock of %gpu_lock."""
        options = _parsed(self.gpu_release, line)
        with _one_liners():
            answer = connect().unlock(options.resource)
        _display({"text/plain": tables.unlocked(answer)}, raw=True)

    @_magic(line_magic)
    def gpu_panel(self, line: str) -> None:
        """Show the queue and the memory in a panel that stays up to date."""
        _parsed(self.gpu_panel, line)
        with _one_liners():
            try:
                shown = panel.bundle(connect())
            except ImportError:
                raise UsageError(
                    "%gpu_panel needs anywidget in this environment: pip install anywidget; "
                    "%gpu_queue shows the same without updates"
                ) from None
        _display(shown, raw=True)

    def _checked(self, options: Namespace, source: str) -> dict[str, Any]:
        """Refuse a cell that would fail later; return the values for the run."""
        shell: Any = self.shell
        notebook = scope.defined(shell.user_ns, shell.user_ns_hidden)
        inputs = submission.flat(options.input)
        found = scope.read(source)
        for name in inputs:
            if name not in notebook:
                raise UsageError(f"--input {name}: `{name}` is not defined in this notebook")
        given_by_name = [*options.set, *options.set_free, *options.sweep, *options.sweep_free]
        parameters = {name for name, _ in given_by_name} - set(inputs)
        unclear = scope.parameters_by_name(found, notebook, parameters)
        if unclear:
            raise UsageError(scope.parameter_remedy(unclear[0], notebook))
        for name, _ in [*options.sweep, *options.sweep_free][:1]:
            if scope.is_same_for_all(found):
                use = f'use params["{name}"] in it'
                raise UsageError(f"--sweep {name}: the cell is the same for every value: {use}")
        missing = scope.missing(found, notebook, frozenset(inputs))
        if missing:
            raise UsageError(scope.remedy(missing, notebook))
        for name in submission.flat(options.output):
            if name not in found.bound and not found.star_import:
                raise UsageError(f"--output {name}: the cell never assigns `{name}`")
        return {name: notebook[name] for name in inputs}


def _cancelled(client: Client, word: str) -> str:
    if is_group(word):
        return groups.cancelled(client.cancel_group(word))
    run_id = find_unfinished(client, word)
    return tables.cancelled(run_id, client.cancel(run_id))


class _Wait:
    """One cell's way through the gate: connect, submit, show, end."""

    def __init__(self, shell: Any, options: Namespace) -> None:
        self.interrupts = Interrupts()
        self._shell = shell
        self._options = options
        self._card = LiveCard(shell)
        self._patience = Patience(interactive=is_interactive(shell))

    def submit(self, body: submission.Body, staged: Optional[Path]) -> Run:
        """Queue the run; staged inputs that it does not take over are removed."""
        try:
            client = connected(self.interrupts)
            answer = submitted(client, body, self.interrupts, self._patience, self._card.show)
            return Run(str(answer["run_id"]), client)
        except BaseException:
            if staged is not None:
                values.discard(staged)
            raise

    def follow(self, run: Run) -> tuple[State, Verdict]:
        """Show the run until its end, or until an interrupt says not to wait for it."""
        follower = run.follow()
        how = {"updates": self._card.updates, "scripted": self._card.scripted}
        replay = Replay(self._shell.display_pub, **how)
        shown: State = {}

        def show(state: State, note: str) -> None:
            shown.update(note=note)
            self._card.show(replay.on_card(state), note)
            if replay.catch_up(state):
                self._card.show(replay.on_card(state), note)

        def look(state: State) -> None:
            if replay.catch_up(state, patient=True):
                self._card.show(replay.on_card(state), shown.get("note", ""))

        try:
            waits = (follower, self.interrupts, self._patience, show, look)
            return until_end(*waits, goes_on=is_ready)
        finally:
            follower.close()
            replay.close()

    def finish(self, run: Run, state: State, verdict: Verdict) -> None:
        """Load the outputs of a completed run; raise for any other end than a ready service's."""
        again = f'jupyter_gpugate.get("{run.run_id}")'
        if is_ready(state) and not self.interrupts.count:
            self._card.show(state, f"the service is ready and goes on; {again} returns a handle")
            return
        if state.get("status") != "ended" and verdict is Verdict.LEAVE:
            message = f"the run goes on without this cell; {again} follows it"
            self._card.show(state, message)
            raise RunDetached(message, state)
        if state.get("status") != "ended":
            raise RunCancelled(f"{run.run_id} is being stopped; {again} follows it", state)
        raise_for_end(state)
        try:
            if self._options.output:
                self._shell.push(results.load(state))
        except KeyboardInterrupt:
            message = f"interrupted while the outputs were loaded; {again}.result() has them"
            raise RunDetached(message, state) from None
        if self.interrupts.count:
            raise RunDetached(f"the run completed before the interrupt; {again} has it", state)


def is_ready(state: State) -> bool:
    """Return whether this is a service that is ready: its cell need not wait for its end."""
    return state.get("status") == "active" and state.get("ready") is True


@contextlib.contextmanager
def _one_liners() -> Iterator[None]:
    """Show a user's mistake as one line, without a traceback."""
    try:
        yield
    except (scope.CellError, SubmissionError, values.ValueCannotTravel) as error:
        raise UsageError(str(error)) from None
    except GateError as error:
        if error.status in (400, 404, 409, 413):
            raise UsageError(str(error)) from None
        raise
