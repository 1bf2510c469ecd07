"""Settings and fixtures for all tests: seeds, slow tests, test data and the tiny model."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from citadel.encode import locate

collect_ignore_glob = ["fuzz/fuzz_*.py"]  # programs started by tests; their imports may be missing

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"
SEED = int(os.environ.setdefault("CITADEL_SEED", str(random.randrange(1, 1 << 31))))  # equal in all workers

# Most tests are about the engine, where BM25 is faster and easier to check; tests of a model name it, or
# use the fixture `default_model`.
os.environ["CITADEL_MODEL"] = "bm25"

# A background job of a shell ignores SIGINT, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline, so that a slow machine does not fail.
settings.register_profile("day", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("night", settings.get_profile("day"), max_examples=300)
settings.load_profile("night" if NIGHT else "day")


def pytest_report_header() -> str:
    return f"seed: CITADEL_SEED={SEED} repeats the random choices of this run"


# Crash states, kills, fuzzing, sanitizers and soak tests: `make test-slow`. Single slow tests are marked.
SLOW = (
    "tests/cli/test_bad_input.py::test_generated_corpora",
    "tests/cli/test_resume.py",
    "tests/concurrency/",
    "tests/corrupt/",
    "tests/crash/",
    "tests/fuzz/",
    "tests/native/test_sanitized_module.py",
    "tests/native/test_sanitizers.py",
    "tests/search/gpu/test_gpu.py::test_kernels_in_the_interpreter",
    "tests/server/test_fuzz.py",
    "tests/server/test_overload.py",
    "tests/server/test_slow_clients.py",
    "tests/server/test_swap.py",
    "tests/server/web/",
)


def is_slow(nodeid: str) -> bool:
    """Whether the test with this pytest node id is slow."""
    return nodeid.startswith(SLOW)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("night"):
            item.add_marker(pytest.mark.slow)
            if not NIGHT:
                item.add_marker(pytest.mark.skip(reason="a long variant: run `make night`"))


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run, printed in its header and set by CITADEL_SEED."""
    return SEED


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of larger test data, $CITADEL_DATA."""
    folder = Path(os.environ.get("CITADEL_DATA", ""))
    if not os.environ.get("CITADEL_DATA") or not folder.is_dir():
        pytest.skip("CITADEL_DATA is not set to a folder of test data")
    return folder


@pytest.fixture
def default_model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the default model, which encodes text in this test unless it names another."""
    folder = locate.default_model()
    if folder is None:
        pytest.skip("this copy has no default model")
    monkeypatch.delenv("CITADEL_MODEL")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of exported tiny models by router and precision, each made once."""
    pytest.importorskip("onnx", reason="models are exported with the extra [train]")
    from citadel.model.export import export
    from tests.support.models import tiny_config, write_checkpoint

    made: dict[tuple[str, str], Path] = {}

    def get(router: str = "dynamic", precision: str = "fp32") -> Path:
        if (router, precision) not in made:
            folder = tmp_path_factory.mktemp(f"{router}-{precision}")
            checkpoint = write_checkpoint(folder / "checkpoint", tiny_config(router))
            [made[router, precision]] = export(checkpoint, folder / "model", precision)
        return made[router, precision]

    return get


@pytest.fixture
def every_instruction_set() -> Iterator[Callable[[Callable[[], Any]], list[Any]]]:
    """Call a function under each instruction set of this machine."""
    from citadel import _native

    before = _native.instruction_set()

    def call(function: Callable[[], Any]) -> list[Any]:
        results = []
        for name in _native.instruction_sets():
            _native.use_instruction_set(name)
            results.append(function())
        return results

    yield call
    _native.use_instruction_set(before)
