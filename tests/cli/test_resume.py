"""A killed build resumes with the same command, with the result of an uninterrupted one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from citadel import Index, IndexNotFoundError
from tests.cli.conftest import in_process, start, write_jsonl
from tests.conftest import NIGHT, SEED

CYCLES = 15 if NIGHT else 5
DOCUMENTS = 3000
WORDS = [f"word{n}" for n in range(400)]
Rankings = dict[str, list[tuple[str, float, object]]]  # query → (id, score, metadata)
QUERIES = ["word1 word2", "word3", "word17 word200 word399", "word5 word5 word6"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = random.Random(7)
    rows: list[dict[str, object]] = [
        {"id": f"d{n % 2900}", "text": " ".join(generator.choices(WORDS, k=30)), "n": n}
        for n in range(DOCUMENTS)
    ]  # the last hundred replace the first
    path = tmp_path_factory.mktemp("resume") / "corpus.jsonl"
    return write_jsonl(path, rows)


@pytest.fixture(scope="module")
def expected(corpus: Path) -> Rankings:
    done = in_process("index", corpus, corpus.parent / "whole")
    assert done.code == 0, done.err
    return rankings(corpus.parent / "whole")


def rankings(path: Path) -> Rankings:
    with Index.open(path) as index:
        assert len(index) == 2900
        searcher = index.searcher()
        results = {query: searcher.search(query, k=2900) for query in QUERIES}
        return {
            query: [(hit.id, round(hit.score, 4), hit.metadata["n"]) for hit in hits]
            for query, hits in results.items()
        }


def committed(path: Path) -> tuple[int, int]:
    """Bytes and lines of the corpus that are committed."""
    try:
        build = Index.open(path).build
    except IndexNotFoundError:
        return 0, 0
    return (build.position, build.line) if build else (0, 0)


def kill_after_a_commit(command: Sequence[object], index: Path, delay: float) -> str:
    """Kill a build some time after its next commit; return its standard error."""
    before = committed(index)
    process = start(*command)
    try:
        while process.poll() is None and committed(index) == before:
            time.sleep(0.01)
        time.sleep(delay)
    finally:
        process.kill()
        _, err = process.communicate()
    return err


@pytest.mark.parametrize("cycle", range(CYCLES))
def test_killed_builds_resume_with_equal_results(
    cycle: int, corpus: Path, expected: Rankings, tmp_path: Path
) -> None:
    generator = random.Random(SEED + cycle)
    index = tmp_path / "idx"
    command = ["index", corpus, index, "--commit-bytes", corpus.stat().st_size // 40]
    for _ in range(2):
        _, line = committed(index)
        err = kill_after_a_commit(command, index, generator.uniform(0, 0.15))
        if line:  # committed batches are not read again
            assert f"resuming after line {line:,} of" in err
    done = in_process(*command)
    assert done.code == 0, done.err
    assert in_process("check", index, "--deep").code == 0
    assert rankings(index) == expected
    assert not [path.name for path in index.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_build_killed_during_startup_can_restart(delay: float, corpus: Path, tmp_path: Path) -> None:
    process = start("index", corpus, tmp_path / "idx")
    time.sleep(delay)
    process.kill()
    process.communicate()
    done = in_process("index", corpus, tmp_path / "idx")
    assert done.code == 0, done.err
    assert len(Index.open(tmp_path / "idx")) == 2900


def test_two_builds_at_once_do_not_mix(corpus: Path, tmp_path: Path, expected: Rankings) -> None:
    commands = [start("index", corpus, tmp_path / "idx", "--commit-bytes", 10_000) for _ in range(2)]
    for process in commands:
        _, err = process.communicate(timeout=120)
        assert process.returncode in (0, 4, 5), err  # done, refused, or locked out
    assert in_process("index", corpus, tmp_path / "idx", "--commit-bytes", 10_000).code == 0
    assert rankings(tmp_path / "idx") == expected
