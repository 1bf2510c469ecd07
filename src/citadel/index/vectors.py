"""Turn given vectors, in any supported form, into batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.index.npz_corpus import NAMES, read_slices, slice_bytes
from citadel.settings import Settings
from citadel.text.parse import check_document, make_document
from citadel.text.values import plain_value
from citadel.types import Document, Floats, VectorBatch

NewId = Callable[[], str]
_LARGEST_KEY = (1 << 32) - 1
_KEYS = "whole numbers from 0 to 2³² − 1"
ANY = 0  # the key of every token with the all-to-all router
_ROWS = ("keys", "weights", "vectors", "semantic")  # of one document; other fields are text and metadata
_DOCUMENTS_PER_BATCH = 1024
_POSTINGS_PER_BATCH = 131_072


def batches(
    given: Any, settings: Settings, memory: int, new_id: NewId | None = None
) -> Iterator[VectorBatch]:
    """Batches from an `.npz` file, a mapping of arrays, or an iterable of mappings per document.

    `new_id` makes the id of a mapping without one.
    """
    if isinstance(given, (str, os.PathLike)):
        for first, arrays in read_slices(str(given), settings, memory):
            batch = _from_arrays(arrays, settings, str(given), first)
            if len(batch):
                yield batch
    elif isinstance(given, Mapping):
        is_many = "ids" in given
        batch = _from_arrays(given, settings, "add_vectors") if is_many else _join([given], settings, new_id)
        yield from _pieces(batch, slice_bytes(memory))
    else:
        yield from _grouped(given, settings, slice_bytes(memory), new_id)


def _pieces(batch: VectorBatch, size: int) -> Iterator[VectorBatch]:
    """Split a large batch, to bound the memory for encoding it."""
    start = 0
    postings, documents = (
        maximum if rows is None else min(maximum, size // (4 * max(rows.shape[1], 1)))
        for rows, maximum in (
            (batch.vectors, _POSTINGS_PER_BATCH),
            (batch.semantic, 16 * _DOCUMENTS_PER_BATCH),
        )
    )
    while start < len(batch):
        limit = np.searchsorted(batch.offsets, batch.offsets[start] + postings, side="right") - 1
        stop = int(min(max(limit, start + 1), start + documents, len(batch)))
        yield batch.part(start, stop)
        start = stop


def _grouped(
    given: Iterable[Mapping[str, Any]], settings: Settings, size: int, new_id: NewId | None
) -> Iterator[VectorBatch]:
    waiting: list[Mapping[str, Any]] = []
    for item in given:
        if not isinstance(item, Mapping):
            raise InputError(
                f"add_vectors takes mappings with id, keys, weights and vectors, not {type(item).__name__}"
            )
        waiting.append(item)
        if len(waiting) == _DOCUMENTS_PER_BATCH:
            yield from _pieces(_join(waiting, settings, new_id), size)
            waiting = []
    if waiting:
        yield from _pieces(_join(waiting, settings, new_id), size)


def _document(source: Mapping[str, Any], new_id: NewId | None) -> Document:
    """The document of a mapping, checked as in `Index.add`; text and title are optional."""
    fields = {name: value for name, value in source.items() if name not in _ROWS}
    return make_document({"text": "", **fields}, new_id)


def _array(value: Any, dtype: Any, dimensions: int, what: str, where: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
        if (
            dtype is np.uint32
            and array.size
            and (array.dtype.kind not in "iu" or int(array.min()) < 0 or int(array.max()) > _LARGEST_KEY)
        ):
            raise ValueError(f"keys are {_KEYS}")
        with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes infinity, refused later
            array = array.astype(dtype, copy=False)
    except (ValueError, TypeError) as error:
        raise InputError(f"{what} cannot be read as numbers ({error})", where) from error
    if array.ndim != dimensions:
        raise InputError(f"{what} must have {dimensions} dimension(s), not {array.ndim}", where)
    return array


def _rows(
    source: Mapping[str, Any], settings: Settings, where: str
) -> tuple[NDArray[np.uint32], Floats, Floats | None]:
    """Keys [P], weights [P] and vectors [P, d] of a document or batch; keys [T, L] are flattened."""
    vectors = _vectors(source, settings, where)
    if settings.lexical is None and settings.router == "none":
        return np.zeros(0, np.uint32), np.zeros(0, np.float32), None
    if settings.router in ("all_to_all", "centroid"):
        assert vectors is not None
        return np.full(len(vectors), ANY, np.uint32), np.ones(len(vectors), np.float32), vectors
    if source.get("keys") is None:
        raise InputError("keys are missing", where)
    shape = np.shape(source["keys"])
    keys = _array(np.reshape(source["keys"], -1), np.uint32, 1, "keys", where)
    given = source.get("weights")
    weights = (
        np.ones(len(keys), np.float32)
        if given is None
        else _array(np.reshape(given, -1), np.float32, 1, "weights", where)
    )
    if vectors is not None and len(shape) == 2 and shape[0] == len(vectors):
        vectors = np.repeat(vectors, shape[1], axis=0)
    if len(weights) != len(keys) or (vectors is not None and len(vectors) != len(keys)):
        raise InputError(
            f"{len(keys)} keys, {len(weights)} weights and {_length(vectors)} vectors differ in length",
            where,
        )
    return keys, weights, vectors


def _length(vectors: Floats | None) -> int:
    return 0 if vectors is None else len(vectors)


def _vectors(source: Mapping[str, Any], settings: Settings, where: str) -> Floats | None:
    if settings.lexical is None or settings.lexical.dimension == 0:
        return None
    if source.get("vectors") is None:
        raise InputError("vectors are missing", where)
    if np.size(source["vectors"]) == 0:  # no postings, possibly given as []
        return np.zeros((0, settings.lexical.dimension), np.float32)
    vectors = _array(source["vectors"], np.float32, 2, "vectors", where)
    if vectors.shape[1] != settings.lexical.dimension and len(vectors):
        raise InputError(
            f"vectors have dimension {vectors.shape[1]}, the index has {settings.lexical.dimension}", where
        )
    return vectors.reshape(len(vectors), settings.lexical.dimension)


def _semantic(value: Any, settings: Settings, dimensions: int, where: str) -> Floats | None:
    if settings.semantic is None:
        if value is not None:
            raise InputError("a semantic vector is given, but the index has no semantic field", where)
        return None
    if value is None:
        raise InputError("the semantic vector is missing", where)
    array = _array(value, np.float32, dimensions, "semantic", where)
    if array.shape[-1] != settings.semantic.dimension:
        expected = settings.semantic.dimension
        raise InputError(
            f"the semantic vector has dimension {array.shape[-1]}, the index has {expected}", where
        )
    return array


def _join(items: Sequence[Mapping[str, Any]], settings: Settings, new_id: NewId | None = None) -> VectorBatch:
    documents = [_document(item, new_id) for item in items]
    rows = [
        _rows(item, settings, f"document {document.id!r}")
        for item, document in zip(items, documents, strict=True)
    ]
    semantic = [
        _semantic(item.get("semantic"), settings, 1, f"document {document.id!r}")
        for item, document in zip(items, documents, strict=True)
    ]
    dense = [vectors for _, _, vectors in rows if vectors is not None]
    return VectorBatch(
        documents,
        np.concatenate([[0], np.cumsum([len(keys) for keys, _, _ in rows])]).astype(np.int64),
        np.concatenate([keys for keys, _, _ in rows]),
        np.concatenate([weights for _, weights, _ in rows]),
        np.concatenate(dense) if dense else None,
        None
        if settings.semantic is None
        else np.stack([vector for vector in semantic if vector is not None]),
    )


def _from_arrays(arrays: Mapping[str, Any], settings: Settings, where: str, first: int = 0) -> VectorBatch:
    """A batch from ids [n], offsets [n + 1], keys [P], weights [P], vectors [P, d], semantic [n, s]."""
    source = {name: arrays[name] for name in NAMES if name in arrays}
    documents = _documents(source, where, first)
    offsets = _array(source.get("offsets", [0] * (len(documents) + 1)), np.int64, 1, "offsets", where)
    _check_keys(source.get("keys"), offsets, documents, where)
    keys, weights, vectors = _rows(source, settings, where)
    if (
        len(offsets) != len(documents) + 1
        or offsets[0]
        or offsets[-1] != len(keys)
        or (np.diff(offsets) < 0).any()
    ):
        raise InputError(f"offsets must rise from 0 to {len(keys)} in {len(documents) + 1} steps", where)
    semantic = _semantic(source.get("semantic"), settings, 2, where)
    if semantic is not None and len(semantic) != len(documents):
        raise InputError(f"{len(semantic)} semantic vectors for {len(documents)} documents", where)
    return VectorBatch(documents, offsets, keys, weights, vectors, semantic)


def _check_keys(keys: Any, offsets: NDArray[np.int64], documents: Sequence[Document], where: str) -> None:
    """Raise InputError for an invalid key, with the id of its document."""
    given = np.reshape(np.zeros(0, np.uint32) if keys is None else keys, -1)
    if given.dtype.kind not in "iu" or given.dtype == np.uint32 or not documents:
        return
    bad = np.flatnonzero((given < 0) | (given > _LARGEST_KEY))
    if len(bad):
        position = int(np.searchsorted(offsets, bad[0], side="right")) - 1
        owner = documents[min(max(position, 0), len(documents) - 1)].id
        raise InputError(f"document {owner!r}: keys are {_KEYS}, not {given[bad[0]]}", where)


def _documents(source: Mapping[str, Any], where: str, first: int) -> list[Document]:
    """The documents of a batch; errors give a document's number, because its id may be invalid."""
    ids = _texts(source.get("ids", []), None, "ids", where)
    titles, texts = (_texts(source.get(name), len(ids), name, where) for name in ("titles", "texts"))
    documents = [Document(*fields) for fields in zip(ids, texts, titles, strict=True)]
    for number, document in enumerate(documents, first + 1):
        try:
            check_document(document)
        except InputError as error:
            raise InputError(f"document {number}: {error.reason}", where) from None
    return documents


def _texts(value: Any, count: int | None, what: str, where: str) -> list[str]:
    if value is None:
        return [""] * (count or 0)
    try:
        array = np.asarray(value).reshape(-1)
        letters = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
        items = letters.tolist() if letters.dtype.kind == "U" else map(plain_value, letters)
        texts = [str(text) for text in items]
    except ValueError as error:  # invalid UTF-8
        raise InputError(f"{what} cannot be read as text ({error})", where) from None
    if count is not None and len(texts) != count:
        raise InputError(f"{len(texts)} {what} for {count} documents", where)
    return texts
