"""Python tests run clean with a module built with ASan and UBSan, or with TSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.sanitized import COMPILER, MEMORY, RACES, ROOT, run, sanitized_build

TIMEOUT = 900  # seconds
TESTS = (
    "tests/property",
    *(f"tests/native/test_native_{name}.py" for name in ("module", "errors", "router")),
)
# An editable install finds its module through an import hook, which precedes sys.path: remove the hook.
START = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, sys.argv[1])
import pytest
from citadel import _native
assert _native.__file__.startswith(sys.argv[1]), _native.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.fixture
def sanitized_package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make a folder with the Python package and a module built with these sanitizers."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")

    def copy(sanitizers: str) -> Path:
        build, folder = sanitized_build(tmp_path_factory, sanitizers), tmp_path_factory.mktemp("package")
        source = ROOT / "src" / "citadel"
        shutil.copytree(source, folder / "citadel", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        shutil.copy(build / name, folder / "citadel" / name)
        return folder

    return copy


def runtimes(*names: str) -> str:
    """Libraries to preload, because Python itself was built without sanitizers."""
    assert COMPILER is not None
    paths = [run(COMPILER, f"-print-file-name={name}").stdout.strip() for name in (*names, "libstdc++.so.6")]
    return " ".join(path for path in paths if os.path.isabs(path))


def run_tests(package: Path, environment: dict[str, str], *tests: str) -> None:
    """Run tests of this repository with the module in a package folder."""
    settings = {
        **os.environ,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    command = [sys.executable, "-c", START, str(package), "-q", "-p", "no:cacheprovider", "-x", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout


def test_property_tests_are_clean(sanitized_package: Callable[[str], Path]) -> None:
    options = "detect_leaks=0:allocator_may_return_null=0:abort_on_error=0"
    environment = {"LD_PRELOAD": runtimes("libasan.so"), "ASAN_OPTIONS": options}
    run_tests(sanitized_package(MEMORY), environment, *TESTS)


def test_threads_that_share_an_index_do_not_race(sanitized_package: Callable[[str], Path]) -> None:
    options = "exitcode=66:report_signal_unsafe=0:ignore_noninstrumented_modules=1"
    environment = {"LD_PRELOAD": runtimes("libtsan.so"), "TSAN_OPTIONS": options, "OMP_NUM_THREADS": "1"}
    tests = ("tests/concurrency/test_shared_index.py", "tests/search/test_threads.py")
    run_tests(sanitized_package(RACES), environment, *tests)
