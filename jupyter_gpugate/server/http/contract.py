"""Declares the query, body and answers of each call, for validation and documentation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel
from tornado.web import RequestHandler

from jupyter_gpugate.server.http.parse import parse_body, parse_query
from jupyter_gpugate.server.http.wire import NoQuery, PollQuery

#: A method of a handler: its path's parts, then what was asked, then the body.
Method = Callable[..., Awaitable[None] | None]


@dataclass(frozen=True)
class Call:
    """One method of one path."""

    summary: str
    answer: type[BaseModel]
    query: type[BaseModel]
    body: type[BaseModel] | None
    statuses: tuple[int, ...]
    errors: tuple[int, ...]

    @property
    def polled(self) -> bool:
        """Whether it has an ETag and can wait for another one."""
        return issubclass(self.query, PollQuery)


def call(
    answer: type[BaseModel],
    *,
    query: type[BaseModel] = NoQuery,
    body: type[BaseModel] | None = None,
    statuses: tuple[int, ...] = (200,),
    errors: tuple[int, ...] = (),
) -> Callable[[Method], Callable[..., Awaitable[None]]]:
    """Make a method a call: query and body are checked first and handed over as their models.

    ``errors`` are those beyond the ones that every call may answer with.
    """

    def decorate(method: Method) -> Callable[..., Awaitable[None]]:
        @functools.wraps(method)
        async def answered(self: RequestHandler, *path: str) -> None:
            asked = parse_query(self, query)
            given = [] if query is NoQuery else [asked]
            if body is not None:
                given.append(parse_body(self, body))
            result = method(self, *path, *given)
            if result is not None:
                await result

        summary = inspect.getdoc(method) or ""
        answered.call = Call(summary, answer, query, body, statuses, errors)  # type: ignore[attr-defined]
        return answered

    return decorate


def calls_of(handler: type) -> dict[str, Call]:
    """The calls of a handler by their method, in lower case."""
    found = ((name, getattr(getattr(handler, name, None), "call", None)) for name in METHODS)
    return {name: call for name, call in found if call is not None}


METHODS = ("get", "post", "delete")
