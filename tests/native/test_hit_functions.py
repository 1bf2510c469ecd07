"""Native helpers of a query: planning rows, the first passage of each document, ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import citadel
from citadel._native import first_of_each, plan_rows, read_ids
from citadel.errors import CorruptIndexError
from citadel.search.plan import _plan_any, _plan_arrays
from citadel.settings import Field, Settings

SETTINGS = Settings("dynamic", fingerprint="test", lexical=Field(4), semantic=Field(3))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.5, 3e38])), max_size=12), st.data())
def test_native_plan_equals_the_general_one(rows: list[tuple[int, float]], data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    keys = np.array([key for key, _ in rows], np.uint32)
    weights = np.array([weight for _, weight in rows], np.float32)
    vectors = random.uniform(-1, 1, (len(rows), 4)).astype(np.float32)
    semantic = random.standard_normal(3).astype(np.float32) if data.draw(st.booleans()) else None
    fast = _plan_arrays(SETTINGS, keys, weights, vectors, semantic)
    general = _plan_any(SETTINGS, keys, weights, vectors, semantic)
    assert fast is not None
    assert fast.keys.tobytes() == general.keys.tobytes()
    assert fast.weights.tobytes() == general.weights.tobytes()
    assert fast.vectors is not None and general.vectors is not None
    assert fast.vectors.shape == general.vectors.shape and fast.vectors.tobytes() == general.vectors.tobytes()
    assert fast.semantic is semantic


def plan(arrays: dict[str, Any]) -> Any:
    return plan_rows(**arrays, dimension=4, semantic_dimension=3)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": np.ones(3, np.float32)},
        {"vectors": np.ones((2, 5), np.float32)},
        {"vectors": None},
        {"vectors": np.full((2, 4), np.nan, np.float32)},
        {"vectors": np.full((2, 4), 3e38, np.float32), "weights": np.full(2, 9, np.float32)},
        {"weights": np.array([1, np.inf], np.float32)},
        {"semantic": np.ones(4, np.float32)},
        {"semantic": np.full(3, np.inf, np.float32)},
    ],
)
def test_rows_that_do_not_fit_have_no_native_plan(change: dict[str, object]) -> None:
    arrays: dict[str, object] = {
        "keys": np.array([2, 1], np.uint32),
        "weights": np.ones(2, np.float32),
        "vectors": np.ones((2, 4), np.float32),
        "semantic": None,
    }
    assert plan(arrays) is not None
    assert plan(arrays | change) is None


def test_other_types_have_no_native_plan() -> None:
    with pytest.raises(TypeError):
        plan(
            {
                "keys": np.zeros(1, np.int64),
                "weights": np.ones(1, np.float32),
                "vectors": np.ones((1, 4), np.float32),
                "semantic": None,
            }
        )
    assert _plan_arrays(SETTINGS, [1], [1.0], [[1.0] * 4], None) is None


def test_an_id_outside_its_section_is_damage(tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index", model="bm25") as index:
        index.add([{"id": "d1", "text": "fox"}])
        [segment] = index.commit().searcher().snapshot.segments
    segment.ids([0])
    octets = np.frombuffer(b"d1", np.uint8)
    segment.id_table._arrays = np.array([9, 1], np.uint64), octets
    with pytest.raises(CorruptIndexError, match="an id lies outside the section"):
        segment.ids([0])


@given(st.lists(st.integers(0, 9)), st.integers(0, 12))
def test_first_of_each(values: list[int], limit: int) -> None:
    expected = sorted({value: -i for i, value in reversed(list(enumerate(values)))}.values(), reverse=True)
    assert first_of_each(np.array(values, np.int64), limit).tolist() == [-i for i in expected][:limit]


def test_ids_are_read_by_number() -> None:
    names = ["a", "", "süß", "d" * 500]
    octets = np.frombuffer("".join(names).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(name.encode()) for name in names)]).astype(np.uint64)
    numbers = np.array([3, 0, 2, 2, 1] * 20, np.int64)
    assert read_ids(offsets, octets, numbers) == [names[number] for number in numbers]
    for wrong in (-1, 4, 2**62, -(2**63)):
        with pytest.raises(IndexError):
            read_ids(offsets, octets, np.array([0, wrong], np.int64))
    with pytest.raises(UnicodeDecodeError):
        read_ids(np.array([0, 3], np.uint64), octets, np.zeros(1, np.int64))
    for forged in ([0, 2**40], [5, 1], [2**40, 2**40 + 1]):
        with pytest.raises(IndexError):
            read_ids(np.array(forged, np.uint64), octets, np.zeros(1, np.int64))
