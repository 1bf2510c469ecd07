"""The training score equals routing/formula.py for every router, and all its methods agree."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from citadel.model import score as module
from citadel.model.citadel import Citadel, EncodedTexts
from citadel.model.score import RoutedBatch, all_to_all_score, lexical_score
from citadel.routing import get_router
from citadel.routing.formula import score
from citadel.train.inputs import Inputs
from citadel.types import TokenVectors
from tests.support.tiny import tiny_citadel, tiny_texts

CHANGES: dict[str, dict[str, Any]] = {
    "none": {},
    "static": {"semantic_dimension": 6},
    "all_to_all": {},
    "dynamic": {},
    "sparse": {},
}


# Comparison with the oracle


def plain_texts(model: Citadel, inputs: Inputs, encoded: EncodedTexts) -> list[TokenVectors]:
    """Encoder outputs before routing: token ids, vectors, dense φ, semantic vector."""
    hidden = model(inputs.ids, inputs.mask, torch.float64)
    phi = None
    if model.router is not None:
        phi = torch.log1p(
            (model.router(hidden) @ model.embeddings.word.T + model.router.bias).relu()
        )  # [n, T, V]
    vectors = None if model.token is None else model.token(hidden)  # [n, T, d]
    texts = []
    for row, mask in enumerate(inputs.routed):
        texts.append(
            TokenVectors(
                inputs.ids[row, mask].numpy().astype(np.uint32),
                None if vectors is None else numbers(vectors[row, mask]),
                None if phi is None else numbers(phi[row, mask]),
                None if encoded.semantic is None else numbers(encoded.semantic[row]),
            )
        )
    return texts


def numbers(values: Tensor) -> Any:
    return values.detach().numpy().astype(np.float32)


def oracle(model: Citadel, queries: list[TokenVectors], passages: list[TokenVectors]) -> Tensor:
    config = model.config
    options: dict[str, Any] = {"semantic": config.has_semantic}
    if config.router == "dynamic":
        options |= {"query_keys": config.query_keys, "document_keys": config.document_keys}
    router = get_router(config.router, **options)
    routed = [router.route_document(text) for text in passages]
    query_inputs = [router.route_query(text) for text in queries]
    return torch.tensor(
        [[score(q, d, router.floor) or 0.0 for d in routed] for q in query_inputs], dtype=torch.float64
    )


@pytest.mark.parametrize("router", CHANGES)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 1 << 20), query_keys=st.sampled_from([1, 2]), quiet=st.sampled_from([0.0, 2.5, 9.0])
)
def test_score_equals_the_formula(router: str, seed: int, query_keys: int, quiet: float) -> None:
    model = tiny_citadel(
        router, seed, quiet, query_keys=query_keys, route_separator=bool(seed % 2), **CHANGES[router]
    )
    query_inputs, passage_inputs = tiny_texts(model, 3, seed, query=True), tiny_texts(model, 4, seed + 1)
    with torch.no_grad():
        queries = model.encode(*query_inputs, query=True, dtype=torch.float64)
        passages = model.encode(*passage_inputs, dtype=torch.float64)
        actual = model.score(queries, passages)
        wanted = oracle(
            model, plain_texts(model, query_inputs, queries), plain_texts(model, passage_inputs, passages)
        )
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


def test_random_texts_cover_the_cases() -> None:
    """Some query tokens have no key, some do; words repeat in a text, and texts are padded."""
    model = tiny_citadel("dynamic", 0, 2.5)
    inputs = tiny_texts(model, 20, 0, query=True)
    weights = model.encode(*inputs, query=True, dtype=torch.float64).weights
    assert weights is not None
    live = weights[..., 0][inputs.routed] > 0
    assert live.any() and not live.all()
    repeated = [
        row[mask].unique().numel() < int(mask.sum())
        for row, mask in zip(inputs.ids, inputs.routed, strict=True)
    ]
    assert any(repeated) and bool((inputs.mask == 0).any())


# Methods of computation


def random_batch(n: int, length: int, keys: int, seed: int, vocabulary: int = 6) -> RoutedBatch:
    torch.manual_seed(seed)
    chosen = torch.stack([torch.randperm(vocabulary)[:keys] for _ in range(n * length)]).view(n, length, keys)
    weights = torch.rand(n, length, keys, dtype=torch.float64) * (torch.rand(n, length, keys) > 0.3)
    vectors = torch.randn(n, length, 4, dtype=torch.float64, requires_grad=True)
    return RoutedBatch(chosen, weights.requires_grad_(), vectors)


def plain(query: RoutedBatch, passages: RoutedBatch, floor: bool) -> Tensor:
    """Eq. 5 as plain loops."""
    rows = [
        torch.stack([_one(query, q, passages, d, floor) for d in range(len(passages.keys))])
        for q in range(len(query.keys))
    ]
    return torch.stack(rows)


def _one(query: RoutedBatch, q: int, passages: RoutedBatch, d: int, floor: bool) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i, k in np.ndindex(query.keys.shape[1:]):
        if query.weights[q, i, k] <= 0:
            continue
        products = [
            query.weights[q, i, k]
            * passages.weights[d, j, m]
            * (query.vectors[q, i] @ passages.vectors[d, j])
            for j, m in np.ndindex(passages.keys.shape[1:])
            if passages.keys[d, j, m] == query.keys[q, i, k] and passages.weights[d, j, m] > 0
        ]
        if products:
            best = torch.stack(products).max()
            total = total + (best.clamp(min=0) if floor else best)
    return total


def assert_same_scores_and_gradients(
    one: Tensor, other: Tensor, query: RoutedBatch, passages: RoutedBatch
) -> None:
    """Equal scores and equal gradients."""
    torch.testing.assert_close(one, other)
    pull = torch.randn(one.shape, dtype=one.dtype, generator=torch.Generator().manual_seed(0))
    inputs = (query.weights, query.vectors, passages.weights, passages.vectors)
    for actual, wanted in zip(
        torch.autograd.grad((one * pull).sum(), inputs),
        torch.autograd.grad((other * pull).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["join", "join in parts", "dense", "dense in parts", "no floor"])
def test_every_method_equals_the_plain_loop(method: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query, passages = random_batch(3, 4, 2, seed), random_batch(5, 6, 3, seed + 100)
    if "parts" in method:
        monkeypatch.setattr(module, "MAX_PAIRS", 3)
    dense_calls: list[int] = []
    dense = module._dense

    def noted(*args: Any) -> Tensor:
        dense_calls.append(1)
        return dense(*args)

    monkeypatch.setattr(module, "_dense", noted)
    monkeypatch.setattr(module, "_dense_cost", lambda *_: 0 if "dense" in method else 1 << 40)
    actual = lexical_score(query, passages, floor=method != "no floor")
    assert bool(dense_calls) == ("dense" in method)
    assert_same_scores_and_gradients(actual, plain(query, passages, method != "no floor"), query, passages)


def test_parts_are_split_at_the_limit() -> None:
    runs = torch.tensor([2, 2, 2, 0, 9, 1])
    parts = module._parts(runs, 4, int(runs.sum()))
    assert [int(runs[part].sum()) for part in parts] == [2, 4, 9, 1] and parts[-1].stop == len(runs)
    assert module._parts(runs, 16, int(runs.sum())) == [slice(0, 6)]


@pytest.mark.parametrize("dead", ["query", "passages", "both", "no key in common"])
def test_no_match_scores_zero(dead: str) -> None:
    query, passages = random_batch(2, 3, 1, 0), random_batch(3, 2, 1, 1)
    if dead in ("query", "both"):
        query = query._replace(weights=torch.zeros_like(query.weights).requires_grad_())
    if dead in ("passages", "both"):
        passages = passages._replace(weights=torch.zeros_like(passages.weights).requires_grad_())
    if dead == "no key in common":
        passages = passages._replace(keys=passages.keys + 100)
    scores = lexical_score(query, passages)
    assert scores.tolist() == [[0.0] * 3] * 2


def test_negative_best_match_scores_zero() -> None:
    query = RoutedBatch(
        torch.tensor([[[7], [8]]]), torch.tensor([[[2.0], [1.0]]]), torch.tensor([[[1.0], [1.0]]])
    )
    passages = RoutedBatch(
        torch.tensor([[[7], [8]]]), torch.tensor([[[3.0], [1.0]]]), torch.tensor([[[4.0], [-5.0]]])
    )
    assert lexical_score(query, passages).item() == 24  # 2 · 3 · 4, and 0 for the second token
    assert lexical_score(query, passages, floor=False).item() == 19


@pytest.mark.parametrize("step", [1, 2, 64])
def test_all_to_all_equals_the_plain_loop(step: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    d = torch.randn(5, 6, 4, dtype=torch.float64, requires_grad=True)
    mask, present = torch.rand(2, 3) > 0.3, torch.rand(5, 6) > 0.4
    present[0] = False  # a passage without tokens
    mask[0], mask[1] = (
        torch.tensor([True, False, True]),
        False,
    )  # a query with a silent token, one without any
    actual = all_to_all_score(q, mask, d, present, step)
    wanted = torch.stack(
        [torch.stack([_cosines(q[b][mask[b]], d[p][present[p]]) for p in range(5)]) for b in range(2)]
    )
    torch.testing.assert_close(actual, wanted)
    pull = torch.randn(2, 5, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((actual * pull).sum(), (q, d)),
        torch.autograd.grad((wanted * pull).sum(), (q, d)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def _cosines(query: Tensor, passage: Tensor) -> Tensor:
    if not len(passage) or not len(query):
        return torch.zeros((), dtype=torch.float64)
    return (query @ passage.T).amax(1).sum()


def test_joined_parts_equal_the_whole_batch() -> None:
    model = tiny_citadel("dynamic")
    inputs = tiny_texts(model, 5, 0)
    short = inputs.rows(slice(0, 1))
    width = int(short.mask.sum())
    cut = Inputs(*(column[:, :width] for column in short))
    whole = model.encode(*inputs, dtype=torch.float64)
    parts = [model.encode(*part, dtype=torch.float64) for part in (cut, inputs.rows(slice(1, 5)))]
    joined = EncodedTexts.join(parts)
    for field in fields(EncodedTexts):
        one, other = getattr(joined, field.name), getattr(whole, field.name)
        if field.name not in ("keys", "weights"):
            torch.testing.assert_close(one, other, msg=field.name)
    assert joined.weights is not None and whole.weights is not None
    torch.testing.assert_close(joined.weights * joined.routed[..., None], whole.weights)
