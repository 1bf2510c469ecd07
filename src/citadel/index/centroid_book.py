"""The centroids of an index and the bucket values of its residuals.

A token's vector is stored as the number of its nearest centroid and the difference to it: a length of one
byte and, per dimension, the number of a bucket. The buckets of the rotated difference are chosen along a
trellis (`trellis.py`); in indexes from before the trellis a dimension has the bucket in which the difference
falls. Centroids and bucket values are int8, so that all products are exact integers. With the codec int8 the
vector itself is stored, and no bucket is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.codebook import Codebook, read_codebook, write_codebook
from citadel.index.container import CitFile, CitWriter, FileRecord
from citadel.index.storage import Storage
from citadel.index.trellis import WINDOWS, windows_of
from citadel.routing.centroid import nearest_centroids
from citadel.settings import CENTROID_BITS, SUBVECTOR, Field
from citadel.types import Floats, Keys

MAX_CENTROIDS = 1 << 16  # a token's centroid takes two bytes
_EXACT_BELOW = 1 << 11  # centroids; a larger number is searched group by group
_GROUPS_PROBED = 10
_ROWS = 8_192  # vectors whose products are in memory at a time
_LARGEST_SCALE = 1e30
_SMALLEST_SQUARE = np.float32(1e-12)  # of a vector's length; below, its direction does not matter
_SMALLEST_ROOT = np.float32(1e-12)  # of a residual's mean square; below, its direction does not matter
_ALONG = 0.25  # weight of the error along a vector, per dimension


@dataclass(frozen=True)
class CentroidBook:
    """Centroids [K, d] as int8 codes with fp16 scales, and bucket values as int8 codes with one scale.

    Buckets are those of differences with a mean square of 1; `step` is that of the lengths. A column of
    buckets has the values after a state of the trellis, the bits before those of a dimension. A book from
    before the trellis has one state and borders between the buckets; one for int8 has one bucket, which is
    not used.

    >>> codes, scales = np.array([[127, 0], [0, 127]], np.int8), np.full(2, 1 / 127, np.float16)
    >>> buckets = np.array([[-64], [64]], np.int8)
    >>> book = CentroidBook(codes, scales, buckets, 0.01, np.zeros(1, np.float32), 0.1)
    >>> book.nearest(np.array([[0.1, 0.9]], np.float32)).tolist()
    [1]
    """

    codes: NDArray[np.int8]  # [K, d]
    scales: NDArray[np.float16]  # [K]
    buckets: NDArray[np.int8]  # [2^b, 2^(6 − b)]; ascending [2^b, 1] without a trellis
    bucket_scale: float
    cuts: Floats  # [2^b − 1], ascending: the borders of the buckets; none with a trellis
    step: float  # of the length of a residual
    sampled: int = 0

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dimension(self) -> int:
        return int(self.codes.shape[1])

    @property
    def bits(self) -> int:
        """Bits per dimension of a residual; 0 where vectors are stored as int8."""
        return len(self.buckets).bit_length() - 1

    @property
    def memory(self) -> int:
        """Bits before those of a dimension on which its value depends; 0 without a trellis."""
        return int(self.buckets.shape[1]).bit_length() - 1

    @cached_property
    def centroids(self) -> Floats:
        """The centroids [K, d]."""
        return self.codes.astype(np.float32) * self.scales.astype(np.float32)[:, None]

    @cached_property
    def values(self) -> Floats:
        """The values of all windows, the bits of a dimension above those before them."""
        return self.buckets.reshape(-1).astype(np.float32) * np.float32(self.bucket_scale)

    @cached_property
    def _rotated_centroids(self) -> Floats:
        return self._rotate(self.centroids)

    def _rotate(self, vectors: Floats) -> Floats:
        """Vectors as their residuals are coded."""
        from citadel._native import rotate

        return rotate(np.ascontiguousarray(vectors, np.float32)) if self.memory else vectors

    def nearest(self, vectors: Floats) -> Keys:
        """The nearest centroid of each vector [n]; of many, the nearest that a search by groups finds."""
        return self._search.nearest(vectors)

    @cached_property
    def _search(self) -> CentroidSearch:
        return CentroidSearch(self.codes, self.scales)

    def encode(self, vectors: Floats, keys: Keys) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The packed residuals [n, d · b / 8] of vectors under these centroids, and their lengths [n]."""
        parts = [
            self._encode(vectors[i : i + _ROWS], keys[i : i + _ROWS])
            for i in range(0, max(len(vectors), 1), _ROWS)
        ]
        return np.concatenate([codes for codes, _ in parts]), np.concatenate([scales for _, scales in parts])

    def _encode(self, vectors: Floats, keys: Keys) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        rows = self._rotate(vectors)
        residuals = rows - self._rotated_centroids[keys]
        roots = np.sqrt(np.einsum("nd,nd->n", residuals, residuals) / np.float32(self.dimension))[:, None]
        buckets = self._trellis(residuals, roots) if self.memory else self._between_cuts(residuals, roots)
        values = self.values[windows_of(buckets, self.bits, self.memory)]
        lengths = best_lengths(rows, residuals, values)
        codes = np.clip(np.rint(lengths / np.float32(self.step)), 0, 255).astype(np.uint8)
        return pack_buckets(buckets, self.bits), codes

    def _trellis(self, residuals: Floats, roots: Floats) -> NDArray[np.uint8]:
        from citadel._native import trellis_codes

        units = np.ascontiguousarray(residuals / np.maximum(roots, _SMALLEST_ROOT), np.float32)
        return trellis_codes(units, self.values, self.bits)

    def _between_cuts(self, residuals: Floats, roots: Floats) -> NDArray[np.uint8]:
        buckets = np.zeros(residuals.shape, np.uint8)
        for cut in self.cuts:
            buckets += residuals > cut * roots
        return buckets

    def window_codes(self, codes: NDArray[np.uint8]) -> NDArray[np.int8]:
        """The int8 bucket value of each dimension of packed codes [n, d]."""
        windows = windows_of(unpack_buckets(codes, self.bits), self.bits, self.memory)
        return self.buckets.reshape(-1)[windows]

    def lengths(self, scales: NDArray[np.uint8]) -> Floats:
        """The lengths of residuals [n], by which the bucket values are multiplied."""
        return scales.astype(np.float32) * np.float32(self.step)

    def decode(self, codes: NDArray[np.uint8], scales: NDArray[np.uint8], keys: Keys) -> Floats:
        """The vectors of packed residuals and their lengths under these centroids [n, d]."""
        values = self.window_codes(codes).astype(np.float32) * np.float32(self.bucket_scale)
        residuals = values * self.lengths(scales)[:, None]
        vectors: Floats = self.centroids[keys] + self._rotate(residuals)
        return vectors


def best_lengths(vectors: Floats, residuals: Floats, values: Floats) -> Floats:
    """The factor of the bucket values [n, d] with the smallest error of the vectors [n].

    An error along the vector counts more than one across it, because a query token of which this is the best
    match points in almost the same direction.

    >>> across = np.array([[0.0, 0.0, 1.0]], np.float32)
    >>> best_lengths(across, np.array([[2.0, -4.0, 0]], np.float32), np.array([[1.0, -2.0, 0]], np.float32))
    array([2.], dtype=float32)
    """
    squared = np.einsum("nd,nd->n", vectors, vectors)
    scale = np.float32(_ALONG * vectors.shape[1]) / np.maximum(squared, _SMALLEST_SQUARE)
    along, own = (np.einsum("nd,nd->n", rows, vectors) for rows in (values, residuals))
    products = np.einsum("nd,nd->n", residuals, values) + scale * along * own
    squares = np.einsum("nd,nd->n", values, values) + scale * along * along
    return np.where(squares > 0, products / np.maximum(squares, np.finfo(np.float32).tiny), 0).astype(
        np.float32
    )


def pack_buckets(buckets: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Bucket numbers [n, d] as codes of `bits` bits, the first dimension lowest in its byte.

    >>> pack_buckets(np.array([[1, 2, 3, 0]], np.uint8), 2).tolist()
    [[57]]
    """
    per_byte = 8 // bits
    packed = np.zeros((len(buckets), buckets.shape[1] // per_byte), np.uint8)
    for position in range(per_byte):
        packed |= buckets[:, position::per_byte] << np.uint8(bits * position)
    return packed


def unpack_buckets(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The bucket numbers of packed codes.

    >>> unpack_buckets(np.array([[57]], np.uint8), 2).tolist()
    [[1, 2, 3, 0]]
    """
    per_byte, mask = 8 // bits, np.uint8((1 << bits) - 1)
    buckets = np.empty((len(codes), codes.shape[1] * per_byte), np.uint8)
    for position in range(per_byte):
        buckets[:, position::per_byte] = codes >> np.uint8(bits * position) & mask
    return buckets


class CentroidSearch:
    """Finds the nearest of some centroids, of many in the groups of near ones whose heads are nearest.

    Products are those of int8 codes, equal on every machine.

    >>> codes, scales = np.array([[127, 0], [0, 127]], np.int8), np.full(2, 1 / 127, np.float16)
    >>> CentroidSearch(codes, scales).nearest(np.array([[0.1, 0.9]], np.float32)).tolist()
    [1]
    """

    def __init__(self, codes: NDArray[np.int8], scales: NDArray[np.float16]) -> None:
        from citadel._native import NearestCentroids, quantize_int8

        count = 1 << (len(codes).bit_length() // 2) if len(codes) >= _EXACT_BELOW else 1
        if count == 1:
            heads, owners = np.zeros((1, codes.shape[1]), np.float32), np.zeros(len(codes), np.uint32)
        else:
            centroids = codes.astype(np.float32) * scales.astype(np.float32)[:, None]
            heads = lloyd(centroids, count, rounds=5, generator=np.random.default_rng(0))
            owners = nearest_centroids(centroids, heads)
        members = np.argsort(owners, kind="stable").astype(np.uint32)
        starts = np.searchsorted(owners[members], np.arange(count + 1)).astype(np.uint32)
        head_codes, head_scales = quantize_int8(np.ascontiguousarray(heads))
        table = (codes, scales.view(np.uint16), head_codes, head_scales.view(np.uint16))
        self._native = NearestCentroids(*table, starts, members, min(_GROUPS_PROBED, count))

    def nearest(self, vectors: Floats) -> Keys:
        """The nearest centroid of each vector [n]."""
        return self._native.nearest(np.ascontiguousarray(vectors, np.float32))


def lloyd(points: Floats, count: int, rounds: int, generator: np.random.Generator) -> Floats:
    """k-means: points [n, d] → centroids [count, d]; an empty centroid moves to a random point."""
    centroids = points[np.sort(generator.choice(len(points), count, replace=len(points) < count))]
    for _ in range(rounds):
        parts = [
            nearest_centroids(points[i : i + _ROWS], centroids) for i in range(0, max(len(points), 1), _ROWS)
        ]
        centroids = means(points, np.concatenate(parts), centroids, generator)
    return centroids


def means(points: Floats, owners: Keys, centroids: Floats, generator: np.random.Generator) -> Floats:
    """The mean of the points of each centroid; a random point for a centroid without one."""
    order = np.argsort(owners, kind="stable")
    filled, starts = np.unique(owners[order], return_index=True)
    sizes = np.diff(np.append(starts, len(points)))
    moved = points[generator.integers(0, len(points), len(centroids))].astype(np.float32)
    moved[filled] = np.add.reduceat(points[order], starts, axis=0) / sizes[:, None]
    return moved


AnyCodebook = Codebook | CentroidBook


def write_book(storage: Storage, index_id: str, file_id: str, book: AnyCodebook) -> FileRecord:
    """Write a codebook file, of a product quantiser or of centroids."""
    if isinstance(book, Codebook):
        return write_codebook(storage, index_id, file_id, book)
    has_cuts = not book.memory
    writer = CitWriter(storage, "codebook", index_id, file_id, sections=4 + has_cuts)
    meta = {
        "dimension": book.dimension,
        "bits": book.bits,
        "bucket_scale": book.bucket_scale,
        "step": book.step,
        "sampled": book.sampled,
    }
    writer.section("META", json.dumps(meta).encode())
    writer.section("CENTROID_CODES", book.codes)
    writer.section("CENTROID_SCALES", book.scales)
    writer.section("BUCKETS", book.buckets)
    if has_cuts:
        writer.section("BUCKET_CUTS", book.cuts)
    return writer.finish()


def read_book(storage: Storage, record: FileRecord, index_id: str, field: Field) -> AnyCodebook:
    """Read the codebook of a field and check that it fits."""
    if field.codec not in CENTROID_BITS:
        return read_codebook(storage, record, index_id, field.dimension, SUBVECTOR.get(field.codec, 1))
    return _read_centroids(storage, record, index_id, field.dimension, CENTROID_BITS[field.codec])


def _read_centroids(
    storage: Storage, record: FileRecord, index_id: str, dimension: int, bits: int
) -> CentroidBook:
    file = CitFile(storage, record, "codebook", index_id)
    meta = file["META"].json()
    scales_of = [meta.get("bucket_scale"), meta.get("step")]
    is_valid = (meta.get("dimension"), meta.get("bits")) == (dimension, bits)
    is_valid &= all(isinstance(scale, float) and 0 < scale < _LARGEST_SCALE for scale in scales_of)
    if not is_valid or not isinstance(meta.get("sampled"), int):
        raise file["META"].corrupt("it does not fit the index's field")
    # Copies: truncating the file later must not change searches.
    scales = file["CENTROID_SCALES"].array(np.float16).copy()
    if not 1 <= len(scales) <= MAX_CENTROIDS or not np.isfinite(scales).all():
        raise file["CENTROID_SCALES"].corrupt(f"it has {len(scales)} scales or one that is not finite")
    codes = file["CENTROID_CODES"].sized(np.int8, len(scales) * dimension).copy().reshape(-1, dimension)
    has_cuts = not bits or "BUCKET_CUTS" in file  # a book from before the trellis has them
    buckets = file["BUCKETS"].sized(np.int8, 1 << bits if has_cuts else WINDOWS).copy().reshape(1 << bits, -1)
    cuts = (
        file["BUCKET_CUTS"].sized(np.float32, (1 << bits) - 1).copy() if has_cuts else np.zeros(0, np.float32)
    )
    if not np.isfinite(cuts).all():
        raise file["BUCKET_CUTS"].corrupt("a border is not finite")
    return CentroidBook(codes, scales, buckets, meta["bucket_scale"], cuts, meta["step"], meta["sampled"])


def same_book(left: AnyCodebook | None, right: AnyCodebook | None) -> bool:
    """Whether two codebooks code vectors alike."""
    if left is None or right is None or type(left) is not type(right):
        return left is right
    return all(np.array_equal(a, b) for a, b in zip(_parts(left), _parts(right), strict=True))


def _parts(book: AnyCodebook) -> tuple[NDArray[Any] | float, ...]:
    if isinstance(book, Codebook):
        return book.centroids, book.scale_keys, book.key_scales, book.global_scale
    return book.codes, book.scales, book.buckets, book.bucket_scale, book.cuts, book.step
