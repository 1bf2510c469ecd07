"""The token cache: equal ids, one file per input, and detection of damage."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed: `pip install citadel-ir[train]`")

from citadel.errors import InputError, ResourceError
from citadel.train import token_cache
from citadel.train.data_cache import load_data
from citadel.train.ragged import Ragged
from citadel.train.texts import TextStore
from citadel.train.tokens import load_tokenizer, tokenize
from tests.support.models import tiny_tokenizer
from tests.support.training import Configs

TEXTS = ["newton gravity", "", "einstein proposed relativity in physics"]


def rows(table: Ragged) -> list[list[int]]:
    return [table[row].tolist() for row in range(len(table))]


def keep(folder: Path, texts: list[str] | None = None, length: int = 5) -> Ragged:
    return token_cache.cached_tokens(str(folder), TextStore(texts or TEXTS), tiny_tokenizer(), length)


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of texts tokenised, per call."""
    counts: list[int] = []

    def counted(texts: TextStore, *rest: Any) -> Ragged:
        counts.append(len(texts))
        return tokenize(texts, *rest)

    monkeypatch.setattr(token_cache, "tokenize", counted)
    return counts


def test_second_run_reads_the_cache(tmp_path: Path, tokenised: list[int]) -> None:
    first = rows(keep(tmp_path / "kept"))
    assert rows(keep(tmp_path / "kept")) == first and [len(row) for row in first] == [4, 2, 5]
    assert tokenised == [3] and len(list((tmp_path / "kept").iterdir())) == 1


def test_cache_file_depends_on_texts_length_and_tokenizer(tmp_path: Path, tokenised: list[int]) -> None:
    keep(tmp_path)
    keep(tmp_path, length=4)
    keep(tmp_path, ["newton gravit", "y", *TEXTS[1:]])
    keep(tmp_path, ["newton ", "gravity", TEXTS[2]])  # the same characters, other boundaries
    other = tiny_tokenizer()
    other.add_tokens(["newtonian"])
    token_cache.cached_tokens(str(tmp_path), TextStore(TEXTS), other, 5)
    assert tokenised == [3, 3, 4, 3, 3] and len(list(tmp_path.iterdir())) == 5


def test_any_damaged_byte_is_detected(tmp_path: Path) -> None:
    keep(tmp_path)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    damaged = [
        whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        for position in range(len(whole))
    ]
    for contents in [*damaged, *(whole[:end] for end in range(len(whole))), whole + b"\0"]:
        file.write_bytes(contents)
        with pytest.raises(InputError, match=r"tokens-\w+\.bin: the cache file is damaged: delete it"):
            keep(tmp_path)
    file.write_bytes(whole)
    assert len(keep(tmp_path)) == 3


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, ResourceError), (errno.EIO, InputError)])
def test_failed_write_leaves_no_file(
    code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("citadel.train.token_cache.os.fsync", fail)
    with pytest.raises(kind, match=r"tokens-\w+\.bin: cannot be written"):
        keep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_cached_tokens_equal_tokens(
    config: Configs, backbone: Path, tmp_path: Path, tokenised: list[int]
) -> None:
    plain, kept = config(), config(data={"cache": str(tmp_path / "kept")})
    expected = load_data(plain, load_tokenizer(backbone))
    for _ in range(2):
        tokenizer = load_tokenizer(backbone)
        result = load_data(kept, tokenizer)
        assert rows(result.passages) == rows(expected.passages) and rows(result.queries) == rows(
            expected.queries
        )
        assert result.twin.tolist() == expected.twin.tolist()
    assert tokenised == [5, 4, 5, 4] and plain.fingerprint == kept.fingerprint
