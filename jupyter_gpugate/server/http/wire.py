"""Models of the bodies and queries that browsers, kernels and scripts send."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo

from jupyter_gpugate.core.reports import EndName, Status
from jupyter_gpugate.core.run_spec import (
    FIELD,
    GROUP_ID,
    LEAST_CHOSEN_BYTES,
    LOCK_S,
    LONGEST_LOCK_S,
    MOST_AFTER,
)
from jupyter_gpugate.core.run_spec import NAME as RUN_NAME

BODY_LIMIT_BYTES = 256 * 1024
ENVIRONMENT_LIMIT_BYTES = 1024 * 1024
#: No machine has more; a larger number is a slip of the keyboard.
MOST_BYTES = 1 << 50

NAME = f"^{RUN_NAME}$"
TEXT = r"^[^\x00]*$"
VARIABLE = r"^[^\x00=]+$"
LIMIT = (
    r"^(AS|CORE|CPU|DATA|FSIZE|MEMLOCK|MSGQUEUE|NICE|NOFILE|NPROC|OFILE|RSS|RTPRIO|RTTIME"
    r"|SIGPENDING|STACK)$"
)
CURSOR = r"^[0-9]{1,12}(\.[0-9]{1,9})?~[A-Za-z0-9._-]{1,64}$"
GROUP = f"^{GROUP_ID}$"
ID = r"^[A-Za-z0-9._-]{1,64}$"
#: The patterns in words.
PATTERNS = {
    NAME: "must be 1 to 64 letters, digits, dots, underscores and hyphens, "
    "without a leading hyphen",
    TEXT: "must not contain a NUL character",
    VARIABLE: "must be the name of a variable, without = and NUL",
    LIMIT: "must be the name of a limit, such as NOFILE or CORE",
    CURSOR: "must be the next_cursor of a page",
    GROUP: "must be the id of a group, such as g20260914-101502-kqzfa",
    ID: "must be the id of a run or of a group",
}

Name = Annotated[str, StringConstraints(pattern=NAME)]
GroupId = Annotated[str, StringConstraints(pattern=GROUP)]
#: Ids of runs and of groups.
Ids = Annotated[list[Annotated[str, StringConstraints(pattern=ID)]], Field(max_length=MOST_AFTER)]
Bytes = Annotated[int, Field(gt=0, le=MOST_BYTES)]
ChosenBytes = Annotated[int, Field(ge=LEAST_CHOSEN_BYTES, le=MOST_BYTES)]
LimitName = Annotated[str, StringConstraints(pattern=LIMIT)]
#: Two limits of a resource of a process; -1 is none.
SoftAndHard = Annotated[
    list[Annotated[int, Field(ge=-1, lt=1 << 63)]], Field(min_length=2, max_length=2)
]
#: Text that can be an argument or a variable of a process.
Text = Annotated[str, StringConstraints(pattern=TEXT)]
#: Numbers and UUIDs, separated by commas.
DeviceNames = Annotated[Text, Field(min_length=1, max_length=1024)]
DeviceModel = Annotated[Text, Field(min_length=1, max_length=128)]
Variable = Annotated[str, StringConstraints(pattern=VARIABLE)]


def _held_by_the_system(value: object) -> str:
    """Accept text of the system, in which bytes that are not UTF-8 are surrogates."""
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - what a validator raises
    if "\0" in value:
        raise ValueError(PATTERNS[TEXT])
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError("must be text that the system can represent") from None
    return value


#: A path or the value of a variable, which need not be text in any encoding.
SystemText = Annotated[
    str,
    PlainValidator(_held_by_the_system),
    WithJsonSchema({"type": "string", "pattern": TEXT}),
]


class Body(BaseModel):
    """A strict body: JSON distinguishes numbers from text, and so does its validation."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoQuery(BaseModel):
    """A call without options."""

    model_config = ConfigDict(extra="forbid")


#: The types and defaults of a model's fields, as `create_model` takes them.
Declared = dict[str, Any]


def bounded(name: str) -> FieldInfo:
    """Return the bounds of a number."""
    field = FIELD[name]
    found: FieldInfo = (
        Field(gt=field.least, le=field.most, allow_inf_nan=False)
        if field.kind is float
        else Field(ge=field.least, le=field.most)
    )
    return found


class KernelBody(Body):
    """The submitting kernel; when it ends, its waiting runs are withdrawn."""

    pid: int = Field(gt=0, le=1 << 22)
    start_ticks: int = Field(ge=0, le=1 << 53)
    boot_id: str = Field(max_length=64)
    notebook: str = Field(default="", max_length=1024)


class LockBody(Body):
    """``POST /lock``: a device, or the whole machine, to be used by hand."""

    resource: str = Field(default="", max_length=128)
    seconds: float = Field(default=LOCK_S, gt=0, le=LONGEST_LOCK_S)
    kernel: KernelBody | None = None
    visible: str | None = Field(
        default=None, max_length=4096, description="The caller's `CUDA_VISIBLE_DEVICES`."
    )


class DrainBody(Body):
    """``POST /drain``."""

    reason: str = Field(default="", max_length=200)
    stop_runs: bool = Field(
        default=False, description="Stop active runs instead of letting them end."
    )


# -- queries: text, converted to the types of their options ---------------------------------------


class PollQuery(NoQuery):
    """Options of a call that can wait for a change."""

    wait: float = Field(
        default=0,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="Most seconds to wait for a change.",
    )
    etag: str = Field(
        default="", description="The `ETag` of the newest answer that the caller has."
    )


class CardQuery(PollQuery):
    """Options of a card."""

    until: int | None = Field(
        default=None,
        ge=0,
        le=1 << 60,
        description="End, in bytes, of the output on the card; while its cell waits, the rest is "
        "shown below the card.",
    )
    rest: int | None = Field(
        default=None,
        ge=0,
        le=1 << 60,
        description="First byte of the output below the card that is requested as well.",
    )


class QueueQuery(PollQuery):
    """Options of the snapshot."""

    inputs: bool = Field(default=False, description="Add all inputs of the decisions.")


class RunsQuery(NoQuery):
    """The selection and order of a list of runs."""

    status: Literal["unfinished", Status, EndName] | None = Field(
        default=None, description="Only runs with this status, or with this end."
    )
    run: Name | None = Field(
        default=None,
        description="Only runs of this name, or with ids that begin, or end, like this.",
    )
    name: Name | None = Field(default=None, description="Only runs of this name.")
    group: GroupId | None = Field(default=None, description="Only runs of this group.")
    sort: Literal["newest", "oldest"] = "newest"
    limit: int = Field(default=100, ge=1, le=1000, description="Runs per page.")
    cursor: str | None = Field(
        default=None,
        pattern=CURSOR,
        description="`next_cursor` of the previous page.",
    )


class OutputQuery(NoQuery):
    """The position in the output."""

    start: int = Field(default=0, ge=0, le=1 << 60, alias="from", description="The first byte.")


class EstimateQuery(NoQuery):
    """The newest run of a name, unchanged or varied."""

    name: Name
    workers: Annotated[int, bounded("workers")] | None = None
    gpus: Annotated[int, bounded("gpus")] | None = None
    episodes: Annotated[int, bounded("episodes")] | None = None
    device: DeviceNames | None = None
    device_model: DeviceModel | None = None


class ForgetQuery(NoQuery):
    """A device that was removed from the machine."""

    forget: str = Field(min_length=1, description="Its UUID, the beginning of it, or its index.")


class ResourceQuery(NoQuery):
    """A device, or the whole machine."""

    resource: str = Field(default="", max_length=128, description="As in `POST /lock`.")


class NameQuery(NoQuery):
    """The name of runs."""

    name: Name


class TransitionsQuery(NoQuery):
    """The position among transitions, and the wait for the next one."""

    after: int = Field(default=0, ge=0, le=1 << 53, description="`last` of the previous answer.")
    epoch: str = Field(default="", max_length=64, description="`epoch` of the previous answer.")
    wait: float = Field(default=0, ge=0, le=60, allow_inf_nan=False)


class SamplesQuery(NoQuery):
    """The position among samples."""

    since: int = Field(default=0, ge=0, le=1 << 53, description="`last` of the previous answer.")


#: The validator's messages that need plainer words.
PLAIN = {
    "bool_parsing": "must be 1 or 0",
    "extra_forbidden": "is not a field of this request",
    "missing": "is missing",
    "model_type": "must be an object",
}


#: Fields whose values an error may repeat.  Any other may hold a secret, by its nature or by a slip
#: of the hand.
SHOWN = frozenset(name for name, field in FIELD.items() if field.kind) | {
    "name", "limits", "hints", "chosen", "inputs",
    "group",
    "seconds", "resource", "stop_runs", "wait", "status", "sort", "limit", "from", "after", "since",
    "forget",
}  # fmt: skip
SHOWN_CHARS = 100


def problem_of(error: ValidationError) -> tuple[str, str, dict[str, str]]:
    """Return the first error: its field, the problem, and its value if that may be shown."""
    first = error.errors(include_url=False)[0]
    place = [str(part)[:SHOWN_CHARS] for part in first["loc"] if part != "[key]"]
    if "[key]" in first["loc"] and place[0] not in SHOWN:
        place.pop()  # the name that is wrong, which may hold a secret
    field = ".".join(place) or "body"
    words = PLAIN.get(first["type"], first["msg"].removeprefix("Value error, "))
    words = PATTERNS.get(first.get("ctx", {}).get("pattern", ""), words)
    return field, words, _shown(place, first.get("input"))


def _shown(place: list[str], value: Any) -> dict[str, str]:
    open_to_all = bool(place) and place[0] in SHOWN
    if not open_to_all or not isinstance(value, (str, int, float, type(None))):
        return {}
    try:
        return {"value": repr(value)[:SHOWN_CHARS]}
    except ValueError:  # more digits than Python writes
        return {}
