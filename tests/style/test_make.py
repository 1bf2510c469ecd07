"""The `make` targets that run tests, and the markers that select the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = {"tests/crash", "tests/corrupt", "tests/fuzz", "tests/native/test_sanitizers.py"}


def dry_run(*arguments: str) -> str:
    """The pytest commands that `make -n` prints."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    process = subprocess.run(
        ["make", "-n", "JOBS=2", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return "\n".join(line for line in process.stdout.splitlines() if "pytest" in line)


def test_make_test_skips_slow_tests_and_test_slow_runs_them() -> None:
    assert '-m "not slow"' in dry_run("test")
    assert "-m slow" in dry_run("test-slow")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make test\n" in ci and "make test-slow\n" in ci


def test_selected_folder_runs_with_its_slow_tests() -> None:
    command = dry_run("test", "T=tests/index")
    assert command.endswith("tests/index") and "-m" not in command


def test_every_night_part_exists_and_has_a_time_limit() -> None:
    parts = [word.split("=") for word in dry_run("night").split() if word.startswith("tests/")]
    assert len(parts) > 5 and all(limit.endswith("m") for _, limit in parts)
    assert [path for path, _ in parts if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("script", "summary", "code"),
    [
        ("exit 0", "night: 2 parts passed, 0 failed", 0),
        ("case \"$*\" in *' b') exit 1 ;; esac", "night: 1 parts passed, 1 failed", 1),
        ("exec sleep 60", "night: 0 parts passed, 2 failed", 1),
    ],
    ids=["all pass", "one fails", "time limit"],
)
def test_night_summary(tmp_path: Path, script: str, summary: str, code: int) -> None:
    pytest_stub = tmp_path / "pytest"
    pytest_stub.write_text(f"#!/bin/sh\n{script}\n")
    pytest_stub.chmod(0o755)
    command = ["sh", str(ROOT / "scripts" / "night.sh"), str(pytest_stub), "2", "a=0.5s", "b=0.5s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.returncode) == (summary, code)


def test_slow_tests_are_marked(pytestconfig: pytest.Config) -> None:
    from tests.conftest import is_slow

    assert all(is_slow(path if path.endswith(".py") else f"{path}/test_x.py") for path in SLOW)
    assert not is_slow("tests/index/test_writer.py") and not is_slow("src/citadel/api.py")
