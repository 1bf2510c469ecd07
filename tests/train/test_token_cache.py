"""Token ids kept from run to run: the same ids, another file for anything else, and no damage goes unseen."""

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
def once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts were tokenised, each time."""
    counts: list[int] = []

    def counted(texts: TextStore, *rest: Any) -> Ragged:
        counts.append(len(texts))
        return tokenize(texts, *rest)

    monkeypatch.setattr(token_cache, "tokenize", counted)
    return counts


def test_the_second_run_reads_what_the_first_wrote(tmp_path: Path, once: list[int]) -> None:
    first = rows(keep(tmp_path / "kept"))
    assert rows(keep(tmp_path / "kept")) == first and [len(row) for row in first] == [4, 2, 5]
    assert once == [3] and len(list((tmp_path / "kept").iterdir())) == 1


def test_other_texts_lengths_and_tokenizers_have_files_of_their_own(tmp_path: Path, once: list[int]) -> None:
    keep(tmp_path)
    keep(tmp_path, length=4)
    keep(tmp_path, ["newton gravit", "y", *TEXTS[1:]])
    keep(tmp_path, ["newton ", "gravity", TEXTS[2]])  # the same letters, other ends
    other = tiny_tokenizer()
    other.add_tokens(["newtonian"])
    token_cache.cached_tokens(str(tmp_path), TextStore(TEXTS), other, 5)
    assert once == [3, 3, 4, 3, 3] and len(list(tmp_path.iterdir())) == 5


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    keep(tmp_path)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    for contents in [*damaged, *(whole[:end] for end in range(len(whole))), whole + b"\0"]:
        file.write_bytes(contents)
        with pytest.raises(InputError, match=r"tokens-\w+\.bin: the cache file is damaged: delete it"):
            keep(tmp_path)
    file.write_bytes(whole)
    assert len(keep(tmp_path)) == 3


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, ResourceError), (errno.EIO, InputError)])
def test_nothing_half_written_stays(
    code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("citadel.train.token_cache.os.fsync", fail)
    with pytest.raises(kind, match=r"tokens-\w+\.bin: cannot be written"):
        keep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_kept_tokens_is_the_run_without(
    config: Configs, backbone: Path, tmp_path: Path, once: list[int]
) -> None:
    plain, kept = config(), config(data={"cache": str(tmp_path / "kept")})
    wanted = load_data(plain, load_tokenizer(backbone))
    for _ in range(2):
        tokenizer = load_tokenizer(backbone)
        found = load_data(kept, tokenizer)
        assert rows(found.passages) == rows(wanted.passages) and rows(found.queries) == rows(wanted.queries)
        assert found.twin.tolist() == wanted.twin.tolist()
    assert once == [5, 4, 5, 4] and plain.fingerprint == kept.fingerprint
