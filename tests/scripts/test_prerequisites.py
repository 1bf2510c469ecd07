"""A missing compiler or an old Python is reported in one sentence with the package to install."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "prerequisites.sh"
SHELL = shutil.which("sh") or "/bin/sh"


def check(python: str, path: Path, **environment: str) -> tuple[int, list[str]]:
    command = [SHELL, str(SCRIPT), python]
    process = subprocess.run(
        command, env={"PATH": str(path), **environment}, capture_output=True, text=True, check=False
    )
    return process.returncode, process.stderr.splitlines()


def script(folder: Path, name: str, body: str) -> str:
    file = folder / name
    file.write_text(f"#!{SHELL}\n{body}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def compiler(tmp_path: Path) -> str:
    return script(tmp_path, "compiler", "exit 0")


def test_no_output_if_nothing_is_missing(tmp_path, compiler):
    assert check(sys.executable, tmp_path, CXX=compiler) == (0, [])


def test_missing_python_and_compiler_are_reported(tmp_path):
    code, (python, compiler) = check("python3", tmp_path)
    assert code == 1
    assert "python3 is missing" in python
    assert "apt install python3 python3-venv python3-dev" in python
    assert "apt install g++" in compiler


def test_old_python_is_reported(tmp_path, compiler):
    old = script(tmp_path, "python3", "exit 1")
    code, (message,) = check(old, tmp_path, CXX=compiler)
    assert code == 1
    assert "is older than 3.11" in message


@pytest.mark.parametrize(
    ("part", "response", "package"),
    [("ensurepip", "exit 1", "python3-venv"), ("sysconfig", "echo /nowhere", "python3-dev")],
)
def test_missing_python_module_is_reported_with_its_package(tmp_path, compiler, part, response, package):
    python = script(
        tmp_path, "python3", f'case "$*" in *{part}*) {response};; *) exec {sys.executable} "$@";; esac'
    )
    code, (message,) = check(python, tmp_path, CXX=compiler)
    assert code == 1
    assert f"apt install {package}" in message


def test_old_compiler_is_reported(tmp_path):
    old = script(tmp_path, "compiler", "exit 1")
    code, (message,) = check(sys.executable, tmp_path, CXX=old)
    assert code == 1
    assert "does not support C++20" in message
