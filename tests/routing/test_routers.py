"""Each router on a small example."""

from __future__ import annotations

import numpy as np
import pytest

from citadel.errors import InputError, UsageError
from citadel.routing import get_router
from citadel.settings import ROUTERS
from citadel.types import RoutedTokens, TokenVectors

#                 key:  0    1    2    3
PHI = np.array([[0.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.5, 0.0, 0.5]], np.float32)
TEXT = TokenVectors(
    token_ids=np.array([7, 7, 9], np.uint32),
    vectors=np.array([[3, 4], [0, 0], [0, -2]], np.float32),
    activations=PHI,
    semantic=np.array([1, 2], np.float32),
)


def rows(routed: RoutedTokens) -> list[tuple[int, int, float]]:
    assert routed.tokens is not None
    return list(zip(routed.tokens.tolist(), routed.keys.tolist(), routed.weights.tolist(), strict=True))


def test_none_keeps_only_the_semantic_vector() -> None:
    routed = get_router("none").route_document(TEXT)
    assert len(routed) == 0
    assert routed.semantic is not None
    assert routed.semantic.tolist() == [1.0, 2.0]


def test_all_to_all_uses_one_key_and_unit_vectors() -> None:
    routed = get_router("all_to_all").route_query(TEXT)
    assert rows(routed) == [(0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0)]
    assert np.allclose(routed.vectors, [[0.6, 0.8], [0, 0], [0, -1]])  # type: ignore[arg-type]
    assert routed.semantic is None


def test_unit_vectors_neither_overflow_nor_underflow() -> None:
    text = TokenVectors(np.array([1, 2], np.uint32), np.array([[3e38, 0], [0, 1e-44]], np.float32))
    routed = get_router("all_to_all").route_query(text)
    assert routed.vectors is not None
    assert routed.vectors.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_centroid_without_centroids_uses_one_key() -> None:
    routed = get_router("centroid").route_query(TEXT)
    assert rows(routed) == [(0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0)]
    assert np.allclose(routed.vectors, [[0.6, 0.8], [0, 0], [0, -1]])  # type: ignore[arg-type]


def test_centroid_takes_the_nearest_and_probes_the_largest_products() -> None:
    centroids = np.array([[0, 2], [1, 0], [0, -1], [0.6, 0.8]], np.float32)
    router = get_router("centroid", centroids=centroids, nprobe=2)
    assert rows(router.route_document(TEXT)) == [(0, 3, 1.0), (1, 1, 1.0), (2, 2, 1.0)]
    # Products of the first token: 1.6, 0.6, -0.8, 1.0; the longest centroid is not the nearest one.
    assert rows(router.route_query(TEXT))[:2] == [(0, 0, 1.0), (0, 3, 1.0)]


def test_static_uses_the_tokens_own_ids() -> None:
    routed = get_router("static").route_document(TEXT)
    assert rows(routed) == [(0, 7, 1.0), (1, 7, 1.0), (2, 9, 1.0)]
    assert routed.vectors is not None
    assert routed.vectors.tolist() == [[3, 4], [0, 0], [0, -2]]


def test_dynamic_query_takes_the_best_key() -> None:
    assert rows(get_router("dynamic").route_query(TEXT)) == [(0, 1, 2.0), (2, 0, 3.0)]


def test_dynamic_document_takes_several_keys() -> None:
    routed = get_router("dynamic", document_keys=2).route_document(TEXT)
    assert rows(routed) == [(0, 1, 2.0), (0, 2, 2.0), (2, 0, 3.0), (2, 1, 0.5)]
    assert routed.vectors is not None
    assert routed.vectors.tolist() == [[3, 4], [3, 4], [0, -2], [0, -2]]


def test_tau_is_strict_and_prunes_documents_only() -> None:
    router = get_router("dynamic", query_keys=3, tau=2.0)
    assert rows(router.route_document(TEXT)) == [(2, 0, 3.0)]
    assert len(router.route_query(TEXT)) == 6


def test_tau_is_compared_in_fp32() -> None:
    phi = np.array([[0.9]], np.float32)  # a little below 0.9 in float64
    text = TokenVectors(np.array([1], np.uint32), np.ones((1, 1), np.float32), phi)
    assert len(get_router("dynamic", tau=0.9).route_document(text)) == 0
    assert len(get_router("dynamic", tau=0.8999).route_document(text)) == 1


def test_sparse_takes_the_maximum_over_tokens() -> None:
    routed = get_router("sparse").route_document(TEXT)
    assert routed.keys.tolist() == [0, 1, 2, 3]
    assert routed.weights.tolist() == [3.0, 2.0, 2.0, 1.0]
    assert routed.vectors is None


@pytest.mark.parametrize("name", ROUTERS)
def test_text_without_tokens_has_no_rows(name: str) -> None:
    empty = TokenVectors(
        np.empty(0, np.uint32),
        np.empty((0, 2), np.float32),
        np.empty((0, 4), np.float32),
        np.ones(2, np.float32),
    )
    router = get_router(name)
    assert len(router.route_query(empty)) == len(router.route_document(empty)) == 0


@pytest.mark.parametrize("name", ROUTERS)
def test_rows_match_the_router_attributes(name: str) -> None:
    router = get_router(name)
    for routed in (router.route_query(TEXT), router.route_document(TEXT)):
        assert (routed.keys.dtype.name, routed.weights.dtype.name) == ("uint32", "float32")
        assert (routed.vectors is not None) == (router.uses_vectors and len(routed) > 0)
        assert router.lexical == (len(routed) > 0)
        assert router.has_weights or set(routed.weights.tolist()) <= {1.0}
        assert routed.tokens is None or (np.diff(routed.tokens.astype(int)) >= 0).all()


def test_kind_and_floor() -> None:
    kinds = {name: get_router(name).kind for name in ROUTERS}
    assert kinds == {
        "all_to_all": "vectors", "bm25": "bm25", "centroid": "centroid", "dynamic": "vectors",
        "none": "none", "sparse": "sparse", "static": "vectors",
    }  # fmt: skip
    assert {name for name in ROUTERS if get_router(name).floor} == {"dynamic", "static"}


@pytest.mark.parametrize("name", ["static", "dynamic", "all_to_all", "centroid", "sparse", "none"])
def test_missing_input_error_names_the_router(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        get_router(name).route_document(TokenVectors(np.array([1], np.uint32)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_rejected(bad: float) -> None:
    one = np.array([1], np.uint32)
    invalid, valid = np.array([[bad]], np.float32), np.ones((1, 1), np.float32)
    with pytest.raises(InputError, match="token vectors hold NaN or infinity"):
        get_router("static").route_query(TokenVectors(one, invalid))
    with pytest.raises(InputError, match="activations"):
        get_router("dynamic").route_document(TokenVectors(one, valid, invalid))
    with pytest.raises(InputError, match="semantic vector"):
        get_router("none").route_document(TokenVectors(one, semantic=invalid[0]))


def test_wrong_number_of_rows_is_an_error() -> None:
    with pytest.raises(InputError, match=r"shape \(3, 2\) do not match 1 tokens"):
        get_router("static").route_query(TokenVectors(np.array([1], np.uint32), np.ones((3, 2), np.float32)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("collbert", {}, "unknown router 'collbert'"),
        ("static", {"tau": 1.0}, "no option 'tau'"),
        ("none", {"semantic": False}, "only the semantic vector"),
        ("dynamic", {"query_keys": 0}, "at least one key"),
        ("dynamic", {"tau": -0.1}, "tau -0.1"),
        ("dynamic", {"tau": float("nan")}, "tau nan"),
        ("dynamic", {"tau": 1e39}, "tau 1e"),
        ("centroid", {"nprobe": 0}, "nprobe is 0"),
        ("centroid", {"semantic": True}, "no semantic vector"),
        ("centroid", {"centroids": np.zeros(3)}, "not a table"),
        ("bm25", {"k1": -1.0}, "k1 -1.0"),
        ("bm25", {"b": 1.5}, "b 1.5"),
    ],
)
def test_invalid_options_are_usage_errors(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_router(name, **options)


def test_router_names() -> None:
    assert [get_router(name).name for name in ROUTERS] == list(ROUTERS)
