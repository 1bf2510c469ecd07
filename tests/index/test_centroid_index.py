"""Centroid indexes: training, adding, deleting, merging, retraining, and what is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import citadel
from citadel import _native
from citadel.errors import UsageError
from citadel.index.centroid_book import (
    CentroidBook,
    CentroidSearch,
    best_lengths,
    pack_buckets,
    unpack_buckets,
)
from citadel.index.centroid_train import centroid_count, train_centroids
from citadel.index.check import check
from citadel.index.quantize import decode
from citadel.index.shard import shard_index
from citadel.index.snapshot import Snapshot
from citadel.index.trellis import rotated
from citadel.routing.centroid import nearest_centroids
from citadel.settings import Field, Settings
from citadel.types import Floats
from tests.index.quick import Quick
from tests.support.centroid_indexes import DIMENSION, create, documents, few_tokens, mixed, query, tokens

CODECS = ("int8", "residual1", "residual2", "residual4")


def stored(snapshot: Snapshot) -> dict[str, Floats]:
    """The decoded token vectors of each live document, in their order."""
    vectors = {}
    for segment in snapshot.segments:
        decoded = decode(
            segment.encoded(0, segment.tokens), segment.token_centroids(0, segment.tokens), snapshot.centroids
        )
        for number in snapshot.live_numbers(segment):
            start, stop = segment.token_starts[number : number + 2]
            vectors[segment.ids([number])[0]] = decoded[start:stop]
    return vectors


def given(first: int, last: int) -> dict[str, Floats]:
    return {document["id"]: document["vectors"] for document in documents(first, last)}


def test_number_of_centroids_is_that_of_plaid() -> None:
    assert centroid_count(262_144) == 8192
    assert centroid_count(1_500_000) == 16_384
    assert centroid_count(1 << 40) == 1 << 16  # a token's centroid takes two bytes
    assert centroid_count(1) == 1


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_are_packed_and_unpacked(bits: int) -> None:
    buckets = np.random.default_rng(bits).integers(0, 1 << bits, (7, 24)).astype(np.uint8)
    packed = pack_buckets(buckets, bits)
    assert packed.shape == (7, 24 * bits // 8)
    assert (unpack_buckets(packed, bits) == buckets).all()


def test_more_bits_are_nearer_to_the_vectors() -> None:
    vectors = tokens(np.random.default_rng(1), 3000)
    errors = []
    for bits in (1, 2, 4):
        book = train_centroids(vectors, len(vectors), bits)
        keys = book.nearest(vectors)
        decoded = book.decode(*book.encode(vectors, keys), keys)
        errors.append(float(((decoded - vectors) ** 2).sum(axis=1).mean()))
    residual = float(((book.centroids[keys] - vectors) ** 2).sum(axis=1).mean())
    assert errors[0] < 0.355 * residual  # the nearest bucket of each dimension has 0.363,
    assert errors[1] < 0.1 * residual  # 0.106
    assert errors[2] < 0.0075 * residual  # and 0.0080


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_lengths_keep_the_product_with_the_vector_itself(bits: int) -> None:
    vectors = tokens(np.random.default_rng(1), 3000)
    book = train_centroids(vectors, len(vectors), bits)
    keys = book.nearest(vectors)
    codes, _ = book.encode(vectors, keys)
    values, residuals = book.window_codes(codes).astype(np.float32), rotated(vectors - book.centroids[keys])
    vectors = rotated(vectors)
    nearest = (residuals * values).sum(axis=1) / (values * values).sum(axis=1)
    chosen = best_lengths(vectors, residuals, values)

    def errors(lengths: Floats) -> tuple[float, float]:
        rest = residuals - lengths[:, None] * values
        return float(np.square((rest * vectors).sum(axis=1)).mean()), float(
            np.square(rest).sum(axis=1).mean()
        )

    (along, whole), (along_nearest, whole_nearest) = errors(chosen), errors(nearest)
    assert along < 0.8 * along_nearest
    assert whole_nearest <= whole < 1.6 * whole_nearest


def test_vectors_of_zeros_are_coded(recwarn: pytest.WarningsRecorder) -> None:
    vectors = tokens(np.random.default_rng(1), 3000)
    vectors[::7] = 0
    book = train_centroids(vectors, len(vectors), 2)
    keys = book.nearest(vectors)
    decoded = book.decode(*book.encode(vectors, keys), keys)
    assert np.isfinite(decoded).all() and not recwarn.list
    assert np.abs(decoded[::7]).max() < 0.5


def test_a_search_by_groups_finds_nearly_every_nearest_centroid() -> None:
    random = np.random.default_rng(3)
    centroids = tokens(random, 2048)
    codes = np.rint(centroids * 127).astype(np.int8)
    scales, buckets, cuts = (
        np.full(2048, 1 / 127, np.float16),
        np.zeros((2, 1), np.int8),
        np.zeros(1, np.float32),
    )
    book = CentroidBook(codes, scales, buckets, 1.0, cuts, 1.0)
    vectors = tokens(random, 2000)
    assert (book.nearest(vectors) == nearest_centroids(vectors, book.centroids)).mean() > 0.97


def test_nearest_centroids_are_equal_with_every_instruction_set() -> None:
    random, before = np.random.default_rng(4), _native.instruction_set()
    codes, scales = _native.quantize_int8(tokens(random, 3000))
    vectors = tokens(random, 500)
    vectors[0] = 0
    found = []
    for name in _native.instruction_sets():
        _native.use_instruction_set(name)
        found.append(CentroidSearch(codes, scales).nearest(vectors).tolist())
    _native.use_instruction_set(before)
    assert all(own == found[0] for own in found)


def test_nearest_centroids_of_wrong_shapes() -> None:
    codes, scales = np.zeros((4, 8), np.int8), np.zeros(4, np.uint16)
    heads, head_scales, members = codes[:1], scales[:1], np.arange(4, dtype=np.uint32)
    starts = np.array([0, 4], np.uint32)
    native = _native.NearestCentroids(codes, scales, heads, head_scales, starts, members, 1)
    assert native.nearest(np.zeros((2, 8), np.float32)).tolist() == [0, 0]
    assert native.nearest(np.zeros((0, 8), np.float32)).tolist() == []
    with pytest.raises(ValueError, match="different dimensions"):
        native.nearest(np.zeros((2, 7), np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        _native.NearestCentroids(codes, scales[:3], heads, head_scales, starts, members, 1)
    with pytest.raises(ValueError, match="does not exist"):
        _native.NearestCentroids(codes, scales, heads, head_scales, starts, members + np.uint32(1), 1)
    with pytest.raises(ValueError, match="one group or more"):
        _native.NearestCentroids(codes, scales, heads, head_scales, starts, members, 2)


def test_centroids_are_trained_once_there_are_enough_tokens(tmp_path: Path) -> None:
    with few_tokens():
        index = create(tmp_path / "i")
        index.add_vectors(documents(0, 20))
        assert index.commit().stats()["codecs"] == ["int8"]
        index.add_vectors(documents(20, 100))
        assert index.commit().stats()["codecs"] == ["int8", "residual2"]
        book = index._snapshot.centroids
        index.add_vectors(documents(100, 120))
        index.commit()
        assert index._snapshot.centroids is book
        figures = index.merge().stats()
        assert figures["codecs"] == ["residual2"]
        assert figures["segments"] == 1
        assert figures["tokens"] == sum(map(len, given(0, 120).values()))
        assert index._snapshot.centroids is book


@pytest.mark.parametrize("codec", CODECS)
def test_tokens_keep_their_order_through_merges(tmp_path: Path, codec: str) -> None:
    index, limits = (
        mixed(tmp_path / "i", codec),
        {"int8": 0.03, "residual1": 0.5, "residual2": 0.3, "residual4": 0.09},
    )
    originals = given(0, 150)
    for _ in range(2):
        decoded = stored(index._snapshot)
        assert sorted(decoded) == sorted(set(originals) - {"d3", "d40", "d41"})
        for id, rows in decoded.items():
            assert rows.shape == originals[id].shape
            assert np.linalg.norm(rows - originals[id], axis=1).mean() < limits[codec] if len(rows) else True
        index.merge()


def test_lists_hold_the_documents_of_each_centroid_once(tmp_path: Path) -> None:
    index = mixed(tmp_path / "i").merge()
    [segment] = index._snapshot.segments
    owners = np.repeat(np.arange(segment.passages), np.diff(segment.token_starts))
    centroids = segment.token_centroids(0, segment.tokens)
    for position, key in enumerate(segment.keys.tolist()):
        expected = np.unique(owners[centroids == key])
        assert segment.document_numbers(position, position + 1).tolist() == expected.tolist()


def test_retraining_gives_new_centroids(tmp_path: Path) -> None:
    index = mixed(tmp_path / "i")
    before = index._snapshot.centroids
    with few_tokens():
        index.merge(retrain=True)
    assert index._snapshot.centroids is not before
    assert index.stats()["codecs"] == ["residual2"]
    assert check(index._snapshot.storage, deep=True)
    originals = given(0, 150)
    for id, rows in stored(index._snapshot).items():
        assert len(rows) == len(originals[id])
    exact = index.searcher().search_vectors(vectors=originals["d9"], k=1, semantic_mode="exact")
    assert exact.ids == ["d9"]


def test_int8_vectors_stay_as_they_are(tmp_path: Path) -> None:
    """Training, merging and retraining change the lists only."""
    index = mixed(tmp_path / "i", "int8")
    first, last = index._snapshot.segments
    assert (first.meta.has_centroids, last.meta.has_centroids) == (False, True)
    before, answers = stored(index._snapshot), exact_answers(index)
    for retrain in (False, True):
        with few_tokens():
            index.merge(retrain=retrain)
        [segment] = index._snapshot.segments
        assert segment.meta.has_centroids and len(segment.keys) > 16
        after = stored(index._snapshot)
        assert all(np.array_equal(after[id], rows) for id, rows in before.items())
        assert exact_answers(index) == answers
        assert check(index._snapshot.storage, deep=True)


def test_int8_scores_are_close_to_those_of_all_to_all(tmp_path: Path) -> None:
    index = mixed(tmp_path / "i", "int8")
    fields = {"lexical": citadel.Field(DIMENSION, "int8")}
    folder = Quick(tmp_path / "all")
    other = citadel.Index.create(folder, router="all_to_all", fields=fields, fingerprint="random")
    other.add_vectors(documents(0, 150))
    other.delete(["d3", "d40", "d41"])
    other.commit()
    for (ids, scores), (expected_ids, expected) in zip(
        exact_answers(index), exact_answers(other), strict=True
    ):
        assert ids[0] == expected_ids[0] and len(set(ids) & set(expected_ids)) >= 8
        assert scores == pytest.approx(expected, abs=0.02)


def exact_answers(index: citadel.Index) -> list[tuple[list[str], list[float]]]:
    searcher = index.searcher()
    hits = [searcher.search_vectors(vectors=query(number), k=9, semantic_mode="exact") for number in range(4)]
    return [(found.ids, found.scores) for found in hits]


def test_retraining_in_parts_within_the_memory_bound(tmp_path: Path) -> None:
    index = mixed(tmp_path / "i").merge()
    with few_tokens():
        index._writer._memory = 8 * 4 * DIMENSION * 100  # about 100 tokens at a time
        index.merge(retrain=True)
    names = [name for name in index._snapshot.storage.names() if name.startswith("seg-")]
    assert len(names) == 1
    assert len(index) == 147
    assert check(index._snapshot.storage, deep=True)


def test_too_few_tokens_cannot_be_retrained(tmp_path: Path) -> None:
    index = create(tmp_path / "i")
    index.add_vectors(documents(0, 9))
    with pytest.raises(UsageError, match="too few for a codebook: 65536 are needed"):
        index.merge(retrain=True)


def test_an_index_spilled_in_parts_is_the_same(tmp_path: Path) -> None:
    with few_tokens():
        fields = {"lexical": citadel.Field(DIMENSION, "residual2")}
        folder = Quick(tmp_path / "i")
        index = citadel.Index.create(folder, fields=fields, fingerprint="x", memory=1 << 18)
        index.add_vectors(iter(documents(0, 300)))
        index.commit().merge()
    decoded, originals = stored(index._snapshot), given(0, 300)
    assert [len(decoded[id]) for id in originals] == [len(rows) for rows in originals.values()]
    assert check(index._snapshot.storage, deep=True)


def test_replaced_documents_have_their_new_tokens(tmp_path: Path) -> None:
    with few_tokens():
        index = create(tmp_path / "i")
        index.add_vectors(documents(0, 60))
        index.add_vectors(documents(0, 20, seed=5))
        index.commit()
    expected = {document["id"]: document["vectors"] for document in documents(0, 20, seed=5)}
    decoded = stored(index._snapshot)
    assert all(len(decoded[id]) == len(rows) for id, rows in expected.items())
    hits = index.searcher().search_vectors(vectors=expected["d7"], k=1)
    assert hits.ids == ["d7"]


@pytest.mark.parametrize("codec", ["int8", "residual2"])
def test_shards_have_the_same_centroids_and_hits(tmp_path: Path, codec: str) -> None:
    index = mixed(tmp_path / "i", codec).merge()
    shard_index(index._snapshot, Quick(tmp_path / "s"), 3)
    sharded = citadel.Index.open(Quick(tmp_path / "s"))
    for number in range(4):
        for options in ({"semantic_mode": "exact"}, {"ef": 40}):
            one = index.searcher().search_vectors(vectors=query(number), k=12, **options)
            other = sharded.searcher().search_vectors(vectors=query(number), k=12, **options)
            assert (one.ids, one.scores) == (other.ids, other.scores)


@pytest.mark.parametrize(
    ("router", "codec", "semantic", "message"),
    [
        ("dynamic", "residual2", None, "go with the router centroid"),
        ("centroid", "fp16", None, "stores int8 or residual codes"),
        ("centroid", "int8", Field(4), "no semantic vectors"),
        ("centroid", "residual2", Field(4), "no semantic vectors"),
    ],
)
def test_settings_that_do_not_fit(router: str, codec: str, semantic: Field | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(router, "x", Field(16, codec), semantic)


def test_dimension_of_residuals() -> None:
    with pytest.raises(UsageError, match="divisible by 8"):
        Field(12, "residual4")
