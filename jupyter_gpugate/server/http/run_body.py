"""The body of a submit: the fields of `core/run_spec.py`, each with its type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from jupyter_gpugate.core.codec import JsonObject
from jupyter_gpugate.core.ready_url import LONGEST, PATTERN, problem_of
from jupyter_gpugate.core.run_spec import FIELD
from jupyter_gpugate.server.http.wire import (
    Body,
    Bytes,
    ChosenBytes,
    Declared,
    DeviceModel,
    DeviceNames,
    GroupId,
    Ids,
    KernelBody,
    LimitName,
    Name,
    SoftAndHard,
    SystemText,
    Text,
    Variable,
    bounded,
)


class HintsBody(Body):
    """The author's own numbers; a run without a GPU has ``gpus: 0``, not a hint of 0 bytes."""

    vram_bytes: Bytes | None = None
    ram_bytes: Bytes | None = None


class ChosenBody(Body):
    """The amounts that the author has fixed: reserved, capped and passed on exactly so."""

    vram_bytes: ChosenBytes | None = None
    ram_bytes: ChosenBytes | None = None


class InputsBody(Body):
    """Values staged by the client under its own uid."""

    names: list[Name] = Field(default=[])
    staged: Text = ""


#: One of the two, or neither to repeat the newest run of the name, as a schema says it.
SOURCE_OR_ARGV: JsonSchemaValue = {
    "oneOf": [
        {"properties": {"source": {"type": "null"}, "argv": {"type": "null"}}},
        {"required": ["source"], "properties": {"source": {"type": "string"}}},
        {
            "required": ["argv"],
            "properties": {
                "argv": {"type": "array"},
                "workers": {"const": 1},
                "episodes": {"const": 1},
            },
        },
    ]
}


class _SourceOrArgv(Body):
    """The rules that concern more than one field."""

    model_config = ConfigDict(json_schema_extra=SOURCE_OR_ARGV)

    @model_validator(mode="after")
    def _source_or_argv(self) -> _SourceOrArgv:
        run = dict(self)
        if run["source"] is not None and run["argv"] is not None:
            raise ValueError("must not have both a source and an argv")
        if run["argv"] is not None and (run["workers"] != 1 or run["episodes"] != 1):
            raise ValueError("a program has one worker and one episode")
        if run["group"] is None and (run["at_most"] or run["group_size"]):
            raise ValueError("at_most and group_size need a group")
        return self


#: A type, an annotated type or a union, which have no common type.
FieldType = Any


def _asked_by_supervisors(url: str) -> str:
    """Accept a URL that the supervisor of a service can ask."""
    problem = problem_of(url)
    if problem:
        raise ValueError(problem)
    return url


_READY_URL: JsonSchemaValue = {"type": "string", "pattern": PATTERN, "maxLength": LONGEST}
ReadyUrl = Annotated[str, AfterValidator(_asked_by_supervisors), WithJsonSchema(_READY_URL)]

#: The types of those fields of a run that are more than a number, a switch or a choice.
TYPES: dict[str, FieldType] = {
    "name": Name,
    "source": str | None,
    "argv": Annotated[list[Text], Field(min_length=1)] | None,
    "interpreter": SystemText | None,
    "flags": list[Text],
    "cwd": SystemText | None,
    "device": DeviceNames | None,
    "device_model": DeviceModel | None,
    "path": list[SystemText] | None,
    "environment": dict[Variable, SystemText] | None,
    "limits": dict[LimitName, SoftAndHard],
    "parameters": dict[Name, Text],
    "memory_irrelevant": list[Text],
    "hints": HintsBody,
    "chosen": ChosenBody,
    "ready_url": ReadyUrl | None,
    "inputs": InputsBody,
    "outputs": list[Name],
    "idempotency_key": Annotated[str, Field(max_length=128)],
    "kernel": KernelBody | None,
    "group": GroupId | None,
    "after": Ids,
}


def _declared(name: str) -> tuple[FieldType, Any]:
    """Return the type of a field of a run and its default."""
    field = FIELD[name]
    if field.kind is None:
        kind = TYPES[name]
        return kind, kind() if kind in {HintsBody, ChosenBody, InputsBody} else field.default
    if field.choices:
        return Literal[field.choices], field.default
    kind = field.kind if field.most is None else Annotated[field.kind, bounded(name)]
    return kind | None if field.default is None else kind, field.default


_DECLARED: Declared = {name: _declared(name) for name in FIELD}
RunBody: type[BaseModel] = create_model(
    "RunBody",
    __base__=_SourceOrArgv,
    __doc__="``POST /runs``: a name and a source or argv, or the name of an earlier run alone.",
    **_DECLARED,
)


def submitted_fields(body: BaseModel) -> JsonObject:
    """Return the fields of a submit; of one that repeats a run only those that are given."""
    run = dict(body)
    repeats = run["source"] is None and run["argv"] is None
    return body.model_dump(mode="json", by_alias=True, exclude_unset=repeats)
