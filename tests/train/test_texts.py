"""Lookup of ids by hash agrees with a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citadel.train.ragged import Ragged
from citadel.train.texts import ABSENT, IdIndex, TextStore
from citadel.train.tokens import twins

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


@given(st.lists(TEXT, min_size=1, unique=True), st.lists(TEXT))
def test_rows_of_ids(known: list[str], asked: list[str]) -> None:
    rows = {id: row for row, id in enumerate(known)}
    assert IdIndex(TextStore(known)).rows([*known, *asked]).tolist() == [
        rows.get(id, ABSENT) for id in [*known, *asked]
    ]


@given(st.lists(TEXT, min_size=1))
def test_the_first_repeated_id(ids: list[str]) -> None:
    wanted = next((row for row, id in enumerate(ids) if id in ids[:row]), ABSENT)
    assert IdIndex(TextStore(ids)).repeated() == wanted


@given(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1))
def test_twins(rows: list[list[int]]) -> None:
    assert twins(Ragged.of(rows)).tolist() == [rows.index(row) for row in rows]
