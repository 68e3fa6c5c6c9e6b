"""The bodies that browsers, kernels and scripts send, validated before anything is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

BODY_LIMIT_BYTES = 256 * 1024
ENVIRONMENT_LIMIT_BYTES = 1024 * 1024
#: No machine has more; a larger number is a slip of the keyboard.
MOST_BYTES = 1 << 50

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9._-]{0,63}$")]
Bytes = Annotated[int, Field(gt=0, le=MOST_BYTES)]
Seconds = Annotated[float, Field(gt=0, le=366 * 86400, allow_inf_nan=False)]
#: Text that can be an argument or a variable of a process.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class HintsBody(_Strict):
    """The author's own numbers; for a run without a GPU say ``gpus: 0``, not 0 bytes."""

    vram_bytes: Bytes | None = None
    ram_bytes: Bytes | None = None


class KernelBody(_Strict):
    """The kernel that submits, so that a notebook that dies takes its waiting runs back."""

    pid: int = Field(gt=0)
    start_ticks: int = Field(ge=0)
    boot_id: str = Field(max_length=64)
    notebook: str = Field(default="", max_length=1024)


class InputsBody(_Strict):
    """Values staged by the client under its own uid."""

    names: list[Name] = []
    staged: Text = ""


class RunBody(_Strict):
    """``POST /runs``: only a name and a source or argv are needed."""

    name: Name
    source: str | None = None
    argv: Annotated[list[Text], Field(min_length=1)] | None = None
    interpreter: Text | None = None
    flags: list[Text] = []
    cwd: Text | None = None
    path: list[Text] | None = None
    environment: dict[Text, Text] | None = None
    umask: int | None = Field(default=None, ge=0, le=0o777)
    episodes: int = Field(default=1, ge=1, le=10_000_000)
    workers: int = Field(default=1, ge=1, le=64)
    gpus: int | None = Field(default=None, ge=0, le=64)
    parameters: dict[Name, Text] = {}
    memory_irrelevant: list[Text] = []
    hints: HintsBody = HintsBody()
    inputs: InputsBody = InputsBody()
    outputs: list[Name] = []
    job_class: Literal["urgent", "high", "normal", "batch"] = Field(default="normal", alias="class")
    evictable: bool = False
    exclusive: bool = False
    max_wait_s: Seconds | None = None
    time_limit_s: Seconds | None = None
    detach: bool = False
    idempotency_key: str = Field(default="", max_length=128)
    kernel: KernelBody | None = None

    @model_validator(mode="after")
    def _source_or_argv(self) -> RunBody:
        if (self.source is None) == (self.argv is None):
            raise ValueError("give either a source or an argv")
        if self.argv is not None and (self.workers != 1 or self.episodes != 1):
            raise ValueError("a program has one worker and one episode")
        return self


class LockBody(_Strict):
    """``POST /lock``: a device, or the whole machine, for interactive use."""

    resource: str = Field(default="", max_length=128)
    seconds: float = Field(default=1800, gt=0, le=7200)
    kernel: KernelBody | None = None


class DrainBody(_Strict):
    """``POST /drain``."""

    reason: str = Field(default="", max_length=200)


#: What the validator says in the language of programmers.
PLAIN = {
    "extra_forbidden": "is not a field of this request",
    "missing": "is missing",
    "string_pattern_mismatch": (
        "must be 1 to 64 letters, digits, dots, underscores and hyphens, without a leading hyphen"
    ),
    "model_type": "must be an object",
}


def problem_of(error: ValidationError) -> tuple[str, str, Any]:
    """The first mistake: its field, what is wrong with it, and the value given."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    words = PLAIN.get(first["type"], first["msg"].removeprefix("Value error, "))
    return field, words, first.get("input")
