"""The commands that run tests, as `make -n` prints them; and the marker that divides them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = {"tests/crash", "tests/corrupt", "tests/fuzz", "tests/native/test_sanitizers.py"}


def dry_run(*arguments: str) -> str:
    """The pytest commands of one call of make."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(["make", "-n", "JOBS=2", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if "pytest" in line)


def test_make_test_leaves_slow_tests_out_and_test_slow_runs_them() -> None:
    assert '-m "not slow"' in dry_run("test")
    assert "-m slow" in dry_run("test-slow")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make test\n" in ci and "make test-slow\n" in ci


def test_a_part_runs_alone_and_whole() -> None:
    command = dry_run("test", "T=tests/index")
    assert command.endswith("tests/index") and "-m" not in command


def test_every_night_part_exists_and_has_a_time_limit() -> None:
    lines = dry_run("night")
    assert "timeout $" in lines or "timeout " in lines
    makefile = (ROOT / "Makefile").read_text()
    parts = makefile.split("NIGHT  :=")[1].split("\n\n")[0].replace("\\\n", " ").split()
    assert len(parts) > 5 and [part for part in parts if not (ROOT / part).exists()] == []


def test_slow_tests_are_marked(pytestconfig: pytest.Config) -> None:
    from tests.conftest import is_slow

    assert all(is_slow(path if path.endswith(".py") else f"{path}/test_x.py") for path in SLOW)
    assert not is_slow("tests/index/test_writer.py") and not is_slow("src/citadel/api.py")
