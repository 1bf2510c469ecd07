"""Arrays in .npz files: which fields a corpus of vectors has, and the queries of `search --vectors`."""

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
    """The shape of each array of an .npz corpus, from the headers alone."""
    with open_npz(path, NAMES) as npz:
        return {name: member.shape for name, member in npz.members.items()}


def find_fields(path: str, router: str | None) -> tuple[str, dict[str, int]]:
    """The router that fits an .npz corpus, or the one asked for, and its fields' dimensions."""
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
        raise InputError("neither vectors, nor keys, nor semantic vectors in this file: name the arrays so", path)
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
    """(id, arrays) of each query: one without `query_ids`, else as many as those, cut at `offsets`."""
    with open_npz(path, (*_QUERY_ARRAYS, "query_ids", "offsets")) as npz:
        arrays = {name: npz.read(name) for name in npz.members}
    if not any(name in arrays for name in _QUERY_ARRAYS):
        raise InputError("no query in this file: give keys, weights and vectors, or semantic", path)
    if "query_ids" not in arrays:
        return [("1", {name: arrays[name] for name in _QUERY_ARRAYS if name in arrays})]
    return _cut(arrays, path)


def _cut(arrays: dict[str, Any], path: str) -> list[tuple[str, VectorQuery]]:
    ids = [str(id) for id in arrays["query_ids"].reshape(-1).tolist()]
    if len(set(ids)) != len(ids):
        raise InputError("a query id stands twice: give each query its own id", path)
    rows: dict[str, Any] = {name: arrays[name] for name in ("keys", "weights", "vectors") if name in arrays}
    offsets = _offsets(arrays.get("offsets"), len(ids), rows, path)
    semantic = arrays.get("semantic")
    if semantic is not None and len(semantic) != len(ids):
        raise InputError(f"{len(semantic)} semantic vectors for {len(ids)} queries", path)
    queries: list[tuple[str, VectorQuery]] = []
    for place, id in enumerate(ids):
        own = {name: array[offsets[place] : offsets[place + 1]] for name, array in rows.items()}
        queries.append((id, own if semantic is None else own | {"semantic": semantic[place]}))
    return queries


def _offsets(given: Any, count: int, rows: dict[str, Any], path: str) -> list[int]:
    """Where each query's rows begin and end, checked."""
    lengths = {np.size(array) if np.ndim(array) < 2 else len(array) for array in rows.values()}
    if not rows:
        return [0] * (count + 1)
    if given is None or len(lengths) != 1:
        raise InputError("several queries need offsets, and keys, weights and vectors of one length", path)
    offsets: list[int] = given.reshape(-1).tolist()
    rising = all(isinstance(left, int) and left <= right for left, right in itertools.pairwise(offsets))
    (length,) = lengths
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != length or not rising:
        raise InputError(f"offsets must rise from 0 to {length} in {count + 1} whole numbers", path)
    return offsets
