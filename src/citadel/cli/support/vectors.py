"""Arrays in .npz files: the fields of a corpus of vectors, and queries for `search --vectors`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from citadel.errors import InputError
from citadel.index.npz import open_npz
from citadel.index.npz_corpus import NAMES

_QUERY_ARRAYS = ("keys", "weights", "vectors", "semantic")
VectorQuery = dict[str, Any]  # the arguments of Searcher.search_vectors


def read_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of an .npz corpus; reads only headers."""
    with open_npz(path, NAMES) as npz:
        return {name: member.shape for name, member in npz.members.items()}


def find_fields(path: str, router: str | None) -> tuple[str, dict[str, int]]:
    """Return the given router, or one that fits an .npz corpus, and the dimension of each field."""
    shapes = read_shapes(path)
    router = router or _likely_router(shapes)
    fields = {}
    if router == "sparse":
        fields["lexical"] = 0
    elif router != "none" and "vectors" in shapes:
        fields["lexical"] = _width(shapes, "vectors", path)
    if "semantic" in shapes:
        fields["semantic"] = _width(shapes, "semantic", path)
    if not fields:
        raise InputError("no array named vectors, keys or semantic in this file: rename the arrays", path)
    return router, fields


def _likely_router(shapes: dict[str, tuple[int, ...]]) -> str:
    if "vectors" in shapes:
        return "dynamic" if "keys" in shapes else "all_to_all"
    return "sparse" if "keys" in shapes else "none"


def _width(shapes: dict[str, tuple[int, ...]], name: str, path: str) -> int:
    if len(shapes[name]) != 2:
        raise InputError(f"{name} must have 2 dimensions, not {len(shapes[name])}", path)
    return shapes[name][1]


def read_vector_queries(path: str) -> list[tuple[str, VectorQuery]]:
    """Return (id, arrays) of each query; without `query_ids` the file is one query."""
    with open_npz(path, (*_QUERY_ARRAYS, "query_ids", "offsets")) as npz:
        arrays = {name: npz.read(name) for name in npz.members}
    if not any(name in arrays for name in _QUERY_ARRAYS):
        raise InputError("no query in this file: give keys, weights and vectors, or semantic", path)
    if "query_ids" not in arrays:
        return [("1", {name: arrays[name] for name in _QUERY_ARRAYS if name in arrays})]
    return _split(arrays, path)


def _split(arrays: dict[str, Any], path: str) -> list[tuple[str, VectorQuery]]:
    ids = [str(id) for id in arrays["query_ids"].reshape(-1).tolist()]
    if len(set(ids)) != len(ids):
        raise InputError("duplicate query id: give each query its own id", path)
    rows: dict[str, Any] = {name: arrays[name] for name in ("keys", "weights", "vectors") if name in arrays}
    offsets = _offsets(arrays.get("offsets"), len(ids), rows, path)
    semantic = arrays.get("semantic")
    if semantic is not None and len(semantic) != len(ids):
        raise InputError(f"{len(semantic)} semantic vectors for {len(ids)} queries", path)
    queries: list[tuple[str, VectorQuery]] = []
    for number, id in enumerate(ids):
        query = {name: array[offsets[number] : offsets[number + 1]] for name, array in rows.items()}
        queries.append((id, query if semantic is None else query | {"semantic": semantic[number]}))
    return queries


def _offsets(given: Any, count: int, rows: dict[str, Any], path: str) -> list[int]:
    """Validate the offsets, which split the rows into queries."""
    lengths = {np.size(array) if np.ndim(array) < 2 else len(array) for array in rows.values()}
    if not rows:
        return [0] * (count + 1)
    if given is None or len(lengths) != 1:
        raise InputError(
            "several queries need offsets, and keys, weights and vectors of the same length", path
        )
    offsets: list[int] = given.reshape(-1).tolist()
    is_sorted = all(isinstance(left, int) and left <= right for left, right in itertools.pairwise(offsets))
    (length,) = lengths
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != length or not is_sorted:
        raise InputError(f"offsets must be {count + 1} integers in ascending order, from 0 to {length}", path)
    return offsets
