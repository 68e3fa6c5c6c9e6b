"""The fields of a run: defaults, bounds, and the records that contain each of them.

The validation of a submit's body and its schema, the defaults of the options, `spec.json` and
`launch.json` follow from this table.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Optional

#: The name of a run, as a regular expression.
NAME: Final = r"[A-Za-z0-9_.][A-Za-z0-9._-]{0,63}"
#: The id of a run: the time of its submit in UTC and five letters, as a regular expression.
RUN_ID: Final = r"[0-9]{8}-[0-9]{6}-[a-z]{5}"
#: The id of a group, which its submitter makes, as a regular expression.
GROUP_ID: Final = r"g[0-9]{8}-[0-9]{6}-[a-z]{5}"
MOST_WORKERS: Final = 64
#: Of the runs of a group, and of the runs or groups that one waits for.
MOST_IN_GROUP: Final = 500
MOST_AFTER: Final = 64
LONGEST_TIME_S: Final = 366 * 86400
#: Of a chosen amount of memory.
LEAST_CHOSEN_BYTES: Final = 1 << 20
#: Of a lock, in seconds.
LOCK_S: Final = 1800
LONGEST_LOCK_S: Final = 7200
REQUIRED: Final[Any] = ...


class Field(NamedTuple):
    """One field of the body of a submit."""

    name: str
    default: Any = None
    kind: Optional[type] = None  # of a number, a switch or a choice; the API types the others
    least: Optional[int] = None  # a time must be longer
    most: Optional[int] = None
    choices: tuple[str, ...] = ()
    in_spec: bool = True  # the spec contains it as it was submitted
    in_launch: bool = False  # the launch record contains it as the spec does


#: In the order in which a body is checked.
FIELDS: Final = (
    Field("name", REQUIRED, in_launch=True),
    Field("source"),
    Field("argv"),
    Field("interpreter", in_spec=False, in_launch=True),
    Field("flags", [], in_launch=True),
    Field("cwd", in_spec=False, in_launch=True),
    Field("path", in_launch=True),
    Field("environment", in_spec=False),
    Field("umask", None, int, 0, 0o777, in_launch=True),
    Field("limits", {}, in_launch=True),
    Field("episodes", 1, int, 1, 10_000_000, in_launch=True),
    Field("workers", 1, int, 1, MOST_WORKERS, in_launch=True),
    Field("gpus", None, int, 0, 64, in_spec=False),
    Field("device"),
    Field("device_model"),
    Field("parameters", {}, in_launch=True),
    Field("memory_irrelevant", []),
    Field("hints", {}),
    Field("chosen", {}),
    Field("inputs", {}, in_spec=False, in_launch=True),
    Field("outputs", [], in_launch=True),
    Field("class", "normal", str, choices=("urgent", "high", "normal", "batch")),
    Field("evictable", default=False, kind=bool),
    Field("exclusive", default=False, kind=bool),
    Field("service", default=False, kind=bool, in_launch=True),
    Field("ready_url", None, in_launch=True),
    Field("max_wait_s", None, float, 0, LONGEST_TIME_S),
    Field("time_limit_s", None, float, 0, LONGEST_TIME_S, in_launch=True),
    Field("detach", default=False, kind=bool),
    Field("group"),
    Field("group_size", None, int, 1, MOST_IN_GROUP),
    Field("at_most", None, int, 1, MOST_IN_GROUP),
    Field("after", []),
    Field("idempotency_key", ""),
    Field("kernel"),
)
FIELD: Final = {field.name: field for field in FIELDS}
