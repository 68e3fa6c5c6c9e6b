"""The variables and paths that a run, a gate and a supervisor inherit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpugate.client import submission
from jupyter_gpugate.client.environment import for_a_gate, for_a_run
from jupyter_gpugate.gate.gpu import process as nvml_process
from jupyter_gpugate.proc import is_token, isolation

SECRETS = (
    "JUPYTERHUB_API_TOKEN",
    "JUPYTERHUB_COOKIE_SECRET",
    "JUPYTERHUB_CRYPT_KEY",
    "JUPYTERHUB_OAUTH_CLIENT_SECRET",
    "JPY_API_TOKEN",
    "JPY_COOKIE_SECRET",
    "JUPYTER_TOKEN",
    "JUPYTER_GATEWAY_AUTH_TOKEN",
    "JUPYTER_GATEWAY_HTTP_PWD",
    "JUPYTER_GATEWAY_HEADERS",
    "JUPYTER_SERVER_PASSWORD",
    "CONFIGPROXY_AUTH_TOKEN",
    "CONFIGPROXY_SSL_KEY_PASSPHRASE",
    "KG_AUTH_TOKEN",
    "EG_AUTH_TOKEN",
    "GPUGATE_TOKEN",
    "GPUGATE_API_TOKEN",
)
NAMES = (
    "JUPYTERHUB_USER",
    "JUPYTERHUB_SERVICE_PREFIX",
    "JUPYTERHUB_BASE_URL",
    "JUPYTERHUB_API_URL",
    "JUPYTERHUB_CLIENT_ID",
    "JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED",
    "JUPYTERHUB_SERVER_NAME",
    "JPY_SESSION_NAME",
    "JUPYTER_SERVER_ROOT",
    "JUPYTER_DATA_DIR",
    "GPUGATE_USER_SOCKET",
)
THE_USERS = ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MONKEY_KEY")


def test_a_servers_secrets_go_and_its_names_stay() -> None:
    """A run sees who its user is and where the server answers, and nothing that opens a server."""
    assert [name for name in SECRETS if not is_token(name)] == []
    assert [name for name in (*NAMES, *THE_USERS) if is_token(name)] == []
    environ = dict.fromkeys((*SECRETS, *NAMES, *THE_USERS), "x")
    assert set(for_a_run(environ)) == {*NAMES, *THE_USERS}


def test_a_gate_is_nobodys_notebook_and_nobodys_run() -> None:
    """Variables of one kernel or one run do not reach the processes that a gate starts."""
    own = {"JPY_SESSION_NAME": "/a.ipynb", "GPUGATE_RUN_ID": "r", "GPUGATE_CAPS": "{}"}
    kept = {"PATH": "/bin", "LD_LIBRARY_PATH": "/site/lib", "JUPYTERHUB_USER": "ada"}
    process = {"JPY_PARENT_PID": "7", "GPUGATE_EVENTS": "/proc/7/fd/3", "GPUGATE_ATTEMPT_DIR": "/r"}
    assert for_a_gate({**own, **kept, **process}) == kept
    assert for_a_run({**kept, **process}) == kept


def test_a_run_passes_on_what_its_notebook_had_unless_it_was_changed_since() -> None:
    """The variables that a supervisor set are the run's own, whatever stands in their record."""
    replaced = {"MASK": ["GPU-1", "0,1"], "ORDER": ["PCI", None], "GONE": ["x", "y"]}
    run = {"MASK": "GPU-1", "ORDER": "PCI", "GPUGATE_REPLACED": json.dumps(replaced)}
    assert for_a_run(run) == {"MASK": "0,1"}
    assert for_a_run({**run, "MASK": "chosen"}) == {"MASK": "chosen"}
    for nonsense in ("", "[]", "7", "{", '{"MASK": 1}', '{"MASK": []}', '{"MASK": null}'):
        assert for_a_run({"MASK": "GPU-1", "GPUGATE_REPLACED": nonsense}) == {"MASK": "GPU-1"}


@pytest.mark.parametrize("home", [{}, {"PYTHONHOME": sys.base_prefix}])
def test_isolated_python_finds_its_own_library_and_nothing_of_the_users(
    tmp_path: Path, home: dict[str, str]
) -> None:
    """The flags keep PYTHONHOME where it is set: some installations have no library without it."""
    environ = {"PATH": os.environ["PATH"], **home}
    told = subprocess.run(
        [sys.executable, *isolation(environ), "-c", "import sys; print(sys.prefix, sys.path)"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "site-packages" not in told
    assert sys.base_prefix in told
    assert isolation(environ)[0] == ("-s" if home else "-I")


ENTRIES = [Path("/a/path"), b"/bytes", 7, None, "/nul\0", "", "/kept"]


def test_entries_of_the_module_path_that_imports_pass_over_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever a notebook puts into `sys.path`, a submit and the GPU reader take only its text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ENTRIES)
    assert submission.module_path() == [str(tmp_path), "/kept"]
    assert nvml_process.import_path() == f"{tmp_path}:/kept"
