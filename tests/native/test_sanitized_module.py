"""R10: the Python property tests over a module built with ASan and UBSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.native.test_sanitizers import COMPILER, ROOT, has_runtime, run
from tests.support.seeds import NIGHT

SANITIZERS = "address,undefined"
LONGEST = 4 * 3600 if NIGHT else 900  # seconds
TESTS = ("tests/property", *(f"tests/native/test_native_{name}.py" for name in ("module", "errors", "router")))
# An editable install finds its module by a hook of its own, before any path: it has to go.
START = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, sys.argv[1])
import pytest
from citadel import _native
assert _native.__file__.startswith(sys.argv[1]), _native.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and a sanitized module in it."""
    if COMPILER is None or shutil.which("cmake") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux, cmake and g++ or clang++")
    folder = tmp_path_factory.mktemp("module")
    if not has_runtime(folder, SANITIZERS):
        pytest.skip(f"{COMPILER} has no runtime for -fsanitize={SANITIZERS} here")
    options = [f"-DCITADEL_SANITIZE={SANITIZERS}", f"-DPython_EXECUTABLE={sys.executable}"]
    options += [f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    options += ["-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1"]
    configured = run("cmake", "-S", ROOT, "-B", folder / "build", *options)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    built = run("cmake", "--build", folder / "build", "--parallel", "2", "--target", "_native")
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    shutil.copytree(ROOT / "src" / "citadel", folder / "citadel", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    shutil.copy(folder / "build" / name, folder / "citadel" / name)
    return folder


def runtimes() -> str:
    """The libraries that must be loaded before Python, because Python itself was built without them."""
    assert COMPILER is not None
    found = [run(COMPILER, f"-print-file-name={name}").stdout.strip() for name in ("libasan.so", "libstdc++.so.6")]
    return " ".join(path for path in found if os.path.isabs(path))


def test_the_property_tests_are_clean(package: Path) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": runtimes(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", START, str(package), "-q", "-p", "no:cacheprovider", "-x", *TESTS]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout
