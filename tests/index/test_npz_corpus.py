"""A corpus of vectors in an .npz file: slices of any size, and errors before the first slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citadel import Index
from citadel.errors import InputError, ResourceError
from citadel.index import npz_corpus
from citadel.index.npz_corpus import read_slices
from citadel.index.vectors import batches
from citadel.settings import vector_settings
from citadel.types import VectorBatch
from tests.index.quick import Quick

SETTINGS = vector_settings({"lexical": 4, "semantic": 2}, None, "x", None)
# Document d1 has postings with keys 3 and 7, d2 none, d3 one with key 7.
ARRAYS: dict[str, Any] = {
    "ids": np.array(["d1", "d2", "d3"]),
    "offsets": np.array([0, 2, 2, 3]),
    "keys": np.array([3, 7, 7], np.uint32),
    "weights": np.array([1, 1, 2], np.float32),
    "vectors": np.eye(3, 4, dtype=np.float32),
    "semantic": np.eye(3, 2, dtype=np.float32),
    "titles": np.array(["One", "Two", "Three"]),
    "texts": np.array(["first", "second", "third"]),
}


def save(path: Path, **change: Any) -> Path:
    """Save the arrays with changes; None drops one."""
    arrays = {name: array for name, array in (ARRAYS | change).items() if array is not None}
    np.savez(path, **arrays)
    return path


def joined(path: Path, memory: int) -> tuple[list[VectorBatch], dict[str, Any]]:
    """The batches of a file, and their concatenated contents."""
    parts = list(batches(path, SETTINGS, memory))
    return parts, {
        "documents": [document for batch in parts for document in batch.documents],
        "lengths": np.concatenate([np.diff(batch.offsets) for batch in parts]).tolist(),
        **{
            name: np.concatenate([getattr(batch, name) for batch in parts]).tolist()
            for name in ("keys", "weights", "vectors", "semantic")
        },
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    size=st.integers(1, 600),
    block=st.integers(1, 40),
)
def test_slices_of_any_size_have_the_same_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int], size: int, block: int
) -> None:
    postings, documents = sum(lengths), len(lengths)
    numbers = np.arange(4 * max(postings, documents), dtype=np.float32).reshape(-1, 4)
    path = save(
        tmp_path / "c.npz",
        ids=np.arange(documents),
        offsets=np.cumsum([0, *lengths], dtype=np.uint16),
        keys=np.arange(postings),
        weights=np.ones(postings, np.float16),
        vectors=np.asfortranarray(numbers[:postings]),
        semantic=numbers[:documents, :2],
        titles=None,
        texts=None,
    )
    monkeypatch.setattr(npz_corpus, "slice_bytes", lambda memory: size)
    monkeypatch.setattr(npz_corpus, "_DOCUMENT_BYTES", 1)
    monkeypatch.setattr(npz_corpus, "_OFFSETS_PER_BLOCK", block)
    parts, together = joined(path, 0)
    assert [document.id for document in together["documents"]] == [str(number) for number in range(documents)]
    assert together["lengths"] == lengths
    assert together["keys"] == list(range(postings))
    assert together["weights"] == [1.0] * postings
    assert together["vectors"] == numbers[:postings].tolist()
    assert together["semantic"] == numbers[:documents, :2].tolist()
    posting = max(8 + 2 + 16, 4 * 4 + 8)  # bytes per posting, at least as in fp32
    assert all(len(batch) == 1 or batch.offsets[-1] * posting <= size for batch in parts)


def test_slice_size_follows_memory_bound(tmp_path: Path) -> None:
    postings = 40_000  # of 16 + 8 bytes: 960 kB
    path = save(
        tmp_path / "c.npz",
        ids=np.arange(postings // 40).astype("U"),
        offsets=np.arange(0, postings + 1, 40),
        keys=np.arange(postings, dtype=np.uint32),
        weights=None,
        vectors=np.zeros((postings, 4), np.float32),
        semantic=np.zeros((postings // 40, 2), np.float32),
        titles=None,
        texts=None,
    )
    small, same = joined(path, 8 << 20)  # a slice is 256 kB
    large, wanted = joined(path, 1 << 30)
    assert (len(small), len(large)) == (4, 1)
    assert same == wanted


def test_several_keys_per_token(tmp_path: Path) -> None:
    keys, weights = np.array([[3, 4], [7, 8], [7, 9]]), np.array([[1, 0.5], [1, 0.5], [2, 1]])
    for order in (np.ascontiguousarray, np.asfortranarray):
        path = save(
            tmp_path / "c.npz", offsets=np.array([0, 4, 4, 6]), keys=order(keys), weights=order(weights)
        )
        _, together = joined(path, 0)
        assert together["keys"] == [3, 4, 7, 8, 7, 9]
        assert together["weights"] == [1, 0.5, 1, 0.5, 2, 1]
        assert together["vectors"] == np.repeat(np.eye(3, 4), 2, axis=0).tolist()


def test_byte_ids_are_utf_8(tmp_path: Path) -> None:
    _, together = joined(save(tmp_path / "c.npz", ids=np.array(["ä".encode(), b"b", b"c"])), 0)
    assert [document.id for document in together["documents"]] == ["ä", "b", "c"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ids": None}, "ids are missing"),
    ({"ids": np.array(["d1", "d2"])}, "3 titles for 2 documents"),
    ({"ids": np.array([["d1", "d2", "d3"]])}, "ids must have 1 dimension, not 2"),
    ({"texts": np.array(["first"])}, "1 texts for 3 documents"),
    ({"semantic": np.eye(4, 2)}, "4 semantic vectors for 3 documents"),
    ({"semantic": np.eye(3, 3)}, "semantic vector has dimension 3"),
    ({"semantic": None}, "semantic vector is missing"),
    ({"keys": None}, "keys are missing"),
    ({"vectors": None}, "vectors are missing"),
    ({"weights": np.ones(2)}, "3 keys, 2 weights, 3 vectors differ in length"),
    ({"vectors": np.eye(2, 4)}, "3 keys, 3 weights, 2 vectors differ in length"),
    ({"vectors": np.eye(3, 5)}, "vectors have dimension 5, the index has 4"),
    ({"vectors": np.array([["a"] * 4] * 3)}, "vectors cannot be read as numbers"),
    ({"offsets": None}, "offsets must rise from 0 to 3 in 4 whole numbers"),
    ({"offsets": np.array([0, 2, 3])}, "offsets must rise"),
    ({"offsets": np.array([0, 2, 1, 3])}, "offsets must rise"),
    ({"offsets": np.array([0, -1, 2, 3])}, "offsets must rise"),
    ({"offsets": np.array([1, 2, 2, 3])}, "offsets must rise"),
    ({"offsets": np.array([0, 2, 2, 4])}, "offsets must rise"),
    ({"offsets": np.array([0, 1, 2, 2])}, "offsets must rise"),
    ({"offsets": np.array([0, 2, 2, 2**64 - 1], np.uint64)}, "offsets must rise"),
    ({"offsets": np.array([0.0, 2.0, 2.5, 3.0])}, "offsets must rise"),
    ({"offsets": np.array([[0, 2, 2, 3]])}, "offsets must rise"),
    (
        {"keys": np.array([[3, 4], [7, 8], [7, 9]]), "weights": None, "offsets": np.array([0, 2, 3, 6])},
        "multiples of 2",
    ),
    ({"keys": np.array([3, -7, 7])}, r"document 'd1': keys are whole numbers .*, not -7"),
    ({"keys": np.array([3, 7, 2**32])}, r"document 'd3': keys are whole numbers .*, not 4294967296"),
    ({"keys": np.array([3.0, 7.0, 7.5])}, "keys cannot be read as numbers"),
    ({"ids": np.array(["d1", "", "d3"])}, "document 2: the id is empty"),
    ({"ids": np.array(["d1", b"\xff", "d3"], "S")}, "ids cannot be read as text"),
    ({"texts": np.array([97, 0x110000, 98], np.uint32).view("<U1")}, "a string holds an invalid code point"),
    ({"texts": np.array(["a", "\ud800", "b"])}, "document 2: text holds half a surrogate pair"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_inconsistent_arrays_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save(tmp_path / "c.npz", **change)
    with pytest.raises(InputError, match=message) as caught:
        next(batches(path, SETTINGS, 0))
    assert str(caught.value).startswith(f"{path}: ")


NUMBERS: list[tuple[dict[str, Any], str]] = [
    ({"vectors": np.diag([1, 1, np.nan, 1])[:3]}, "document 'd3': the vectors hold NaN"),
    ({"vectors": np.diag([1e300, 1, 1, 1])[:3]}, "document 'd1': the vectors hold NaN or infinity"),
    ({"weights": np.array([1, -np.inf, 1])}, "document 'd1': the weights hold NaN or infinity"),
    ({"semantic": np.array([[1, 0], [np.nan, 0], [0, 1]])}, "document 'd2': the semantic vector hold NaN"),
]


@pytest.mark.parametrize(("change", "message"), NUMBERS)
def test_unstorable_numbers_name_their_document(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    index = Index.create(Quick(tmp_path / "idx"), fields={"lexical": 4, "semantic": 2}, fingerprint="x")
    with pytest.raises(InputError, match=message):
        index.add_vectors(save(tmp_path / "c.npz", **change))
    assert len(index.commit()) == 0


def test_document_larger_than_memory_is_refused(tmp_path: Path) -> None:
    postings = 800_000  # of 24 bytes: 19 MB
    path = save(
        tmp_path / "c.npz",
        offsets=np.array([0, 2, postings, postings]),
        keys=np.zeros(postings, np.uint32),
        weights=None,
        vectors=np.zeros((postings, 4), np.float32),
    )
    with pytest.raises(
        ResourceError, match=r"document 2 takes 18 MB, .* is 16 MB; give more memory"
    ) as caught:
        next(read_slices(str(path), SETTINGS, 32 << 20))
    assert caught.value.exit_code == 6
    assert len(list(read_slices(str(path), SETTINGS, 128 << 20))) == 3


def test_file_without_documents(tmp_path: Path) -> None:
    empty = {name: array[:0] for name, array in ARRAYS.items()} | {"offsets": np.array([0])}
    assert list(batches(save(tmp_path / "c.npz", **empty), SETTINGS, 0)) == []
    with pytest.raises(InputError, match="keys are missing"):
        list(batches(save(tmp_path / "c.npz", **empty | {"keys": None}), SETTINGS, 0))


@pytest.mark.parametrize("router", ["all_to_all", "sparse", "none"])
def test_unused_arrays_may_have_any_length(router: str, tmp_path: Path) -> None:
    unused = {
        "all_to_all": ["keys", "weights"],
        "sparse": ["vectors"],
        "none": ["keys", "weights", "vectors"],
    }[router]
    change: dict[str, Any] = dict.fromkeys(unused, np.zeros((7, 2)))
    lexical = {"all_to_all": {"lexical": 4}, "sparse": {"lexical": 0}, "none": {}}[router]
    chosen = vector_settings({**lexical, "semantic": 2}, router, "x", None)
    path = save(tmp_path / "c.npz", **change, **({"offsets": None} if router == "none" else {}))
    (batch,) = batches(path, chosen, 0)
    assert batch.offsets.tolist() == ([0, 0, 0, 0] if router == "none" else [0, 2, 2, 3])
