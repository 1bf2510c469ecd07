"""Ids for documents that have none."""

from __future__ import annotations

from citadel.text.new_ids import NewIds, content_id
from citadel.text.parse import check_id


def test_ids_of_a_call_are_unique_and_sorted() -> None:
    new = NewIds()
    ids = [new() for _ in range(5000)]
    assert ids == sorted(set(ids)) == new.made
    assert {len(check_id(id)) for id in ids} == {24}


def test_ids_of_different_calls_differ() -> None:
    assert len({NewIds()() for _ in range(5000)}) == 5000


def test_a_full_counter_carries() -> None:
    new = NewIds()
    new._next |= (1 << 24) - 1
    assert new() < new()


def test_an_id_from_content_repeats() -> None:
    assert content_id("a") == content_id("a") != content_id("b")
    assert len(check_id(content_id("é"))) == 24
