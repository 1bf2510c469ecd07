"""The C++ tests and the fuzz corpus run clean under the sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.sanitized import MEMORY, RACES, ROOT, run, sanitized_build


@pytest.fixture(scope="module", params=[MEMORY, RACES])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized_build(tmp_path_factory, request.param)


@pytest.mark.parametrize("name", ["parts_test", "search_test", "graph_test"])
def test_cpp_tests_are_clean(build: Path, name: str) -> None:
    done = run(build / name)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("ok\n")


def test_fuzz_corpus_replays_clean(build: Path) -> None:
    done = run(build / "replay", ROOT / "native" / "fuzz" / "corpus")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "replayed" in done.stdout
