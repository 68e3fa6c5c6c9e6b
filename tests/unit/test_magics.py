"""What `%%gated_eval` submits, from a real shell to a gate that a test plays."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_gpugate.places import SOCKET_VARIABLE
from jupyter_gpugate.programs.worker.values import load_input
from tests.kit.gate_stand_in import GateStandIn, gate_at
from tests.kit.notebook_shell import DONE, Notebook


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStandIn]:
    """Serve a gate that this notebook finds, and that completes every run at once."""
    path = tmp_path / "own" / "gpugate.sock"
    monkeypatch.setenv(SOCKET_VARIABLE, str(path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    with gate_at(path) as gate:
        gate.on_submit = lambda _body: DONE
        yield gate


@pytest.fixture
def notebook(gate: GateStandIn, capsys: pytest.CaptureFixture[str]) -> Iterator[Notebook]:
    """Open a notebook of a front end with a person before it."""
    assert gate.asked == []
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.kernel = SimpleNamespace()
    shell.get_parent = lambda: {"content": {"allow_stdin": True}}
    shell.run_line_magic("load_ext", "jupyter_gpugate")
    yield Notebook(shell, capsys)
    shell.run_line_magic("unload_ext", "jupyter_gpugate")
    InteractiveShell.clear_instance()


# -- what is submitted ------------------------------------------------------------------------


def test_the_options_become_the_body(notebook: Notebook, gate: GateStandIn) -> None:
    """Every option of the line reaches the gate in bytes, seconds and names."""
    result = notebook.run(
        "%%gated_eval resnet-val --episodes 100 --workers 2 --gpus 1 --hint-vram 2GB "
        "--hint-ram 4GB --set batch=64 --set-free seed=7 --output result --class batch "
        "--evictable --exclusive --max-wait 30m --time-limit 4h --detach\nresult = 1"
    )
    assert result.success
    body = gate.bodies("/runs")[0]
    expected = {
        "name": "resnet-val",
        "episodes": 100,
        "workers": 2,
        "gpus": 1,
        "hints": {"vram_bytes": 2 << 30, "ram_bytes": 4 << 30},
        "parameters": {"batch": "64", "seed": "7"},
        "memory_irrelevant": ["seed"],
        "outputs": ["result"],
        "class": "batch",
        "evictable": True,
        "exclusive": True,
        "max_wait_s": 1800.0,
        "time_limit_s": 14400.0,
        "detach": True,
    }
    assert {name: body[name] for name in expected} == expected


def test_quotes_mean_what_they_mean_in_a_terminal(notebook: Notebook, gate: GateStandIn) -> None:
    """A value with a space reaches the run without its quotes, as from the command line."""
    notebook.run("%%gated_eval said --set 'prompt=be brief' --set title=\"a b\"\n1")
    assert gate.bodies("/runs")[0]["parameters"] == {"prompt": "be brief", "title": "a b"}


def test_what_was_not_said_is_left_to_the_gate(notebook: Notebook, gate: GateStandIn) -> None:
    """Without options the body leaves devices, class, waits and hints to the gate's defaults."""
    notebook.run("%%gated_eval plain\n1")
    body = gate.bodies("/runs")[0]
    assert not {"gpus", "class", "max_wait_s", "time_limit_s", "inputs", "argv"} & set(body)
    assert (body["hints"], body["episodes"], body["workers"]) == ({}, 1, 1)


def test_the_body_describes_this_very_process(
    notebook: Notebook, gate: GateStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interpreter, path, folder, mask and environment are the kernel's at this moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/a/b.ipynb")
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "t")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "t")
    monkeypatch.setenv("JUPYTER_TOKEN", "t")
    monkeypatch.setenv("WANDB_API_KEY", "mine")
    monkeypatch.setenv("NOISE", "x")
    mask = os.umask(0o027)
    try:
        notebook.run(
            "import os, sys\nos.environ['SET_HERE'] = 'yes'\nsys.path.append('/added/here')"
        )
        notebook.run("%%gated_eval here --drop-env NOISE\n1")
    finally:
        os.umask(mask)
        del os.environ["SET_HERE"]
    body = gate.bodies("/runs")[0]
    environment = body["environment"]
    assert (environment["SET_HERE"], environment["WANDB_API_KEY"]) == ("yes", "mine")
    assert environment["JPY_SESSION_NAME"] == "/home/a/b.ipynb"
    dropped = {"CONFIGPROXY_AUTH_TOKEN", "JUPYTERHUB_API_TOKEN", "NOISE"}
    assert not ({"JUPYTER_TOKEN"} | dropped) & set(environment)
    assert body["interpreter"] == sys.executable
    assert body["cwd"] == str(tmp_path)
    assert (body["path"][0], body["path"][-1]) == (str(tmp_path), "/added/here")
    assert body["umask"] == 0o027
    kernel = body["kernel"]
    assert (kernel["pid"], kernel["notebook"]) == (os.getpid(), "/home/a/b.ipynb")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    assert (kernel["boot_id"], kernel["start_ticks"]) == (boot_id, int(ticks))


def test_the_lines_of_the_source_are_the_lines_of_the_cell(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """The magic's line is a comment in the run's file, so that a traceback points at the cell."""
    notebook.run("%%gated_eval lines --episodes 3\n\nx = 1\nx\n")
    first, *rest = gate.bodies("/runs")[0]["source"].splitlines()
    assert first.startswith("#")
    assert rest == ["", "x = 1", "x"]


def test_each_execution_of_a_cell_is_a_run_of_its_own(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """Two executions of one cell have two keys."""
    for _ in range(2):
        notebook.run("%%gated_eval twice\n1")
    assert len({body["idempotency_key"] for body in gate.bodies("/runs")}) == 2


def test_inputs_are_staged_as_files_and_only_named_in_the_request(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """The run side finds the values where the request says, under the names of the notebook."""
    notebook.run("x, y = [1, 2], {'k': 3}")
    notebook.run("%%gated_eval given --input x,y --detach\nprint(x, y)")
    inputs = gate.bodies("/runs")[0]["inputs"]
    staged = Path(inputs["staged"])
    assert inputs["names"] == ["x", "y"]
    assert [load_input(staged, name) for name in "xy"] == [[1, 2], {"k": 3}]


def test_inputs_of_a_refused_run_are_removed(
    notebook: Notebook, gate: GateStandIn, tmp_path: Path
) -> None:
    """What no run took over does not fill the user's disk."""
    gate.refusals[("POST", "/runs")] = (429, {"error": "full", "message": "200 runs wait"})
    notebook.run("x = 1")
    result = notebook.run("%%gated_eval refused --input x\nx")
    assert "200 runs wait" in str(result.error_in_exec)
    assert list((tmp_path / "data" / "gpugate" / "staging").iterdir()) == []


# -- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%%gated_eval\n1", "%%gated_eval NAME --episodes N"),
        ("%%gated_eval a/b\n1", "argument name: `a/b` is not a valid name"),
        ("%%gated_eval n --hint-vram 2\n1", "argument --hint-vram: `2` is not a size: write 2GB"),
        ("%%gated_eval n --episodes 0\n1", "argument --episodes: `0` must be a whole number"),
        ("%%gated_eval n --max-wait 5\n1", "argument --max-wait: `5` is not a time"),
        ("%%gated_eval n --set batch\n1", "argument --set: `batch` must be NAME=VALUE"),
        ("%%gated_eval n --class soon\n1", "argument --class: invalid choice"),
        ("%%gated_eval n --nonsense\n1", "unrecognized arguments: --nonsense"),
        ("%%gated_eval n --gpuss 1\n1", "unrecognized arguments: --gpuss 1; did you mean --gpus?"),
        ("%%gated_eval n --set 'a=1\n1", "no closing quotation in `n --set 'a=1`"),
        ("%%gated_eval n --input nope\n1", "--input nope: `nope` is not defined in this notebook"),
        ("%%gated_eval n --output gone\n1", "--output gone: the cell never assigns `gone`"),
        (
            "%%gated_eval n\nprint(value)",
            "`value` is defined in this notebook but not given to the",
        ),
        ("%%gated_eval n\nprint(value)", "add --input value"),
        ("%%gated_eval n\nmath.pi", "add `import math` to it"),
        ("%%gated_eval n\nx = 1\n!ls", "line 3 `!ls`"),
        ("%%gated_eval n\nx = 5 5", "line 2 `x = 5 5`"),
        ("%%gated_eval n --input gen\ngen", "--input gen: `gen` cannot be given to a run"),
        ("# first\n%%gated_eval n --gpus 0\n1", "`%%gated_eval n --gpus 0` must be the first line"),
        ("1\n\n%%gated_eval n\n1", "move the lines above it further down"),
        ("%gated_eval n --gpus 0", "use `%%gated_eval n --gpus 0`, with two %, on the first line"),
        (
            "%%gated_eval n --set lr=0.1\nlr",
            '`lr` is a parameter of the run: write `params["lr"]` in',
        ),
        ("%%gated_eval n --set-free value=1\nvalue", 'write `params["value"]` in the cell, or add'),
        ("%gpu_cancel", "required: RUN"),
        ("%gpu_cancel 20261129-000000-nobod", "there is no run 20261129-000000-nobod"),
        ("%gpu_estimate", "required: name"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    notebook: Notebook, gate: GateStandIn, cell: str, told: str
) -> None:
    """What a user got wrong is named with its remedy before anything is queued."""
    notebook.run("import math\nvalue = 1\ngen = (n for n in [1])")
    assert told in notebook.usage_error(cell)
    assert gate.bodies("/runs") == []


def test_what_the_gate_finds_wrong_is_one_line_too(notebook: Notebook, gate: GateStandIn) -> None:
    """A refusal is shown as it is, without the name of a field of the HTTP interface."""
    sentence, field = "needs 4,096 MB of RAM, this machine has 2,048 MB", "hints.ram_bytes"
    error = {"error": "bad_request", "message": f"{field}: {sentence}", "detail": {"field": field}}
    gate.refusals[("POST", "/runs")] = (400, error)
    assert notebook.usage_error("%%gated_eval big --hint-ram 4GB\n1") == f"UsageError: {sentence}"


def test_the_names_of_the_shell_itself_are_not_the_notebooks(
    notebook: Notebook, gate: GateStandIn
) -> None:
    """`get_ipython`, `open` and what the run provides are not asked for as inputs."""
    notebook.run("params = 1")
    result = notebook.run("%%gated_eval own\nget_ipython, open, params, worker, episodes")
    assert result.success
    assert len(gate.bodies("/runs")) == 1
