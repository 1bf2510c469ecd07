"""Codes along a trellis: windows, rotation, the least error, and books from before the trellis."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citadel import _native
from citadel.errors import CorruptIndexError
from citadel.index.centroid_book import CentroidBook, read_book, same_book, write_book
from citadel.index.centroid_train import train_centroids
from citadel.index.quantize import limit_of
from citadel.index.storage import FolderStorage
from citadel.index.trellis import WINDOW_BITS, WINDOWS, fit_windows, rotated, rotated_scaled, windows_of
from citadel.settings import Field
from citadel.types import Floats
from tests.support.centroid_indexes import DIMENSION, tokens

BITS = [1, 2, 4]
INDEX, FILE = "a" * 32, "b" * 32


def normal(count: int, dimension: int = 32, seed: int = 0) -> Floats:
    rows: Floats = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return rows


def before_the_trellis(book: CentroidBook) -> CentroidBook:
    """A book with one value per bucket, as version 0.1 wrote it until windows."""
    count = 1 << book.bits
    buckets = np.linspace(-100, 100, count).round().astype(np.int8)[:, None]
    return replace(
        book, buckets=buckets, cuts=np.linspace(-1.5, 1.5, count + 1, dtype=np.float32)[1:-1].copy()
    )


@pytest.mark.parametrize("bits", BITS)
def test_a_window_ends_with_the_bits_of_its_dimension(bits: int) -> None:
    buckets = np.random.default_rng(bits).integers(0, 1 << bits, (5, 24)).astype(np.uint8)
    windows = windows_of(buckets.copy(), bits, WINDOW_BITS - bits)
    for row, own in zip(buckets.tolist(), windows.tolist(), strict=True):
        string = sum(bucket << (bits * i) for i, bucket in enumerate(row)) << (WINDOW_BITS - bits)
        assert own == [string >> (bits * i) & (WINDOWS - 1) for i in range(len(row))]
    assert (windows_of(buckets, bits, 0) == buckets).all()


@pytest.mark.parametrize("dimension", [8, 16, 24, 100, 128, 136])
def test_a_rotation_keeps_products_and_is_its_own_inverse(dimension: int) -> None:
    rows = normal(9, dimension)
    spread = rotated(rows)
    np.testing.assert_array_equal(spread, _native.rotate(rows))
    np.testing.assert_allclose(spread @ spread.T, rows @ rows.T, atol=1e-3)
    np.testing.assert_allclose(rotated(spread), rows, atol=1e-5)
    assert np.abs(spread - rows).max() > 0.1


@pytest.mark.parametrize("dimension", [8, 100, 128, 1024])
def test_large_rows_are_divided_before_they_are_rotated(dimension: int) -> None:
    largest, block = np.finfo(np.float32).max, dimension & -dimension
    rows = np.full((3, dimension), largest, np.float32)
    rows[1] /= block
    rows[2] = normal(1, dimension)
    spread, divisors = rotated_scaled(rows)
    assert divisors.tolist() == [block, 1, 1]
    np.testing.assert_array_equal(spread[0], spread[1])
    np.testing.assert_array_equal(spread[1:], rotated(rows[1:]))
    np.testing.assert_allclose(spread[0, 0], largest / np.sqrt(block), rtol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_large_documents_are_coded_as_small_ones(bits: int) -> None:
    vectors, large = normal(300, 128), np.float32(2**19)
    assert np.abs(vectors * large).max() < limit_of(f"residual{bits}")
    decoded = []
    for rows in (vectors, vectors * large):
        book = train_centroids(rows, len(rows), bits)
        keys = book.nearest(rows)
        decoded.append(book.decode(*book.encode(rows, keys), keys))
    np.testing.assert_array_equal(decoded[0] * large, decoded[1])


def test_nothing_is_rotated_and_coded_without_dimensions() -> None:
    rows = np.zeros((5, 0), np.float32)
    assert _native.rotate(rows).shape == rotated(rows).shape == (5, 0)
    assert _native.trellis_codes(rows, np.zeros(WINDOWS, np.float32), 2).shape == (5, 0)
    assert rotated_scaled(rows)[1].tolist() == [1] * 5


@pytest.mark.parametrize("bits", BITS)
def test_codes_have_the_least_error(bits: int) -> None:
    dimension, values = 8 // bits, np.random.default_rng(3).normal(size=WINDOWS).astype(np.float32)
    rows, memory = normal(20, dimension), WINDOW_BITS - bits
    every = np.array(list(itertools.product(range(1 << bits), repeat=dimension)), np.uint8)
    least = np.square(rows[:, None] - values[windows_of(every, bits, memory)]).sum(axis=2).min(axis=1)
    chosen = values[windows_of(_native.trellis_codes(rows, values, bits), bits, memory)]
    np.testing.assert_allclose(np.square(rows - chosen).sum(axis=1), least, rtol=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_codes_are_equal_with_every_instruction_set(bits: int) -> None:
    rows, before, found = normal(37, 24), _native.instruction_set(), []
    values = fit_windows(rows, bits).reshape(-1)
    for name in _native.instruction_sets():
        _native.use_instruction_set(name)
        found.append(_native.trellis_codes(rows, values, bits).tolist())
    _native.use_instruction_set(before)
    assert all(own == found[0] for own in found)


@pytest.mark.parametrize(("bits", "best_buckets"), [(1, 0.3634), (2, 0.1175), (4, 0.00954)])
def test_normal_numbers_are_nearer_than_to_the_best_buckets(bits: int, best_buckets: float) -> None:
    """The squared error of Lloyd and Max's buckets of a normal distribution, from the literature."""
    values = fit_windows(normal(2000), bits)
    assert values.shape == (1 << bits, 1 << (WINDOW_BITS - bits))
    rows = normal(2000, seed=1)
    windows = windows_of(_native.trellis_codes(rows, values.reshape(-1), bits), bits, WINDOW_BITS - bits)
    assert np.square(rows - values.reshape(-1)[windows]).mean() < 0.96 * best_buckets


def test_equal_values_are_coded() -> None:
    assert not fit_windows(np.zeros((1, 8), np.float32), 2).any()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="64 values"):
        _native.trellis_codes(normal(2), np.zeros(4, np.float32), 2)
    with pytest.raises(ValueError, match="1, 2 or 4 bits"):
        _native.trellis_codes(normal(2), np.zeros(WINDOWS, np.float32), 3)
    codes, scales = np.zeros((1, 8), np.int8), np.zeros(1, np.uint16)
    with pytest.raises(ValueError, match="64 values"):
        _native.CentroidBook(codes, scales, np.zeros((4, 4), np.int8), 1.0, 1.0)


@pytest.mark.parametrize("bits", [0, *BITS])
@pytest.mark.parametrize("old", [False, True])
def test_a_book_is_read_as_it_was_written(tmp_path: Path, bits: int, old: bool) -> None:
    vectors = tokens(np.random.default_rng(1), 600)
    book = train_centroids(vectors, len(vectors), bits)
    if old and bits:
        book = before_the_trellis(book)
    storage, field = FolderStorage(tmp_path), Field(DIMENSION, f"residual{bits}" if bits else "int8")
    read = read_book(storage, write_book(storage, INDEX, FILE, book), INDEX, field)
    assert isinstance(read, CentroidBook)
    assert same_book(read, book)
    assert read.bits == bits
    assert read.memory == (WINDOW_BITS - bits if bits and not old else 0)
    if bits:
        keys = book.nearest(vectors)
        decoded = read.decode(*read.encode(vectors, keys), keys)
        centroids = np.square(book.centroids[keys] - vectors).sum()
        assert np.square(decoded - vectors).sum() < 0.6 * centroids


def test_a_book_with_neither_borders_nor_64_values_is_damaged(tmp_path: Path) -> None:
    vectors = tokens(np.random.default_rng(1), 600)
    book = train_centroids(vectors, len(vectors), 2)
    storage, other = FolderStorage(tmp_path), replace(book, buckets=book.buckets[:, :4].copy())
    with pytest.raises(CorruptIndexError, match="BUCKETS"):
        read_book(storage, write_book(storage, INDEX, FILE, other), INDEX, Field(DIMENSION, "residual2"))
