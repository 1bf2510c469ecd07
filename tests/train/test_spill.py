"""Bytes and arrays on disk read like those in memory and use bounded memory."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import ResourceError
from citadel.train.ragged import Ragged, RaggedBuilder
from citadel.train.spill import DiskArray, Spill
from citadel.train.texts import UniqueTexts
from tests.style.calls import ROOT

BOUND = 40 << 20  # bytes of memory for reading and tokenising
COLLECTION = 3 * BOUND
TEXT = "newton gravity in the " * 90


@given(st.lists(st.binary(max_size=9)), st.integers(1, 12), st.integers(0, 60), st.integers(0, 60))
def test_read_returns_appended_bytes(parts: list[bytes], block: int, start: int, size: int) -> None:
    spill, whole = Spill(block), b"".join(parts)
    ends = [spill.append(part) for part in parts]
    assert ends == [len(b"".join(parts[: number + 1])) for number in range(len(parts))]
    start = min(start, len(whole))
    end = min(start + size, len(whole))
    assert spill.read(start, end) == whole[start:end] and len(spill) == len(whole)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4)), st.slices(12))
def test_disk_table_matches_table_in_memory(rows: list[list[int]], part: slice) -> None:
    growing = RaggedBuilder(np.uint16)
    for row in rows:
        growing.add(row)
    result, expected = growing.done(), Ragged.of(rows)
    assert [result[row].tolist() for row in range(len(result))] == rows
    if part.step is None or part.step > 0:
        assert result.values[part].tolist() == expected.values[part].tolist()
    assert result.part(0, len(rows)).values[:].tolist() == expected.values[:].tolist()


class Same(str):
    """A string whose hash equals that of all other instances."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


def test_unique_texts_with_equal_hashes() -> None:
    distinct = UniqueTexts()
    assert [distinct.add(Same(text)) for text in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]
    assert list(distinct.texts) == ["a", "b", "c"]


def test_full_disk_names_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("citadel.train.spill.os.pwrite", full)
    with pytest.raises(
        ResourceError, match=r"No space left on device\): make room there, or name another .* TMPDIR"
    ):
        DiskArray(np.int64).append(np.zeros(1 << 20))


def test_file_is_closed_with_its_owner() -> None:
    before = len(os.listdir("/proc/self/fd"))
    spill = Spill(block=1)
    spill.append(b"heart")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del spill
    assert len(os.listdir("/proc/self/fd")) == before


CHILD = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from tests.support.models import VOCABULARY
from citadel.train.data_files import read_passages
from citadel.train.tokens import tokenize, twins

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10

tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenize(["rome"] * 9, tokenizer, 512)
before = peak()
table = tokenize(read_passages(sys.argv[1]).texts, tokenizer, 512)
print(len(table), int(twins(table).max()) + 1, int(table.offsets[-1]), peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to read peak memory")
def test_collection_larger_than_memory(tmp_path: Path) -> None:
    """The texts are three times as large as the memory bound."""
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: `pip install citadel-ir[train]`")
    passages = COLLECTION // len(TEXT)
    with open(tmp_path / "passages.jsonl", "w") as file:
        file.writelines(json.dumps({"id": f"d{row}", "text": TEXT}) + "\n" for row in range(passages))
    environment = os.environ | {
        "RAYON_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-c", CHILD, str(tmp_path / "passages.jsonl")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows, distinct, tokens, growth = map(int, done.stdout.split())
    assert (rows, distinct) == (passages, 1)
    assert tokens == passages * 362
    assert growth < BOUND, f"{growth:,} bytes"
