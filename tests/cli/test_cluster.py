"""`citadel index --cluster`: what is refused before a cluster is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Citadel


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "d1", "text": "fox"}\n')
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cluster", "local"), "--shards"),
        (("--cluster", "local", "--shards", 5000), "1024"),
        (("--shards", 2), "--cluster"),
        (("--workers", 2), "--cluster"),
        (("--model", "default", "--device", "cuda:1", "--shards", 2, "--cluster", "local"), "--device cuda"),
    ],
)
def test_options(options: tuple[object, ...], message: str, corpus: Path, citadel: Citadel) -> None:
    done = citadel("index", corpus, corpus.parent / "root", *options, code=2)
    assert message in done.err
    assert not (corpus.parent / "root").exists()


def test_standard_input_and_vectors(corpus: Path, citadel: Citadel) -> None:
    cluster = ("--cluster", "local", "--shards", 2)
    assert "file" in citadel("index", "-", corpus.parent / "root", *cluster, code=2).err


def test_a_folder_with_an_index(corpus: Path, citadel: Citadel) -> None:
    citadel("index", corpus, corpus.parent / "idx", "--model", "bm25")
    citadel("shard", corpus.parent / "idx", "--shards", 2)
    cluster = ("--model", "bm25", "--cluster", "local", "--shards", 2)
    assert "another sharded" in citadel("index", corpus, corpus.parent / "idx-shards", *cluster, code=2).err
