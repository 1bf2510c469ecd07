"""The engine equals the reference in conftest.py under every instruction set of this machine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citadel import _native

RELAXED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CODECS = [
    ("fp16", 3),
    ("fp16", 32),
    ("int8", 5),
    ("int8", 32),
    ("int8", 100),
    ("pq2", 32),
    ("pq1", 32),
    ("pq2", 12),
]


def random_vectors(rng, n, d):
    vectors = rng.standard_normal((n, d)).astype(np.float32)
    vectors[rng.random(n) < 0.1] = 0  # a zero vector has no scale
    return vectors


def random_data(
    slow, rng, documents, kind, codec="fp16", d=0, semantic=0, probe=False, sizes=(0, 1, 5, 128, 300, 700)
):
    lists = {}
    for key, size in enumerate(sizes):
        # Long lists repeat documents, also across blocks.
        spread = max(1, documents // (1 if size < 300 else 7))
        numbers = np.sort(rng.integers(0, spread, size)) + (documents - spread)
        vectors = random_vectors(rng, size, d)
        payloads = (
            vectors if kind == "vectors" else rng.integers(1, 9, size) if kind == "bm25" else rng.random(size)
        )
        if size:
            lists[3 * key] = [
                slow.Posting(int(n), int(w), p)
                for n, w, p in zip(numbers, rng.integers(0, 256, size), payloads, strict=True)
            ]
    data = slow.Data(documents, kind, lists, d, codec)
    data.deleted = set(rng.choice(documents, documents // 5, replace=False).tolist())
    data.lengths = rng.integers(1, 400, documents).astype(np.uint32) if kind == "bm25" else None
    if codec.startswith("pq"):
        sub = {"pq2": 4, "pq1": 8}[codec]
        data.centroids = np.random.default_rng(0).standard_normal((d // sub, 256, sub)).astype(np.float32)
        data.key_scales = {0: 2.0, 3: 0.25, 15: 1.5}
    if semantic:
        data.semantic = random_vectors(rng, documents, semantic)
        data.probe = rng.standard_normal((20, semantic)).astype(np.float32) if probe else None
    return data


def random_query(rng, d, semantic=0, keys=(0, 12, 12, 12, 15, 3, 99)):
    return SimpleNamespace(
        keys=list(keys),
        weights=rng.random(len(keys)).astype(np.float32),
        vectors=rng.standard_normal((len(keys), d)).astype(np.float32) if d else None,
        semantic=rng.standard_normal(semantic).astype(np.float32) if semantic else None,
        norm=(np.float32(0.54), np.float32(0.0027)),
    )


def assert_same(expected, actual):
    numbers, scores, _ = actual
    assert numbers.tolist() == [n for n, _ in expected]
    assert scores.tobytes() == np.array([s for _, s in expected], np.float32).tobytes()


def check(slow, every_instruction_set, parts, query, k, floor=True, **options):
    expected = slow.slow_search(parts, query, k, floor=floor, **options)
    for actual in every_instruction_set(lambda: slow.fast_search(parts, query, k, floor, **options)):
        assert_same(expected, actual)


@pytest.mark.parametrize(("codec", "d"), CODECS)
@pytest.mark.parametrize("floor", [True, False])
def test_vectors_equal_the_reference(slow, every_instruction_set, codec, d, floor):
    rng = np.random.default_rng(d)
    parts = [random_data(slow, rng, n, "vectors", codec, d) for n in (400, 1, 90)]
    query = random_query(rng, d)
    for k, weight_floor in ((0, 0), (7, 0), (10**9, 0), (50, 120)):
        check(slow, every_instruction_set, parts, query, k, floor=floor, weight_floor=weight_floor)


@pytest.mark.parametrize("kind", ["sparse", "bm25"])
def test_weights_equal_the_reference(slow, every_instruction_set, kind):
    rng = np.random.default_rng(4)
    parts = [random_data(slow, rng, n, kind) for n in (500, 60)]
    query = random_query(rng, 0)
    for k in (1, 20, 600):
        check(
            slow,
            every_instruction_set,
            parts,
            query,
            k,
            floor=False,
            weight_floor=200 if kind == "sparse" else 0,
        )


@pytest.mark.parametrize(("codec", "s"), [("int8", 128), ("int8", 48), ("fp16", 20)])
@pytest.mark.parametrize("mode", ["exact", "rerank"])
@pytest.mark.parametrize("probe", [True, False])
def test_semantic_modes_equal_the_reference(slow, every_instruction_set, codec, s, mode, probe):
    rng = np.random.default_rng(s)
    parts = [random_data(slow, rng, n, "vectors", "int8", 32, s, probe) for n in (700, 60)]
    for data in parts:
        data.semantic_codec = codec
    query = random_query(rng, 32, s)
    for k, candidates, probes in ((5, 10, 20), (30, 12, 3), (1000, 10, 10)):
        check(
            slow, every_instruction_set, parts, query, k, semantic=mode, candidates=candidates, probes=probes
        )


def test_rerank_without_a_matching_list_is_exact(slow, every_instruction_set):
    rng = np.random.default_rng(8)
    parts = [random_data(slow, rng, 200, "vectors", "int8", 32, 16, probe=True)]
    query = random_query(rng, 32, 16, keys=(77, 99))
    check(slow, every_instruction_set, parts, query, 4, semantic="rerank", candidates=5, probes=5)


def test_semantic_search_without_lists(slow, every_instruction_set):
    rng = np.random.default_rng(9)
    data = slow.Data(100, "none", {}, semantic=random_vectors(rng, 100, 24), semantic_codec="fp16")
    query = random_query(rng, 0, 24, keys=())
    check(slow, every_instruction_set, [data], query, 9, semantic="exact")


@RELAXED
@given(st.data())
def test_runs_of_a_document_across_blocks(slow, every_instruction_set, data):
    """Few documents in long lists: runs span several blocks, and τ drops some of their postings."""
    numbers = sorted(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=500)))
    values = data.draw(st.lists(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 1.0]), min_size=500, max_size=500))
    weights = data.draw(st.lists(st.integers(0, 2), min_size=500, max_size=500))
    postings = [
        slow.Posting(n, w, np.array([v], np.float32))
        for n, w, v in zip(numbers, weights, values, strict=False)
    ]
    part = slow.Data(6, "vectors", {4: postings}, 1, "fp16")
    query = SimpleNamespace(
        keys=[4, 4],
        weights=np.ones(2, np.float32),
        vectors=np.array([[1.0], [-0.5]], np.float32),
        semantic=None,
        norm=(1.0, 0.0),
    )
    check(
        slow,
        every_instruction_set,
        [part],
        query,
        6,
        floor=data.draw(st.booleans()),
        weight_floor=data.draw(st.integers(0, 2)),
    )


@RELAXED
@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=300).map(sorted), max_size=4))
def test_packed_documents_round_trip(lists):
    """Unpacked as docs/reference/file-format.md says."""
    starts = np.cumsum([0] + [len(values) for values in lists]).astype(np.uint64)
    values = np.array([v for own in lists for v in own], np.uint32)
    firsts, offsets, packed = _native.pack(values, starts)
    assert unpack(starts, firsts, offsets, packed) == [int(v) for own in lists for v in own]
    assert packed[-8:].tolist() == [0] * 8 and len(packed) == int(offsets[-1]) + 8


def unpack(starts, firsts, offsets, packed):
    """Delta i takes bits i·b … i·b+b−1, counted from the lowest bit of the first byte."""
    out, block = [], 0
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        for at in range(begin, end, 128):
            entry, number = int(offsets[block]), int(firsts[block])
            offset, bits = entry & ((1 << 56) - 1), entry >> 56
            bits_of_block = int.from_bytes(packed[offset:].tobytes(), "little")
            out.append(number)
            for i in range(min(128, end - at) - 1):
                number += bits_of_block >> (i * bits) & ((1 << bits) - 1)
                out.append(number)
            block += 1
    return out


def test_pack_rejects_decreasing_numbers_and_zero_counts():
    with pytest.raises(ValueError, match="decrease in list 1"):
        _native.pack(np.array([4, 2, 9, 8], np.uint32), np.array([0, 1, 4], np.uint64))
    with pytest.raises(ValueError, match="count is 0 in list 0"):
        _native.pack_counts(np.array([1, 0], np.uint32), np.array([0, 2], np.uint64))


@RELAXED
@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 3), max_size=200))
def test_sort_by_key_is_stable(keys):
    array = np.array(keys, np.uint32)
    assert _native.sort_by_key(array).tolist() == np.argsort(array, kind="stable").tolist()


def test_crc32c_check_value_and_incremental_use():
    assert _native.crc32c(b"123456789") == 0xE3069283
    data = np.random.default_rng(1).integers(0, 256, 10_000).astype(np.uint8)
    assert _native.crc32c(data[5000:], _native.crc32c(data[:5000])) == _native.crc32c(
        memoryview(data.tobytes())
    )
    assert _native.crc32c_blocks(data, 4096).tolist() == [
        _native.crc32c(data[i : i + 4096]) for i in (0, 4096, 8192)
    ]


@RELAXED
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=20))
def test_int8_scale_is_rounded_up_to_fp16(rows):
    vectors = np.array(rows, np.float32)
    codes, scales = _native.quantize_int8(vectors)
    largest = np.abs(vectors).max(axis=1) / np.float32(127)
    assert np.all(scales.astype(np.float32) >= largest)
    below = np.nextafter(scales, np.float16(0))
    assert np.all((scales == 0) | (below.astype(np.float32) < largest))
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.nan_to_num(np.rint(vectors / scales.astype(np.float32)[:, None])).clip(-127, 127)
    assert codes.tolist() == np.where(scales[:, None] == 0, 0, expected).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_int8_rejects_non_finite_and_too_large_values(bad):
    vectors = np.ones((3, 20), np.float32)
    vectors[2, 17] = bad
    with pytest.raises(ValueError, match="row 2"):
        _native.quantize_int8(vectors)


def test_pq_assign_takes_the_nearest_centroid_ties_to_the_lower(every_instruction_set):
    rng = np.random.default_rng(3)
    # Small integers: many ties, exact distances.
    centroids = rng.integers(-2, 3, (3, 256, 4)).astype(np.float32)
    vectors = rng.integers(-2, 3, (50, 12)).astype(np.float32)
    distances = ((vectors.reshape(50, 3, 1, 4) - centroids) ** 2).sum(axis=3)
    for codes in every_instruction_set(lambda: _native.pq_assign(vectors, centroids)):
        assert codes.tolist() == distances.argmin(axis=2).tolist()
