"""The description of the API, and the API of a real server measured by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from jupyter_gpugate.server.http import handlers, shapes
from jupyter_gpugate.server.http import shapes as run_shapes
from jupyter_gpugate.server.http.contract import calls_of
from tests.fake_nvml import StandIn
from tests.kit.real_server import Answer, Served

DOCS = Path(__file__).parents[2] / "docs" / "http-api.md"
#: Calls whose input names things that have to exist: a program, a device, Python that compiles.
NAMES_THINGS = {
    "POST /runs",
    "POST /estimate",
    "GET /estimate",
    "DELETE /machine",
    "POST /lock",
    "DELETE /lock",
}
EXAMPLES = 10


def calls() -> Iterator[tuple[str, str]]:
    """Every call that the handlers of the gate have, as (method, path)."""
    for handler in handlers.HANDLERS:
        yield from ((method.upper(), handler.path) for method in calls_of(handler))


def in_path(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters of a described call that stand in its path."""
    return [one for one in operation.get("parameters", ()) if one["in"] == "path"]


def test_the_description_names_every_route(shared_server: Served) -> None:
    """The served document has each method of each route with what its path needs, and no other."""
    document = shared_server.ask("GET", "/openapi.json").json
    told = {(m.upper(), path) for path, item in document["paths"].items() for m in item}
    assert told == set(calls())
    assert document["openapi"] == "3.1.0"
    for method, path in told:
        operation = document["paths"][path][method.lower()]
        assert operation["summary"], (method, path)
        assert {"400", "401", "403", "503"} <= set(operation["responses"])
        places = [(one["name"], one["required"]) for one in in_path(operation)]
        named = [name for name in ("run_id", "group_id") if f"{{{name}}}" in path]
        assert places == [(name, True) for name in named]


def test_the_page_names_exactly_the_routes_that_exist() -> None:
    """docs/http-api.md has each call, and none that is not there."""
    text = DOCS.read_text(encoding="utf-8").partition("## For run sides")[0]
    named = re.findall(r"`(GET|POST|DELETE) (/[a-z./{}_]*)(?:\{?\?[^`]*)?`", text)
    told = {(method, path.replace("{id}", "{run_id}")) for method, path in named}
    assert told == set(calls())


def are_answered_as_described(
    served: Served, operation: Any, mode: GenerationMode, known: str
) -> None:
    """Whatever is sent to an operation, the answer is one that the description promises."""
    excluded = [positive_data_acceptance] if operation.label in NAMES_THINGS else []

    def check(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and len(case.path_parameters.get("run_id", "")) % 2:
            case.path_parameters["run_id"] = known
        answer = case.call(headers={"Authorization": f"token {served.token}"})
        case.validate_response(answer, excluded_checks=excluded)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error", "message", "detail"}

    given: Any = hypothesis.given
    asked = given(operation.as_strategy(generation_mode=mode))(check)
    bounded: Any = hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )(asked)
    bounded()


def can_be_wrong(operation: Any) -> bool:
    """Whether an operation takes any input."""
    return bool(operation.body) or bool(list(operation.iter_parameters()))


def test_no_input_breaks_the_api(shared_server: Served) -> None:
    """Good and bad input of every shape: never a 5xx, answers as described, bad input a 4xx."""
    known = shared_server.completed("known", "print(1)")["run_id"]
    shared_server.ask("POST", "/drain", {})  # what happens to be a good submit is not to run
    document = shared_server.ask("GET", "/openapi.json").json
    del document["security"]  # a token is sent with everything; who has none is walked elsewhere
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=f"{shared_server.url}/gpugate/api/v1")
    results: list[Any] = list(schema.get_all_operations())
    found = [result.ok() for result in results]
    # Whatever ends a drain, a lock or the run itself comes last.
    for operation in sorted(found, key=lambda one: one.label.startswith("DELETE")):
        are_answered_as_described(shared_server, operation, GenerationMode.POSITIVE, known)
        if can_be_wrong(operation):
            are_answered_as_described(shared_server, operation, GenerationMode.NEGATIVE, known)
    for row in shared_server.ask("GET", "/runs?limit=1000").json["runs"]:
        shared_server.ask("POST", f"/runs/{row['run_id']}/cancel")
        shared_server.ask("DELETE", f"/runs/{row['run_id']}")
    shared_server.ask("DELETE", "/lock")
    shared_server.ask("DELETE", "/drain")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"environment": {"A=B": "x"}}, "environment"),
        ({"environment": {"": "x"}}, "environment"),
        ({"environment": {"A": "half a \ud800 character"}}, "environment.A"),
        ({"environment": {"A": "\0"}}, "environment.A"),
        ({"cwd": 7}, "cwd"),
        ({"argv": ["tr\ud800ue"], "source": None}, "argv"),
        ({"kernel": {"pid": 1 << 40, "start_ticks": 1, "boot_id": ""}}, "kernel.pid"),
        ({"episodes": "5"}, "episodes"),
        ({"job_class": "normal"}, "job_class"),
    ],
)
def test_what_no_process_can_have_is_refused(
    shared_server: Served, body: dict[str, Any], field: str
) -> None:
    """Variables, arguments and numbers that the system could not take are a 400, never a 500."""
    answer = shared_server.ask("POST", "/runs", {"name": "odd", "source": "pass", **body})
    assert answer.status == 400, answer.body
    assert answer.json["detail"]["field"].startswith(field)


def is_exactly(answer: Answer, shape: type[Any]) -> Any:
    """Check an answer against its shape: no field too few, none too many, none of another type."""
    assert answer.status < 300, answer.body
    shape.model_validate(answer.json)
    fields = {f.alias or n: f.is_required() for n, f in shape.model_fields.items()}
    needed = {name for name, required in fields.items() if required}
    assert needed <= set(answer.json) <= set(fields), set(answer.json) ^ set(fields)
    return answer.json


PARTS_OF_A_RUN = {
    "attempts": run_shapes.AttemptsAnswer,
    "output": run_shapes.OutputAnswer,
    "episodes": run_shapes.EpisodesAnswer,
    "story": run_shapes.StoryAnswer,
    "export": run_shapes.ExportAnswer,
}


def test_answers_have_exactly_the_fields_that_are_described(
    start: Callable[..., Served], stand_in: StandIn, tmp_path: Path
) -> None:
    """Of live, queued and ended runs, a device, a lock: each answer has the shape it promises, and
    a card has the orders that it takes in place of commands.
    """
    stand_in.hold(1, 0, 1 << 30)
    server = start()
    release = tmp_path / "release"
    source = f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.1)"
    live = server.submit("live", source, hints={"vram_bytes": 4 << 30})
    server.active(live)
    queued = server.submit("waits", "pass", hints={"vram_bytes": 20 << 30})
    server.waiting(queued, "fit")
    for run_id in (live, queued):
        is_exactly(server.ask("GET", f"/runs/{run_id}"), run_shapes.RunAnswer)
        card = is_exactly(server.ask("GET", f"/runs/{run_id}/card"), shapes.CardAnswer)
        assert (card["orders"], "gpu_cancel" in card["html"]) == (["cancel"], False)
    snapshot = is_exactly(server.ask("GET", "/queue?inputs=1"), shapes.QueueAnswer)
    assert snapshot["running"]
    assert snapshot["queued"]
    is_exactly(server.ask("GET", "/estimate?name=live"), shapes.EstimateAnswer)
    body = {"name": "live", "source": "pass", "hints": {"vram_bytes": 23 << 30}}
    is_exactly(server.ask("POST", "/estimate", body), shapes.EstimateAnswer)
    is_exactly(server.ask("GET", "/machine"), shapes.MachineAnswer)
    is_exactly(server.ask("GET", "/panel"), shapes.PanelAnswer)
    is_exactly(server.ask("GET", "/samples"), shapes.SamplesAnswer)
    is_exactly(server.ask("GET", "/transitions"), shapes.TransitionsAnswer)
    is_exactly(server.ask("POST", f"/runs/{queued}/detach"), run_shapes.DetachAnswer)
    is_exactly(server.ask("POST", "/lock", {}), shapes.LockAnswer)
    is_exactly(server.ask("DELETE", "/lock"), shapes.UnlockAnswer)
    is_exactly(server.ask("POST", "/drain", {}), shapes.DrainAnswer)
    is_exactly(server.ask("POST", f"/runs/{queued}/cancel"), run_shapes.CancelAnswer)
    release.touch()
    server.ended(live)
    is_exactly(server.ask("GET", f"/runs/{live}"), run_shapes.RunAnswer)
    is_exactly(server.ask("GET", "/runs"), run_shapes.RunsAnswer)
    for path, shape in PARTS_OF_A_RUN.items():
        is_exactly(server.ask("GET", f"/runs/{live}/{path}"), shape)
    is_exactly(server.ask("GET", "/calibrations"), shapes.CalibrationsAnswer)
    is_exactly(server.ask("DELETE", "/calibrations?name=live"), shapes.ForgottenAnswer)
    is_exactly(server.ask("DELETE", f"/runs/{live}"), run_shapes.DeleteAnswer)
