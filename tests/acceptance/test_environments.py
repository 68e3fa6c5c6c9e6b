"""The run's Python and its surroundings are the kernel's, as they are at the submit."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.real_server import Places, Served, end_everything_of
from tests.kit.user_notebook import UserNotebook

ROOT = Path(__file__).resolve().parents[2]
MINORS = range(9, 15)
#: What a cell tells of its process.
FACTS = """
import os, resource, sys
facts = {
    "python": [sys.version, sys.executable, sys.prefix, str(sys.flags), repr(sys.warnoptions)],
    "path": [os.path.abspath(entry) for entry in sys.path],
    "folder": os.getcwd(),
    "limits": [resource.getrlimit(getattr(resource, name))
               for name in sorted(dir(resource)) if name.startswith("RLIMIT_")],
    "umask": os.umask(0o077),
    "environ": dict(os.environ),
}
"""
#: What the gate says to a run by its environment.
OF_THE_RUN = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"}


@pytest.fixture
def notebook(server: Served) -> Iterator[UserNotebook]:
    """A notebook in the server's own environment."""
    opened = UserNotebook(server)
    yield opened
    opened.close()


def other_pythons() -> Iterator[Path]:
    """Interpreters of this machine that are of another minor version and work, the newest first."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for minor in sorted(set(MINORS) - {sys.version_info.minor}, reverse=True):
        found = [shutil.which(f"python3.{minor}"), *versions.glob(f"3.{minor}.*/bin/python3")]
        for path in map(str, filter(None, found)):
            question = f"import ensurepip, sys, venv; assert sys.version_info[1] == {minor}"
            if subprocess.run([path, "-c", question], capture_output=True, check=False).returncode:
                continue
            yield Path(path)


@pytest.fixture(scope="module")
def other_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment of another minor version that has a kernel and this package.

    As conda's may be, it is reached by a link, and its path has blanks and no ASCII.
    """
    python = next(other_pythons(), None)
    if python is None:
        pytest.skip("there is no Python of another minor version, on PATH or of pyenv")
    root = tmp_path_factory.mktemp("umgebungen")
    place, link = root / "größere Umgebung", root / "env ü"
    subprocess.run([python, "-m", "venv", place], check=True)
    link.symlink_to(place)
    inside = link / "bin" / "python"
    install: list[str | Path] = [inside, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "ipykernel"], check=True)
    subprocess.run([*install, "--no-deps", ROOT], check=True)
    return inside


@pytest.fixture(scope="module")
def other_notebook(
    tmp_path_factory: pytest.TempPathFactory, other_environment: Path
) -> Iterator[UserNotebook]:
    """A notebook whose kernel is in the other environment; the server is in ours."""
    places = Places(tmp_path_factory.mktemp("other"))
    add_kernel(places, "other", str(other_environment))
    server = Served(places)
    opened = UserNotebook(server, "other")
    yield opened
    opened.close()
    server.stop()
    end_everything_of(places)
    shutil.rmtree(places.runtime, ignore_errors=True)


def add_kernel(places: Places, name: str, python: str, *flags: str) -> None:
    """Tell the server of a kernel, as `ipykernel install` does."""
    folder = places.root / "data" / "kernels" / name
    folder.mkdir(parents=True)
    argv = [python, *flags, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": name, "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))


def test_the_runs_python_is_the_kernels(other_notebook: UserNotebook) -> None:
    """A kernel of another minor version, in an environment of its own, runs its cells there."""
    other_notebook.run(FACTS)
    here = other_notebook.value("facts")
    other_notebook.run("%%gated_eval facts --output facts\n" + FACTS)
    run = other_notebook.value("facts")
    assert run["python"] == here["python"]
    assert run["path"] == here["path"]
    assert not run["python"][0].startswith(f"3.{sys.version_info.minor}.")
    assert "env ü" in run["python"][1]


def test_the_kernels_environment_needs_no_server(other_notebook: UserNotebook) -> None:
    """What only a gate or a server needs is not installed there, and nothing misses it."""
    for name in ("jupyter_server", "pydantic", "sqlalchemy"):
        assert "ModuleNotFoundError" in other_notebook.fails(f"import {name}").traceback


@pytest.mark.behaviour(59)
def test_a_card_in_another_environment_says_where_its_numbers_come_from(
    other_notebook: UserNotebook,
) -> None:
    """Each number of the estimate carries its origin inline, also in the other environment."""
    body = "%%gated_eval origin\nx = bytearray(50_000_000)"
    assert "first run of this code" in other_notebook.run(body).text
    assert " MB measured, from 1 run, plus " in other_notebook.run(body).text


def test_without_cloudpickle_what_the_notebook_defines_is_refused_with_the_remedy(
    other_notebook: UserNotebook,
) -> None:
    """An instance of the notebook's class is refused before anything is queued, not in the run."""
    assert "ModuleNotFoundError" in other_notebook.fails("import cloudpickle").traceback
    other_notebook.run("class Point: pass\npoint, double = Point(), lambda n: 2 * n")
    for name, what in (("point", "Point"), ("double", "<lambda>")):
        told = other_notebook.refused(f"%%gated_eval values --input {name}\n{name}")
        assert told.startswith(f"--input {name}: `{name}` cannot be given to a run")
        assert f"`{what}` is defined in this notebook" in told
        assert "install cloudpickle in this environment" in told


def test_without_cloudpickle_a_value_of_the_cells_class_is_found_once_the_notebook_has_it(
    other_notebook: UserNotebook,
) -> None:
    """What a run has computed is not lost for want of cloudpickle: one line says how to get it."""
    made = "class Score:\n    def __init__(self): self.x = 7\n"
    told = other_notebook.refused(f"%%gated_eval score --output best\n{made}best = Score()")
    assert "define it in this notebook too" in told
    run_id = Path(told.split(" cannot be loaded")[0]).parts[-4]
    other_notebook.run(made)
    other_notebook.run(f"import jupyter_gpugate\nbest = jupyter_gpugate.get('{run_id}').result()")
    assert other_notebook.value("best.x") == 7


def test_a_kernels_flags_are_the_runs(places: Places, start: Callable[..., Served]) -> None:
    """A kernel that was started with options of Python runs its cells with the same ones."""
    add_kernel(places, "strict", sys.executable, "-W", "error::FutureWarning", "-bb", "-O")
    opened = UserNotebook(start(), "strict")
    opened.run(FACTS)
    opened.run("before = facts\n")
    opened.run("%%gated_eval flags --output facts\n" + FACTS)
    assert opened.value("facts['python'] == before['python']")
    assert "optimize=1" in opened.value("facts['python'][3]")
    opened.close()


def test_a_run_sees_what_the_kernel_sees_at_that_moment(
    notebook: UserNotebook, tmp_path: Path
) -> None:
    """Variables, folder, module path, file mask and limits set in the notebook count in the run."""
    folder = tmp_path / "ein Ordner"
    folder.mkdir()
    notebook.run("%env FIRST=1")
    notebook.run(f"""
import os, resource, sys
os.environ["SECOND"] = "zwei = 2"
os.environb[b"ODD"] = b"\\xff"
os.chdir({str(folder)!r})
sys.path.insert(0, "modules")
os.umask(0o027)
resource.setrlimit(resource.RLIMIT_NOFILE, (321, 432))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
""")
    notebook.run(FACTS + "before = facts\nos.umask(0o027)")
    notebook.run("%%gated_eval facts --output facts\n" + FACTS)
    for fact in ("path", "folder", "limits", "umask"):
        assert notebook.value(f"facts[{fact!r}] == before[{fact!r}]"), fact
    assert notebook.value("facts['umask']") == 0o027
    assert [321, 432] in notebook.value("facts['limits']")
    changed = notebook.value("""[k for k, v in facts["environ"].items()
        if before["environ"].get(k) != v]""")
    assert {name for name in changed if not name.startswith("GPUGATE_")} <= OF_THE_RUN
    assert notebook.value("facts['environ']['FIRST'], facts['environ']['SECOND']") == [
        "1",
        "zwei = 2",
    ]
    assert notebook.value("facts['environ']['ODD'].encode(errors='surrogateescape').hex()") == "ff"


def test_limits_hold_for_programs_and_are_never_above_the_servers(server: Served) -> None:
    """A program has the limits that it was given, as far as the server itself may have them."""
    argv = ["bash", "-c", "echo $(ulimit -Sn) $(ulimit -Hn)"]
    asked = {"name": "limits", "argv": argv}
    for limits, told in (([64, 128], "64 128"), ([64, -1], f"64 {most_files(server)}")):
        answer = server.ask("POST", "/runs", {**asked, "limits": {"NOFILE": limits}})
        assert answer.status == 202, answer.body
        run_id = answer.json["run_id"]
        assert server.ended(run_id)["end"] == "completed"
        assert server.output(run_id).strip() == told
    answer = server.ask("POST", "/runs", {**asked, "limits": {"NOFLIE": [64, 64]}})
    assert (answer.status, answer.json["detail"]["field"]) == (400, "limits.NOFLIE")
    assert "must be the name of a limit" in answer.json["message"]


def most_files(server: Served) -> int:
    """The server's own hard limit of open files."""
    return resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[1]


def test_what_the_notebook_does_after_the_submit_is_not_seen(
    server: Served, notebook: UserNotebook, tmp_path: Path
) -> None:
    """A queued run keeps the surroundings and the inputs that it was submitted with."""
    assert server.ask("POST", "/lock", {"seconds": 600}).status == 200
    notebook.run("import os\nos.environ['WHEN'] = 'before'\nx = [1]\nhere = os.getcwd()")
    notebook.run(
        "%%gated_eval later --detach --input x --output told\n"
        "import os\ntold = x, os.environ['WHEN'], os.getcwd()"
    )
    (run_id,) = [row["run_id"] for row in server.queue()["queued"]]
    notebook.run(f"os.environ['WHEN'] = 'after'\nx.append(2)\nos.chdir({str(tmp_path)!r})")
    assert server.ask("DELETE", "/lock").status == 200
    assert server.ended(run_id)["end"] == "completed"
    notebook.run(f"import jupyter_gpugate\ntold = jupyter_gpugate.get('{run_id}').result()")
    assert notebook.value("told == ([1], 'before', here)")


TOKENS = ("JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN", "JUPYTER_TOKEN", "JUPYTER_GATEWAY_AUTH_TOKEN")
KEYS = {"OPENAI_API_KEY": "sk-1", "HF_TOKEN": "hf_1", "WANDB_API_KEY": "w"}


def test_the_users_keys_pass_and_jupyters_tokens_do_not(
    places: Places, start: Callable[..., Served]
) -> None:
    """A run has the user's own keys, and nothing that opens the server, the Hub or the gate."""
    opened = UserNotebook(start(**KEYS, JUPYTERHUB_USER="ada"))
    for name in TOKENS:
        opened.run(f"import os\nos.environ[{name!r}] = 'secret-{name}'")
    opened.run(
        "%%gated_eval tokens --drop-env WANDB_API_KEY --output seen\n"
        "import os\nseen = dict(os.environ)"
    )
    seen: dict[str, str] = opened.value("seen")
    assert {name: seen.get(name) for name in KEYS} == {**KEYS, "WANDB_API_KEY": None}
    assert seen["JUPYTERHUB_USER"] == "ada"
    assert not {name for name in TOKENS if name in seen}
    assert not [name for name, value in seen.items() if "secret-" in value]
    for file in places.runs.rglob("*.json"):
        with suppress(OSError):
            assert "secret-" not in file.read_text(), file
    opened.close()


@pytest.mark.behaviour(53, 54)
def test_an_edit_of_a_module_that_is_not_installed_makes_other_code(
    server: Served, notebook: UserNotebook
) -> None:
    """What was learned holds through comments and layout, and no longer once the module differs."""
    module = server.places.notebooks / "own" / "helper.py"
    module.parent.mkdir()
    module.write_text("def size():\n    return 1_000_000\n")
    notebook.run("import sys\nsys.path.insert(0, 'own')")
    body = "%%gated_eval module --output n\nimport helper\nn = helper.size()\nx = bytearray(n)"
    assert "first run of this code" in notebook.run(body).text
    module.write_text("# said in passing\ndef size( ):\n\n    return 1_000_000\n")
    assert "measured, from 1 run" in notebook.run(body + "  # and here").text
    module.write_text("def size():\n    return 2_000_000\n")
    assert "measured, n =" not in notebook.run(body).text
    assert notebook.value("n") == 2_000_000
