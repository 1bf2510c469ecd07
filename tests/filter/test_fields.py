"""The kinds of fields from stored documents are those that their columns give."""

from __future__ import annotations

from typing import Any

import pytest

from citadel.filter.build import ColumnsBuilder
from citadel.filter.fields import KINDS, FieldKinds, describe_fields, field_kinds

VALUES: dict[str, list[Any]] = {
    "number": [1, 2.5, None],
    "boolean": [True, False],
    "string": ["2024-05-17", "x"],
    "date": ["2024-05-17", "2024-05-17T12:00:00Z"],
    "list": [["a"], []],
    "nested": [{"a": 1}, [1], 1 << 70],
    "mixed": [1, "2024-05-17"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_the_same_from_documents_and_from_columns(kind: str) -> None:
    documents = [{"f": value} for value in VALUES[kind]]
    builder = ColumnsBuilder()
    for document in documents:
        builder.add(document)
    columns = builder.finish()
    from_columns = {name: FieldKinds(*columns.kinds(name)) for name in columns.names}
    from_documents = field_kinds(documents)
    assert describe_fields([from_columns]) == describe_fields([from_documents]) == {"f": kind}
    apart = [field_kinds([document]) for document in documents]
    assert describe_fields(apart) == {"f": kind}


def test_fields_keep_the_order_of_first_use() -> None:
    assert list(describe_fields([field_kinds([{"b": 1}, {"a": 1}]), field_kinds([{"c": 1, "a": "x"}])])) == [
        "b",
        "a",
        "c",
    ]


def test_fields_without_a_value_or_with_a_long_name_are_not_listed() -> None:
    assert field_kinds([{"a": None, "x" * 1001: 1}]) == {}
    assert len(field_kinds([{f"f{n}": n for n in range(1500)}])) == 1000
