"""The fields of a run: their options, the manual, and the body, spec and launch record."""

from __future__ import annotations

import re
from argparse import SUPPRESS
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpugate.client.options import CELL_OPTIONS, PROGRAM_OPTIONS, RUN_OPTIONS, Option
from jupyter_gpugate.core.requests import Enforcement, Grant
from jupyter_gpugate.core.run_spec import FIELDS, MOST_WORKERS
from jupyter_gpugate.runs.record import Record
from jupyter_gpugate.runs.requests import spec_of
from jupyter_gpugate.runs.starting import launch_of
from jupyter_gpugate.server.http.run_body import RunBody

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "using.md"
#: A body of which every field has a value other than its default.
BODY: dict[str, Any] = {
    "name": "eval",
    "source": "pass",
    "argv": None,  # there is a source
    "interpreter": "/usr/bin/python3",
    "flags": ["-O"],
    "cwd": "/",
    "path": [],
    "environment": {"A": "b"},
    "umask": 0,
    "limits": {"NOFILE": [1, 2]},
    "episodes": 3,
    "workers": MOST_WORKERS,
    "gpus": 0,
    "device": "0,1",
    "device_model": "A100",
    "parameters": {"batch": "8"},
    "memory_irrelevant": ["batch"],
    "hints": {"vram_bytes": 1, "ram_bytes": 2},
    "chosen": {"vram_bytes": 1 << 30, "ram_bytes": 1 << 20},
    "inputs": {"names": ["x"], "staged": "/staged"},
    "outputs": ["y"],
    "class": "batch",
    "evictable": True,
    "exclusive": True,
    "service": True,
    "ready_url": "http://127.0.0.1:8000/health",
    "max_wait_s": 1.5,
    "time_limit_s": 2.5,
    "detach": True,
    "group": "g20260914-101502-kqzfa",
    "group_size": 2,
    "at_most": 1,
    "after": ["20260914-101502-kqzfa"],
    "idempotency_key": "key",
    "kernel": {"pid": 1, "start_ticks": 2, "boot_id": "boot", "notebook": ""},
}


def manual() -> dict[str, str]:
    """Return the rows of the manual's table of options, by option."""
    table = MANUAL.read_text(encoding="utf-8").partition("| option | meaning | default |")[2]
    rows = [row.split(" | ") for row in table.partition("\n\n")[0].splitlines()[2:]]
    return {flag: " | ".join(row) for row in rows for flag in re.findall(r"--[a-z-]+", row[0])}


def default_in_words(option: Option) -> str:
    """Return what the manual says of an option's default."""
    if option.settings.get("action") == "store_true":
        return "off"
    return str(option.settings.get("default") or "(none|never|1 if .*)")


def test_the_manual_lists_the_options_with_their_defaults() -> None:
    """Its table has the options of a cell that help offers, no others, and their defaults."""
    rows = manual()
    offered = [o for o in (*CELL_OPTIONS, *RUN_OPTIONS) if o.settings["help"] != SUPPRESS]
    assert set(rows) == {option.flag for option in offered}
    for option in offered:
        assert re.search(rf"\| {default_in_words(option)} \|$", rows[option.flag]), option.flag
    assert f"{MOST_WORKERS} at most" in rows["--workers"]


def test_the_manual_names_the_options_that_a_command_has_not() -> None:
    """A command has the options of a cell except those named, and one more."""
    text = " ".join(MANUAL.read_text(encoding="utf-8").split())
    flags = [f"`{option.flag}`" for option in CELL_OPTIONS]
    assert f"above except {', '.join(flags[:-1])} and {flags[-1]}" in text
    assert all(f"`{option.flag} " in text for option in PROGRAM_OPTIONS)


def test_the_body_has_the_fields_of_the_table() -> None:
    """A body is validated field by field, in the order of the table."""
    assert list(RunBody.model_fields) == [field.name for field in FIELDS]
    assert RunBody.model_validate(BODY).model_dump(by_alias=True) == BODY


@pytest.mark.parametrize("field", [f for f in FIELDS if f.in_spec], ids=lambda f: f.name)
def test_a_spec_contains_what_was_submitted(field: Any) -> None:
    """A field of the spec has the value of the body."""
    spec, _ = spec_of("run", BODY, Path("/"), "digest")
    assert spec[field.name] == BODY[field.name]


@pytest.mark.parametrize("field", [f for f in FIELDS if f.in_launch], ids=lambda f: f.name)
def test_a_launch_record_contains_what_the_spec_does(field: Any) -> None:
    """A field of the launch record has the value of the spec, even one that is empty or 0."""
    spec, _ = spec_of("run", BODY, Path("/"), "digest")
    record = cast(
        "Record", SimpleNamespace(run_id="run", path=Path("/none"), spec=spec, summary={})
    )
    grant = Grant("run", 1, 1, (), {}, {}, {}, Enforcement.NONE)
    assert launch_of(record, grant, ["/socket"], 10.0, "programs")[field.name] == spec[field.name]
