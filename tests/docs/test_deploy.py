"""Container and workflow files pass their linters where those are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
LINTERS = [
    ["hadolint", "Dockerfile"],
    ["kubernetes-validate", "deploy/kubernetes.yaml"],
    ["zizmor", "--offline", "--no-progress", ".github/workflows"],
]


@pytest.mark.parametrize("command", LINTERS, ids=lambda command: command[0])
def test_linter_is_content(command: list[str]) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if shutil.which(command[0], path=path) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_container_is_not_root_and_has_a_health_check() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert text.index("USER 10001") < text.index("ENTRYPOINT") and "\nHEALTHCHECK " in text


def test_only_the_publishing_jobs_may_write() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert set((workflow["permissions"] or {}).values()) <= {"read"}
        for name, job in workflow["jobs"].items():
            assert name == "publish" or "write" not in (job.get("permissions") or {}).values()
