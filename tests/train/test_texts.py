"""Look-up of ids by hash agrees with a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citadel.train.ragged import Ragged
from citadel.train.texts import ABSENT, IdIndex, TextStore
from citadel.train.tokens import twins

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


@given(st.lists(TEXT, min_size=1, unique=True), st.lists(TEXT))
def test_id_index_matches_a_dict(known: list[str], queried: list[str]) -> None:
    rows = {id: row for row, id in enumerate(known)}
    assert IdIndex(TextStore(known)).rows([*known, *queried]).tolist() == [
        rows.get(id, ABSENT) for id in [*known, *queried]
    ]


@given(st.lists(TEXT, min_size=1))
def test_first_repeated_id(ids: list[str]) -> None:
    expected = next((row for row, id in enumerate(ids) if id in ids[:row]), ABSENT)
    assert IdIndex(TextStore(ids)).repeated() == expected


@given(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1))
def test_twins_are_first_equal_rows(rows: list[list[int]]) -> None:
    assert twins(Ragged.of(rows)).tolist() == [rows.index(row) for row in rows]
