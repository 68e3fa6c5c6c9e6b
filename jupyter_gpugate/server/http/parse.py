"""Reads the query and the body of a request, and names the field that is wrong."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from tornado.web import RequestHandler

from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server.http.wire import (
    BODY_LIMIT_BYTES,
    ENVIRONMENT_LIMIT_BYTES,
    SHOWN_CHARS,
    problem_of,
)

Model = TypeVar("Model", bound=BaseModel)


def parse_query(handler: RequestHandler, kind: type[Model]) -> Model:
    """Return the query as a model; refuse an option that is unknown, or given twice."""
    arguments = handler.request.query_arguments
    given = {name: handler.get_query_arguments(name) for name in arguments}
    options = [field.alias or name for name, field in kind.model_fields.items()]
    for name, values in given.items():
        if name not in options:
            allowed = f"; known here: {', '.join(options)}" if options else ""
            shown = name[:SHOWN_CHARS]
            problem = f"{shown}: no such option{allowed}"
            raise Refused(400, "bad_request", problem, field=shown)
        if len(values) > 1:
            raise Refused(400, "bad_request", f"{name}: is given twice", field=name)
    return _validated(kind, {name: values[0] for name, values in given.items()})


def parse_body(handler: RequestHandler, kind: type[Model]) -> Model:
    """Return the body as a model; refuse one that is not JSON or too large."""
    body = handler.request.body
    try:
        data = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "bad_request", "the body is not JSON", field="body") from None
    _check_sizes(body, data)
    return _validated(kind, data)


def _check_sizes(body: bytes, data: Any) -> None:
    environment = data.get("environment") if isinstance(data, dict) else None
    of_environment = len(json.dumps(environment)) if environment else 0
    rest = len(body) - of_environment
    for field, what, size, limit in (
        ("environment", "the environment", of_environment, ENVIRONMENT_LIMIT_BYTES),
        ("body", "the body without its environment", rest, BODY_LIMIT_BYTES),
    ):
        if size > limit:
            problem = f"{what} is over {limit >> 10} KiB: stage large inputs as files"
            raise Refused(413, "too_large", problem, field=field, size=size, limit=limit)


def _validated(kind: type[Model], data: Any) -> Model:
    """Return the data as a model; refuse them with the field, the value and the allowed ones."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        field, problem, shown = problem_of(error)
        raise Refused(400, "bad_request", f"{field}: {problem}", field=field, **shown) from None
