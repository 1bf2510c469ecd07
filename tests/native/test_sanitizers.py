"""The C++ tests and the fuzz corpus under the sanitizers, each set built once for all workers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.once import made_once, shared_folder

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++")


def run(*command: str | Path, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    # ASan's leak check needs ptrace, which containers often forbid; nothing here owns memory by hand.
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def has_runtime(folder: Path, sanitizer: str) -> bool:
    source = folder / "empty.cpp"
    source.write_text("int main() {}\n")
    built = run(COMPILER or "g++", f"-fsanitize={sanitizer}", source, "-o", folder / "empty")
    return built.returncode == 0 and run(folder / "empty").returncode == 0


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None or shutil.which("cmake") is None:
        pytest.skip("needs cmake and g++ or clang++")
    if not has_runtime(tmp_path_factory.mktemp("runtime"), request.param):
        pytest.skip(f"{COMPILER} has no runtime for -fsanitize={request.param} here")
    folder = shared_folder(tmp_path_factory) / f"sanitized-{request.param.partition(',')[0]}"
    return made_once(folder, lambda folder: compile_tests(folder, request.param))


def compile_tests(folder: Path, sanitizers: str) -> None:
    options = ["-DCITADEL_PYTHON=OFF", "-DCITADEL_TESTS=ON", f"-DCITADEL_SANITIZE={sanitizers}"]
    options += [
        f"-DCMAKE_CXX_COMPILER={COMPILER}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1",
    ]
    configured = run("cmake", "-S", ROOT, "-B", folder, *options)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    built = run("cmake", "--build", folder, "--parallel", "2", "--target", "parts_test", "search_test", "replay")
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]


@pytest.mark.parametrize("name", ["parts_test", "search_test"])
def test_cpp_tests_are_clean(build: Path, name: str) -> None:
    done = run(build / name)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("ok\n")


def test_fuzz_corpus_replays_clean(build: Path) -> None:
    done = run(build / "replay", ROOT / "native" / "fuzz" / "corpus")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "replayed" in done.stdout
