"""Python values as JSON has them."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any

import numpy as np
import pytest

from citadel.errors import InputError, UsageError
from citadel.text.parse import check_document, known_id, known_ids, make_document
from citadel.text.values import json_default, plain_value
from citadel.types import Document

UUID = uuid.UUID("2f4e401b-ef70-4d97-a7df-570ac61941b7")
NOON = datetime.datetime(2024, 5, 17, 12, tzinfo=datetime.UTC)
VALUES = [
    (UUID, str(UUID)),
    (datetime.date(2024, 5, 17), "2024-05-17"),
    (NOON, "2024-05-17T12:00:00+00:00"),
    (np.datetime64("2024-05-17"), "2024-05-17"),
    (np.datetime64("2024-05-17T12:00:00.5", "ns"), "2024-05-17T12:00:00.500000"),
    (np.str_("d1"), "d1"),
    (np.bool_(True), True),
    (np.int64(-7), -7),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.longdouble(0.25), 0.25),
    (np.array(7), 7),
    (np.array(["a", "b"]), ["a", "b"]),
    (np.array([[1, 2], [3, 4]], np.int8), [[1, 2], [3, 4]]),
    (np.array(["2024-05-17"], "datetime64[ns]"), ["2024-05-17T00:00:00"]),
    ([UUID, (np.int8(1), None)], [str(UUID), [1, None]]),
    ({"day": NOON.date(), "x": {"n": np.float16(2)}}, {"day": "2024-05-17", "x": {"n": 2.0}}),
]


@pytest.mark.parametrize(("given", "stored"), VALUES, ids=lambda value: repr(value)[:40])
def test_metadata_is_stored_as_json(given: object, stored: object) -> None:
    value = make_document({"id": "d1", "text": "a", "m": given}).metadata["m"]
    assert value == stored and type(value) is type(stored)
    assert json.loads(json.dumps(value)) == stored
    assert json.loads(json.dumps(given, default=json_default)) == stored  # as the client sends it


@pytest.mark.parametrize(
    "given",
    [
        np.timedelta64(3, "s"),
        np.datetime64("NaT"),
        np.datetime64(10**15, "D"),  # beyond the year 9999
        np.complex64(1),
        np.bytes_(b"a"),
        np.void(b"a"),
        datetime.time(12),
        datetime.timedelta(1),
        b"a",
        {1},
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused_by_field_and_type(given: object) -> None:
    assert plain_value(given) is given
    with pytest.raises(InputError, match=rf"metadata 'm' must be JSON, not {type(given).__name__}"):
        make_document({"id": "d1", "text": "a", "m": given})
    with pytest.raises(InputError, match=type(given).__name__):
        json.dumps(given, default=json_default)


class NoDate(datetime.datetime):
    """Like pandas' NaT, a datetime that equals nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = datetime.datetime.__hash__


@pytest.mark.parametrize("given", [np.float32("nan"), np.array([np.inf]), NoDate(1, 1, 1)], ids=repr)
def test_missing_numbers_and_dates_are_refused(given: object) -> None:
    with pytest.raises(InputError, match="metadata 'm'"):
        make_document({"id": "d1", "text": "a", "m": given})


def test_an_array_that_contains_itself_is_refused() -> None:
    loop = np.empty(1, object)
    loop[0] = loop
    with pytest.raises(InputError, match="nested deeper"):
        make_document({"id": "d1", "text": "a", "m": loop})


IDS = [
    (UUID, str(UUID)),
    (datetime.date(2024, 5, 17), "2024-05-17"),
    (np.int64(7), "7"),
    (np.str_("d1"), "d1"),
    (np.datetime64("2024-05-17"), "2024-05-17"),
]


@pytest.mark.parametrize(("given", "stored"), IDS, ids=repr)
def test_ids_are_stored_as_strings(given: Any, stored: str) -> None:
    for id in (make_document({"id": given, "text": "a"}).id, check_document(Document(given, "a")).id):
        assert id == stored and type(id) is str
    assert known_id(given) == stored and known_ids(given) == known_ids([given]) == [stored]


def test_ids_may_be_an_array() -> None:
    assert known_ids(np.array(["d1", "d2"])) == ["d1", "d2"]
    assert known_ids(np.arange(2)) == ["0", "1"]
    assert known_ids(id for id in ["d1", 10**5000]) == ["d1"]  # no id has 5,000 digits


@pytest.mark.parametrize("bad", [None, 1.5, True, np.float64(2), b"d1", ["d1", None]], ids=repr)
def test_other_ids_are_refused(bad: object) -> None:
    with pytest.raises(UsageError, match="a document's id is a string or an integer, not "):
        known_ids(bad)


@pytest.mark.parametrize("bad", [None, 1.5, np.float64(2), b"d1", np.array(["d1"])], ids=repr)
def test_a_document_with_another_id_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="the id must be a string or an integer, not "):
        make_document({"id": bad, "text": "a"})


def test_texts_become_plain_strings() -> None:
    document = make_document({"id": "d1", "text": np.str_("a"), "title": np.str_("b")})
    assert type(document.text) is str and type(document.title) is str
