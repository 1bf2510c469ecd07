"""Codecs, against hand-computed values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.index.codebook import Codebook, train
from citadel.index.quantize import decode, encode, weight_steps


def test_int8_by_hand() -> None:
    """The largest number is 127 steps; the step is rounded up to fp16."""
    coded = encode("int8", np.array([[127.0, -63.5, 0.6, 0.0]], np.float32))
    assert (coded.codes.tolist(), coded.scales.tolist()) == ([[127, -64, 1, 0]], [1.0])  # type: ignore[union-attr]
    assert decode(coded).tolist() == [[127.0, -64.0, 1.0, 0.0]]


def test_the_best_of_several_scales_keeps_the_product_with_the_vector_itself() -> None:
    vectors = np.random.default_rng(2).normal(size=(500, 128)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    errors = []
    for tried in (1, 8):
        coded = encode("int8", vectors, scales_tried=tried)
        assert coded.scales is not None
        errors.append(np.abs((decode(coded) * vectors).sum(axis=1) - 1).mean())
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize("scale", [0.0, 1e-9, 60000 * 127])
def test_several_scales_of_extreme_vectors(scale: float) -> None:
    vectors = np.array([[1.0, -0.5, 0.25]], np.float32) * np.float32(scale)
    coded = encode("int8", vectors, scales_tried=1 << 12)
    assert decode(coded) == pytest.approx(vectors, rel=0.02, abs=1e-7)


def test_zero_vector() -> None:
    coded = encode("int8", np.zeros((2, 3), np.float32))
    assert decode(coded).tolist() == [[0.0] * 3] * 2


@given(st.lists(st.floats(-60000, 60000, width=32), min_size=1, max_size=40))
def test_int8_is_within_half_a_step(values: list[float]) -> None:
    row = np.array([values], np.float32)
    coded = encode("int8", row)
    assert coded.scales is not None
    step = float(coded.scales[0])
    assert (np.abs(decode(coded).astype(np.float64) - row) <= 0.5000001 * step + 2e-6).all()
    assert np.abs(coded.codes.astype(int)).max() <= 127


def test_pq_by_hand() -> None:
    """Two sub-vectors of two dimensions; key 5 has scale 2, so its vector is halved first."""
    centroids = np.full((2, 256, 2), 1000.0, np.float32)
    centroids[:, 3], centroids[:, 7] = [1, 0], [0, 1]
    book = Codebook(centroids, np.array([5], np.uint32), np.array([2.0], np.float32), 1.0)
    keys = np.array([5, 6], np.uint32)
    coded = encode("pq2", np.array([[2.2, 0, 0, 1.8], [0.1, 0.9, 1, 0]], np.float32), keys, book)
    assert coded.codes.tolist() == [[3, 7], [7, 3]]
    assert decode(coded, keys, book).tolist() == [[2.0, 0.0, 0.0, 2.0], [0.0, 1.0, 1.0, 0.0]]


def test_codebook_reproduces_few_distinct_vectors() -> None:
    vectors = np.repeat(np.eye(8, dtype=np.float32), 40, axis=0)
    keys = np.tile(np.array([1, 2], np.uint32), 160)
    book = train(vectors, keys, subvector=4)
    assert (book.centroids.shape, book.scale_keys.tolist(), book.sampled) == ((2, 256, 4), [1, 2], 320)
    np.testing.assert_allclose(decode(encode("pq2", vectors, keys, book), keys, book), vectors, atol=1e-6)


@given(st.integers(0, 254), st.sampled_from([0.02, 0.01, 0.05]), st.integers(-2, 2))
def test_weight_codes_agree_with_tau(steps: int, step: float, ulps: int) -> None:
    """The code is above m exactly when the weight is above τ = m · step."""
    tau = np.float32(steps * step)
    weight = tau
    for _ in range(abs(ulps)):
        weight = np.nextafter(weight, np.float32(np.inf if ulps > 0 else 0))
    (code,) = weight_steps(np.array([weight], np.float32), step).tolist()
    assert (code > steps) == bool(weight > tau)


@pytest.mark.parametrize(
    ("weight", "code"), [(0.0, 0), (0.01, 1), (0.02, 1), (0.021, 2), (5.09, 255), (99.0, 255)]
)
def test_weight_steps_by_hand(weight: float, code: int) -> None:
    assert weight_steps(np.array([weight], np.float32), 0.02).tolist() == [code]


@pytest.mark.parametrize("step", [0.02, 0.013, 1 / 3, 7.5, 1e-3])
def test_weight_steps_count_the_borders_below(step: float) -> None:
    """Also at the borders themselves and at their neighbours."""
    borders = (np.arange(255) * step).astype(np.float32)
    around = [np.nextafter(borders, np.float32(limit)) for limit in (-np.inf, np.inf)]
    random = np.random.default_rng(1).random(1000, dtype=np.float32) * np.float32(300 * step)
    weights = np.concatenate([borders, *around, random, np.array([65504.0], np.float32)]).clip(0)
    assert weight_steps(weights, step).tolist() == np.searchsorted(borders, weights).tolist()
