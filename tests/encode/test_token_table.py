"""Flat token tables hold the tokens of `Tokenizer.documents`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from citadel.encode.config import load_config
from citadel.encode.token_groups import token_groups
from citadel.encode.token_table import TokenTable
from citadel.encode.tokenizer import Tokenizer
from citadel.errors import InputError
from citadel.settings import LongDocuments
from citadel.types import Document
from tests.support.models import WORDS, ModelFolder


@pytest.fixture(scope="module")
def tokenizer(tiny_model: ModelFolder) -> Tokenizer:
    folder = tiny_model()
    return Tokenizer(folder, load_config(folder))


def texts(count: int) -> list[str]:
    rng = random.Random(3)
    return ["", "...", *(" ".join(rng.choices(WORDS, k=rng.randrange(60))) for _ in range(count))]


def test_table_equals_single_encodings(tokenizer: Tokenizer) -> None:
    given = [*texts(40), "rome " * 2000, "x" * 5000]
    table, encodings = tokenizer.document_table(given), tokenizer.documents(given)
    assert len(table) == len(encodings)
    for row, text in enumerate(encodings):
        ids = table.ids[table.offsets[row] : table.offsets[row + 1]]
        assert ids.tolist() == text.ids.tolist()
        assert (table.cut[row], table.blank[row]) == (text.cut, text.is_blank)
        assert (~tokenizer.skipped[ids]).tolist() == text.routed.tolist()


def test_rows_and_joined() -> None:
    cut = np.array([False, True, False])
    table = TokenTable.of([[5], [], [6, 7]], cut, (1, 9), (2,))
    chosen = table.rows(np.array([2, 0, 2]))
    assert chosen.ids.tolist() == [1, 9, 6, 7, 2, 1, 9, 5, 2, 1, 9, 6, 7, 2]
    assert TokenTable.joined([table, chosen]).rows(np.arange(3, 6)).ids.tolist() == chosen.ids.tolist()
    assert table.blank.tolist() == [False, True, False] and table.rows(np.array([1])).cut.tolist() == [True]


def test_long_documents_fail_after_those_before(tokenizer: Tokenizer) -> None:
    documents = [Document("d1", "rome"), Document("d2", "rome " * 50), Document("d3", "rome")]
    groups = token_groups(documents, tokenizer, 1 << 30, LongDocuments("fail"))
    assert [document.id for document in next(groups).documents] == ["d1"]
    with pytest.raises(InputError, match="'d2' is longer"):
        next(groups)
