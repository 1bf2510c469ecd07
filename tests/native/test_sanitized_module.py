"""Python tests over a module built with ASan and UBSan, and shared indexes over one built with TSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.test_sanitizers import COMPILER, ROOT, has_runtime, run
from tests.support.seeds import NIGHT

MEMORY, RACES = "address,undefined", "thread"
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
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with the package and a module in it that was built with these sanitizers."""
    if COMPILER is None or shutil.which("cmake") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux, cmake and g++ or clang++")

    def build(sanitizers: str) -> Path:
        folder = tmp_path_factory.mktemp("module")
        if not has_runtime(folder, sanitizers):
            pytest.skip(f"{COMPILER} has no runtime for -fsanitize={sanitizers} here")
        options = [f"-DCITADEL_SANITIZE={sanitizers}", f"-DPython_EXECUTABLE={sys.executable}"]
        options += [f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
        options += ["-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1"]
        configured = run("cmake", "-S", ROOT, "-B", folder / "build", *options)
        assert configured.returncode == 0, configured.stdout + configured.stderr
        made = run("cmake", "--build", folder / "build", "--parallel", "2", "--target", "_native")
        assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
        source = ROOT / "src" / "citadel"
        shutil.copytree(source, folder / "citadel", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        shutil.copy(folder / "build" / name, folder / "citadel" / name)
        return folder

    return build


def runtimes(*names: str) -> str:
    """The libraries that must be loaded before Python, because Python itself was built without them."""
    assert COMPILER is not None
    paths = [run(COMPILER, f"-print-file-name={name}").stdout.strip() for name in (*names, "libstdc++.so.6")]
    return " ".join(path for path in paths if os.path.isabs(path))


def run_tests(package: Path, environment: dict[str, str], *tests: str) -> None:
    """Run tests of this repository over the module in that folder."""
    settings = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-c", START, str(package), "-q", "-p", "no:cacheprovider", "-x", *tests]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout


def test_the_property_tests_are_clean(built: Callable[[str], Path]) -> None:
    options = "detect_leaks=0:allocator_may_return_null=0:abort_on_error=0"
    run_tests(built(MEMORY), {"LD_PRELOAD": runtimes("libasan.so"), "ASAN_OPTIONS": options}, *TESTS)


def test_threads_that_share_an_index_do_not_race(built: Callable[[str], Path]) -> None:
    options = "exitcode=66:report_signal_unsafe=0:ignore_noninstrumented_modules=1"
    environment = {"LD_PRELOAD": runtimes("libtsan.so"), "TSAN_OPTIONS": options, "OMP_NUM_THREADS": "1"}
    run_tests(built(RACES), environment, "tests/concurrency/test_shared_index.py", "tests/search/test_threads.py")
