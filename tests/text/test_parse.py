"""Validation of documents given as Python dicts."""

from __future__ import annotations

import pytest

from citadel.errors import InputError
from citadel.text.parse import check_document, make_document
from citadel.types import Document


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": "1", "text": "a", "m": float("nan")}, "metadata 'm' is nan"),
        ({"id": "1", "text": "a", "m": {1: 2}}, "a name inside metadata 'm' must be a string"),
        ({"id": "1", "text": "a", 7: 2}, "a metadata name must be a string"),
        ({"id": "1", "text": "a", "m": {1, 2}}, "metadata 'm' must be JSON, not set"),
        ({"id": "1", "text": b"a"}, "text must be a string, not bytes"),
        ({"id": "1", "text": "a", "m": 1 << 2000}, "more than 1024 bits"),
        ({"id": 1 << 2000, "text": "a"}, "the id is longer"),
    ],
)
def test_invalid_dicts_are_rejected(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make_document(fields)


def test_self_referential_metadata_is_rejected() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InputError, match="nested deeper"):
        check_document(Document("1", "a", metadata={"m": loop}))
