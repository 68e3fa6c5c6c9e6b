"""The OpenAPI document, made from the calls that the handlers declare."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from jupyter_gpugate._version import __version__
from jupyter_gpugate.server.http.api import ApiHandler
from jupyter_gpugate.server.http.contract import Call, calls_of
from jupyter_gpugate.server.http.shapes import ErrorAnswer
from jupyter_gpugate.server.http.wire import NoQuery

#: A part of an OpenAPI document, whose form is given by its specification.
OpenApi = dict[str, Any]

#: Of a run or a group in a path.
ID = r"[A-Za-z0-9._-]{1,64}"
#: The parts of a path that name something.
NAMED = ("run_id", "group_id")
#: Every call may answer with these: bad input, no permission, no gate.
ALWAYS = (400, 401, 403, 503)
JSON = "application/json"
REFERENCE = "#/components/schemas/{model}"
DESCRIPTION = (
    "Starts evaluations when the memory they need is measured to be free. Amounts are bytes, "
    "durations seconds; absent or null means unknown. Clients must ignore unknown fields."
)


def document(handlers: Sequence[type[ApiHandler]]) -> OpenApi:
    """The document of an API with these handlers."""
    calls = {(h.path, method): call for h in handlers for method, call in calls_of(h).items()}
    schemas = _Schemas(list(calls.values()))
    paths: OpenApi = {}
    for (path, method), call in calls.items():
        paths.setdefault(path, {})[method] = _operation(path, method, call, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jupyter_gpugate", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "."}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`token ` and the Jupyter server's token; not on the socket.",
                }
            },
        },
    }


class _Schemas:
    """The models of all calls, each defined once."""

    def __init__(self, calls: Sequence[Call]) -> None:
        bodies = {call.body for call in calls if call.body}
        answers = {call.answer for call in calls} | {ErrorAnswer}
        wanted: list[tuple[type[BaseModel], Any]] = [
            *((body, "validation") for body in sorted(bodies, key=lambda m: m.__name__)),
            *((answer, "serialization") for answer in sorted(answers, key=lambda m: m.__name__)),
        ]
        _, defined = models_json_schema(wanted, ref_template=REFERENCE)
        self.definitions: OpenApi = defined["$defs"]

    def content(self, model: type[BaseModel]) -> OpenApi:
        """A body of this model."""
        return {JSON: {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}}


def _operation(path: str, method: str, call: Call, schemas: _Schemas) -> OpenApi:
    operation: OpenApi = {
        "operationId": method + path.translate({ord(c): "_" for c in "/{}."}),
        "summary": call.summary.partition("\n")[0],
        "parameters": [*_parameters(path, call.query), *_conditional(call)],
        "responses": _responses(path, call, schemas),
    }
    if call.body is not None:
        operation["requestBody"] = {"required": True, "content": schemas.content(call.body)}
    return operation


def _parameters(path: str, query: type[BaseModel]) -> list[OpenApi]:
    found: list[OpenApi] = []
    for name in named_in(path):
        schema: OpenApi = {"type": "string", "pattern": f"^{ID}$"}
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    described = query.model_json_schema() if query is not NoQuery else {}
    for name, schema in described.get("properties", {}).items():
        schema.pop("title", None)
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name in described.get("required", ()),
                "description": schema.pop("description", ""),
                "schema": _without_null(schema),
            }
        )
    return found


def named_in(path: str) -> list[str]:
    """Return the names of the variable parts of a path."""
    return [name for name in NAMED if f"{{{name}}}" in path]


def _without_null(schema: OpenApi) -> OpenApi:
    """Return a query's schema without null: an option is present or absent."""
    choices = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if not choices:
        return schema
    kept = {k: v for k, v in schema.items() if k not in ("anyOf", "default")}
    return {**kept, **choices[0]}


def _conditional(call: Call) -> list[OpenApi]:
    if not call.polled:
        return []
    schema = {"type": "string"}
    return [{"name": "If-None-Match", "in": "header", "required": False, "schema": schema}]


def _responses(path: str, call: Call, schemas: _Schemas) -> OpenApi:
    answers: OpenApi = {}
    for status in call.statuses:
        answers[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": schemas.content(call.answer),
        }
        if call.polled:
            answers[str(status)]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    if call.polled:
        answers["304"] = {"description": "Nothing has changed since the given ETag"}
    missing = {404} if named_in(path) else set()
    large = {413} if call.body is not None else set()
    for status in sorted({*ALWAYS, *call.errors, *missing, *large}):
        answers[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": schemas.content(ErrorAnswer),
        }
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            answers["429"]["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return answers
