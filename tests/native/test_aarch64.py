"""The engine for aarch64, cross-compiled and run under QEMU: same tests, same bits as on this machine."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.once import made_once, shared_folder

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
PROCESSORS = {"max": ["portable", "neon", "neon-dotprod"], "cortex-a53": ["portable", "neon"]}
TARGETS = ("parts_test", "search_test", "graph_test", "kernel_digest")
CROSS = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_EXE_LINKER_FLAGS=-static"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        COMPILER is None or EMULATOR is None or shutil.which("cmake") is None,
        reason="needs cmake, g++-aarch64-linux-gnu and qemu-user-static",
    ),
]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def build(folder: Path, options: list[str], targets: tuple[str, ...]) -> None:
    run("cmake", "-S", ROOT, "-B", folder, "-DCITADEL_PYTHON=OFF", "-DCITADEL_TESTS=ON", *options)
    run("cmake", "--build", folder, "--parallel", "2", "--target", *targets)


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = [*CROSS, f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    folder = shared_folder(tmp_path_factory) / "aarch64"
    return made_once(folder, lambda folder: build(folder, options, TARGETS))


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shared_folder(tmp_path_factory) / "native-digest"
    return made_once(folder, lambda folder: build(folder, [], ("kernel_digest",)))


def digests(output: str) -> dict[str, str]:
    """The checksums of each instruction set."""
    return dict(line.split(" ", 1) for line in output.splitlines())


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", ["parts_test", "search_test", "graph_test"])
def test_cpp_tests_pass(aarch64: Path, name: str, processor: str) -> None:
    assert EMULATOR is not None
    assert run(EMULATOR, "-cpu", processor, aarch64 / name).endswith("ok\n")


@pytest.mark.parametrize("processor", PROCESSORS)
def test_kernels_give_the_bits_of_this_machine(aarch64: Path, native: Path, processor: str) -> None:
    assert EMULATOR is not None
    here = digests(run(native / "kernel_digest"))
    there = digests(run(EMULATOR, "-cpu", processor, aarch64 / "kernel_digest"))
    assert list(there) == PROCESSORS[processor]
    assert platform.machine() == "aarch64" or "neon" not in here
    assert set(here.values()) == set(there.values())
    assert len(set(here.values())) == 1
