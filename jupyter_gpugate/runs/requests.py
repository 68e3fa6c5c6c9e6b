"""From a submitted body to a run's spec, and from a spec to the request that the gate sees."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.admission.masks import mask_of
from jupyter_gpugate.core.parameters import shown
from jupyter_gpugate.core.requests import (
    Chosen,
    Family,
    Hints,
    KernelRef,
    Request,
    Setting,
)
from jupyter_gpugate.core.run_spec import FIELDS
from jupyter_gpugate.proc import is_token
from jupyter_gpugate.runs.arguments import merged, parameters_of
from jupyter_gpugate.runs.placeholders import is_placeholder, refuse_wrong_placeholders
from jupyter_gpugate.runs.record import Refused

#: The most characters of a refused value that a message repeats.
SHOWN_CHARS = 200


def spec_of(
    run_id: str, body: Mapping[str, Any], root: Path, digest: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec of a run, less what its source says, and its environment without tokens."""
    cwd = body.get("cwd") or str(root)
    if not _is_folder(cwd):
        shown = cwd[:SHOWN_CHARS]
        problem = f"cwd: {shown} is not a directory"
        raise Refused(400, "bad_request", problem, field="cwd", value=shown)
    refuse_wrong_placeholders(body)
    environ = environment_of(body)
    mask = mask_of(environ)
    inputs = body.get("inputs") or {}
    kind = "program" if body.get("argv") else "cell"
    question = {"kind": kind, "cwd": cwd, "path": body.get("path")}
    question["argv" if kind == "program" else "source"] = body[
        "argv" if kind == "program" else "source"
    ]
    spec = {
        **{field.name: body.get(field.name) for field in FIELDS if field.in_spec},
        "run_id": run_id,
        "kind": kind,
        "interpreter": body.get("interpreter") or sys.executable,
        "cwd": cwd,
        "gpus": body["gpus"],
        "visible": None if mask is None else list(mask),
        # If the gate manages no device, the mask need not be replaced.
        "keeps_mask": body.get("managed") is False,
        "inputs": list(inputs.get("names") or ()),
        "staged": inputs.get("staged") or "",
        "question": question,
        "digest": digest,
        "repeats": body.get("repeats") or "",
        "submitted": time.time(),
    }
    return spec, environ


def refuse_half_a_service(body: Mapping[str, Any]) -> None:
    """Refuse options that contradict whether the run is a service."""
    wrong = ""
    if not body.get("service"):
        field, wrong = "ready_url", "only a service becomes ready: add service (--service)"
        wrong = wrong if body.get("ready_url") else ""
    elif body.get("outputs"):
        field, wrong = "outputs", "a service ends by being stopped and hands nothing back"
    elif (body.get("episodes") or 1) != 1:
        field, wrong = "episodes", "a service has no episodes: leave them out"
    if wrong:
        raise Refused(400, "bad_request", f"{field}: {wrong}", field=field)


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # longer than any name may be, or none
        return False


def request_of(spec: Mapping[str, Any], owner: str) -> Request:
    """Return a run's request to the gate: names, hashes and numbers."""
    hints, chosen = spec.get("hints") or {}, spec.get("chosen") or {}
    kernel = spec.get("kernel")
    return Request(
        run_id=spec["run_id"],
        family=Family(owner, spec["name"], spec["source_hash"], spec["gpus"]),
        setting=Setting(
            workers=spec["workers"],
            parameters=tuple(
                (n, shown(n, v)) for n, v in sorted(relevant_parameters(spec).items())
            ),
            episodes=spec["episodes"],
            runtime=spec.get("runtime") or "",
        ),
        idempotency_key=spec.get("idempotency_key") or "",
        hints=Hints(hints.get("vram_bytes"), hints.get("ram_bytes")),
        kind=spec["kind"],
        exclusive=bool(spec.get("exclusive")),
        job_class=spec.get("class") or "normal",
        evictable=bool(spec.get("evictable")),
        max_wait_s=spec.get("max_wait_s"),
        time_limit_s=spec.get("time_limit_s"),
        cgroup=spec.get("cgroup") or "",
        kernel=KernelRef(**kernel) if kernel else None,
        detached=bool(spec.get("detach")),
        submitted_wall=spec["submitted"],
        visible=tuple(spec["visible"]) if spec["gpus"] and _is_masked(spec) else None,
        chosen=Chosen(chosen.get("vram_bytes"), chosen.get("ram_bytes")),
        device=device_names(spec.get("device") or ""),
        model=(spec.get("device_model") or "").strip(),
        service=bool(spec.get("service")),
        by_url=bool(spec.get("ready_url")),
        group=spec.get("group") or "",
        at_most=spec.get("at_most"),
        after=tuple(spec.get("after_runs") or ()),
    )


def relevant_parameters(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a spec or a body that count for its memory, with their values."""
    irrelevant, parameters = set(spec.get("memory_irrelevant") or ()), spec.get("parameters") or {}
    given = {k: v for k, v in parameters.items() if k not in irrelevant}
    if not spec.get("argv"):
        return given
    arguments = parameters_of(spec["argv"], irrelevant).items()
    return merged(given, {k: v for k, v in arguments if not is_placeholder(v, parameters)})


def environment_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a run: the one that was sent, else this process's, without tokens."""
    given = body.get("environment")
    return {k: v for k, v in (os.environ if given is None else given).items() if not is_token(k)}


def device_names(text: str) -> tuple[str, ...]:
    """Return the names of devices in a list with commas, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def _is_masked(spec: Mapping[str, Any]) -> bool:
    return spec.get("visible") is not None
