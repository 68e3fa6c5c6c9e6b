"""A cell's code: how it is compiled and executed, with or without an event loop."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import tokenize
import types
from collections.abc import Sequence
from typing import Any


def compiled(source: str, path: str) -> list[types.CodeType]:
    """Compile the cell; its last expression is separate, to be shown, unless it ends in ``;``."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: Any = compile(source, path, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    shown = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not _ends_quietly(source):
        shown = ast.Interactive([tree.body.pop()])
    codes = [compile(tree, path, "exec", flags, dont_inherit=True)]
    if shown is not None:
        codes.append(compile(shown, path, "single", flags, dont_inherit=True))
    return codes


def _ends_quietly(source: str) -> bool:
    passed = {tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    words = [token.string for token in tokens if token.type not in passed]
    return bool(words) and words[-1] == ";"


def execute(codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> Any:
    """Run the compiled cell; return the event loop of one that awaits at its top level.

    Tasks that the cell has left in that loop may not have ended yet.
    """
    if not any(code.co_flags & inspect.CO_COROUTINE for code in codes):
        for code in codes:
            exec(code, namespace)  # noqa: S102 - running the user's cell is the purpose
        return None
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_awaited(codes, namespace))
    except BaseException:
        end_tasks(loop, 0.0)
        raise
    return loop


async def _awaited(codes: Sequence[types.CodeType], namespace: dict[str, Any]) -> None:
    for code in codes:
        value = eval(code, namespace)  # noqa: S307 - as above
        if code.co_flags & inspect.CO_COROUTINE:
            await value


def end_tasks(loop: Any, patience_s: float) -> list[str]:
    """Wait for the tasks of a loop, cancel those that do not end, and return their names."""
    import asyncio

    def unfinished(timeout_s: float) -> Any:
        tasks = asyncio.all_tasks(loop)
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=timeout_s))
        return asyncio.all_tasks(loop)

    left = unfinished(patience_s)
    for task in left:
        task.cancel()
    unfinished(1.0)
    with contextlib.suppress(Exception):
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), 1.0))
    asyncio.set_event_loop(None)
    with contextlib.suppress(RuntimeError):  # a task that takes no cancellation still runs
        loop.close()
    return sorted(task.get_coro().__qualname__ for task in left)
