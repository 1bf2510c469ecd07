"""Documents without an id, and ids and metadata of other types, in every method of `Index`."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from tests.index.quick import Quick

UUID = uuid.UUID(int=7)
DAY = datetime.date(1905, 6, 30)


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    return citadel.Index.create(Quick(tmp_path / "i"), model="bm25")


def test_documents_without_ids_get_one(index: citadel.Index) -> None:
    added = index.add([{"text": "one"}, {"_id": "d2", "text": "two"}, {"text": "three", "year": 3}])
    assert added == 3 and type(added) is citadel.AddedCount
    first, third = added.generated_ids
    assert list(index.commit().ids()) == [first, "d2", third]
    document = index.get(third)
    assert document is not None and document.text == "three" and document.metadata == {"year": 3}
    assert index.search("one").ids == [first]


def test_a_stream_keeps_generated_ids_only(index: citadel.Index) -> None:
    added = index.add({"id": f"d{n}", "text": "a"} for n in range(100))
    assert added == 100 and added.generated_ids == [] and (added.cut, added.limit) == (0, None)


def test_a_null_id_is_refused(index: citadel.Index) -> None:
    with pytest.raises(citadel.InputError, match="not null"):
        index.add([{"id": None, "text": "a"}])


def test_vectors_without_ids_get_one(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "v"), fields={"semantic": 2}, fingerprint="m")
    added = index.add_vectors([{"semantic": [0, 1]}, {"id": UUID, "semantic": [1, 0], "day": DAY}])
    assert added == 2 and list(index.commit().ids()) == [*added.generated_ids, str(UUID)]
    assert index.add_vectors({"semantic": [1, 1]}).generated_ids > added.generated_ids
    document = index.get(UUID)
    assert document is not None and document.metadata == {"day": "1905-06-30"}


@pytest.mark.parametrize(
    "ids", [[UUID, DAY], np.array(["a", "b"]), np.array([1, 2]), np.array([DAY, DAY + datetime.timedelta(1)])]
)
def test_arrays_of_ids(ids: Any, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "v"), fields={"semantic": 2}, fingerprint="m")
    index.add_vectors({"ids": ids, "semantic": np.eye(2, dtype=np.float32)})
    index.commit()
    assert all(id in index and index.get(id) is not None for id in ids)
    assert index.delete(ids) == 2


@pytest.mark.parametrize("id", [UUID, DAY, np.int64(7), np.str_("d7")], ids=repr)
def test_every_method_takes_such_an_id(id: Any, index: citadel.Index) -> None:
    index.add([{"id": id, "text": "a"}, {"id": "other", "text": "a"}])
    index.commit()
    assert id in index and index.get(id) is not None
    assert index.update_metadata(id, {"day": DAY, "n": np.int8(3), "old": None}) == 1
    assert index.update_metadata([id], {"owner": UUID}) == 1
    document = index.get(id)
    assert document is not None
    assert document.metadata == {"day": "1905-06-30", "n": 3, "owner": str(UUID)}
    assert index.count({"owner": UUID, "day": DAY, "n": np.int64(3)}) == 1
    assert index.delete(id) == 1 and list(index.commit().ids()) == ["other"]


def test_dates_are_equal_in_filters(index: citadel.Index) -> None:
    dates = {
        "date": DAY,
        "time": datetime.datetime(2024, 5, 17, 12),
        "day64": np.datetime64("2024-05-17"),
        "ns64": np.datetime64("2024-05-17T12:00:00.5", "ns"),
    }
    index.add([{"text": "a", **dates}])
    index.commit()
    assert [index.count({name: date}) for name, date in dates.items()] == [1] * 4
    assert index.count({"ns64": {"$gt": dates["time"]}}) == 1


@pytest.mark.parametrize(
    "other", [None, 1.5, True, b"d1", [], object()], ids=lambda value: type(value).__name__
)
def test_no_document_has_an_id_of_another_type(other: object, index: citadel.Index) -> None:
    assert other not in index


def test_open_or_create_checks_its_options(tmp_path: Path) -> None:
    citadel.Index.open_or_create(tmp_path / "i", model="bm25")
    with pytest.raises(TypeError, match="modle"):
        citadel.Index.open_or_create(tmp_path / "i", modle="bm25")
    with pytest.raises(citadel.UsageError, match="keeps an existing index"):
        citadel.Index.open_or_create(tmp_path / "i", overwrite=True)


@pytest.mark.parametrize("limit", [-1, True, 1.5])
def test_limit_of_facets_is_checked(limit: Any, index: citadel.Index) -> None:
    with pytest.raises(citadel.UsageError, match="limit must be a whole number"):
        index.facets("year", limit=limit)
