"""Sanitizer builds of the engine, its C++ tests and its Python module: one per set, shared by all workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.once import made_once, shared_folder

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++")
MEMORY, RACES = "address,undefined", "thread"
BUILD_TIMEOUT = 1800  # seconds; a busy machine may need more than ten minutes
TARGETS = ("parts_test", "search_test", "graph_test", "replay", "_native")


def run(*command: str | Path, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    """Run a command without ASan's leak check, which needs ptrace; containers often forbid that."""
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )


def sanitized_build(factory: pytest.TempPathFactory, sanitizers: str) -> Path:
    """The build folder for a set of sanitizers; skips the test if they are not available."""
    if COMPILER is None or shutil.which("cmake") is None:
        pytest.skip("needs cmake and g++ or clang++")
    if not _has_runtime(factory.mktemp("runtime"), sanitizers):
        pytest.skip(f"{COMPILER} has no runtime for -fsanitize={sanitizers} here")
    folder = shared_folder(factory) / f"sanitized-{sanitizers.partition(',')[0]}"
    return made_once(folder, lambda folder: _build(folder, sanitizers))


def _has_runtime(folder: Path, sanitizers: str) -> bool:
    source = folder / "empty.cpp"
    source.write_text("int main() {}\n")
    compiled = run(COMPILER or "g++", f"-fsanitize={sanitizers}", source, "-o", folder / "empty")
    return compiled.returncode == 0 and run(folder / "empty").returncode == 0


def _build(folder: Path, sanitizers: str) -> None:
    options = ["-DCITADEL_TESTS=ON", f"-DCITADEL_SANITIZE={sanitizers}", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    options += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    options += ["-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1"]
    configured = run("cmake", "-S", ROOT, "-B", folder, *options)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    built = run("cmake", "--build", folder, "--parallel", "2", "--target", *TARGETS, timeout=BUILD_TIMEOUT)
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
