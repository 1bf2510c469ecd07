"""The model: a backbone with heads for token vectors, semantic vector and router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citadel.encode.config import USUAL_LENGTH, ModelConfig
from citadel.model.backbone import Backbone, LayerNorm, Linear
from citadel.model.router import route, route_top, whole_groups
from citadel.model.score import RoutedBatch, all_to_all_score, lexical_score


@dataclass(frozen=True)
class EncodedTexts:
    """Encoded texts; parts that the router does not use are None.

    Everything with a gradient is a plain tensor, as gradient caching needs it.
    """

    routed: Tensor  # [n, T], tokens that may have keys
    vectors: Tensor | None = None  # [n, T, d]
    keys: Tensor | None = None  # [n, T, L]
    weights: Tensor | None = None  # [n, T, L]
    pooled: Tensor | None = None  # [n, V]
    mass: Tensor | None = None  # [V]
    l1: Tensor | None = None  # []
    active: Tensor | None = None  # []
    semantic: Tensor | None = None  # [n, s]

    def __len__(self) -> int:
        return len(self.routed)

    @classmethod
    def join(cls, parts: Sequence[EncodedTexts]) -> EncodedTexts:
        """Join batches: tokens are padded to the longest text, sums are added."""
        length = max(part.routed.shape[1] for part in parts)
        joined = {field.name: _join(field.name, parts, length) for field in fields(cls)}
        return parts[0].with_tensors({name: tensor for name, tensor in joined.items() if tensor is not None})

    def tensors(self) -> dict[str, Tensor]:
        """The parts that are not None, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in named if value is not None}

    def ordered(self, rows: Tensor) -> EncodedTexts:
        """Reorder the texts; sums over all texts stay."""
        return self.with_tensors(
            {name: part[rows] for name, part in self.tensors().items() if name not in _SUMS}
        )

    def with_tensors(self, tensors: dict[str, Tensor]) -> EncodedTexts:
        """Replace some parts."""
        return replace(self, **tensors)


START_OFFSET = -2.0  # before softplus: the same small offset for every document
_SUMS = ("mass", "l1", "active")
_BY_TOKEN = ("routed", "vectors", "keys", "weights")


def _join(name: str, parts: Sequence[EncodedTexts], length: int) -> Tensor | None:
    values = [getattr(part, name) for part in parts]
    if values[0] is None:
        return None
    if name in _SUMS:
        return torch.stack(values).sum(0)
    if name in _BY_TOKEN:
        values = [_pad_tokens(value, length) for value in values]
    return torch.cat(values)


def _pad_tokens(value: Tensor, length: int) -> Tensor:
    pad = length - value.shape[1]
    return F.pad(value, (0, 0) * (value.dim() - 2) + (0, pad)) if pad else value


class RouterHead(nn.Module):
    """The MLM head without its decoder, which is tied to the word embeddings."""

    def __init__(self, hidden: int, vocabulary: int, epsilon: float) -> None:
        super().__init__()
        self.dense = Linear(hidden, hidden)
        self.norm = LayerNorm(hidden, eps=epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        with torch.no_grad():  # without a trained head: start as the identity
            nn.init.eye_(self.dense.weight)
            self.dense.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        transformed: Tensor = self.norm(F.gelu(self.dense(hidden)))
        return transformed


class DocumentOffset(nn.Module):
    """Lower a document's semantic score with every query, by an amount learned from its vector and length.

    The vector of a text without a topic ("See also") is close to every short query. All query vectors have
    nearly the same product with `direction`, so that subtracting a multiple of it from a document's vector
    subtracts that number from all its scores.

    >>> offset = DocumentOffset(dimension=4, units=8)
    >>> vectors = offset(torch.zeros(2, 4), torch.tensor([[3], [9]]))
    >>> vectors.shape
    torch.Size([2, 4])
    """

    def __init__(self, dimension: int, units: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.zeros(dimension), requires_grad=False)
        self.inner = Linear(dimension, units)
        self.length = nn.Parameter(torch.zeros(units))
        self.outer = Linear(units, 1)
        self.start()
        self.requires_grad_(False)  # `train/offset.py` fits it

    @torch.no_grad()
    def start(self, generator: torch.Generator | None = None) -> None:
        """Start with the same small offset for every document."""
        for weight, scale in ((self.inner.weight, len(self.direction) ** -0.5), (self.length, 1.0)):
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
        self.inner.bias.zero_()
        self.outer.weight.zero_()
        self.outer.bias.fill_(START_OFFSET)

    def forward(self, semantic: Tensor, tokens: Tensor) -> Tensor:
        """Vectors [n, s] of documents of this many tokens [n, 1], less their offsets."""
        return semantic - self.amount(semantic, tokens) * self.direction.to(semantic.dtype)

    def amount(self, semantic: Tensor, tokens: Tensor) -> Tensor:
        """How much the scores of documents are lowered [n, 1]."""
        length = torch.log(tokens.to(semantic.dtype)) - USUAL_LENGTH  # [n, 1]
        inner = _linear_in(self.inner, semantic) + length * self.length.to(semantic.dtype)  # [n, units]
        return F.softplus(_linear_in(self.outer, F.relu(inner)))


class _StaticWeights(nn.Module):
    """A stored weight per token, for queries without a model."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(vocabulary))

    def forward(self, ids: Tensor, routed: Tensor) -> Tensor:
        present = torch.zeros(len(ids), len(self.weight), device=ids.device)
        return present.scatter_reduce_(1, ids, routed.to(present.dtype), "amax") * self.weight  # [n, V]


class Citadel(Backbone):
    """A backbone with the heads of its config.

    >>> from citadel.encode.config import BackboneConfig
    >>> tiny = BackboneConfig(vocabulary=20, hidden=8, layers=1, heads=2, intermediate=16, positions=16)
    >>> shape = ModelConfig("dynamic", tiny, "", 4, 8, query_length=9, document_length=16, cls_id=1, sep_id=2)
    >>> model = Citadel(shape)
    >>> ids, mask, routed = torch.tensor([[[1, 2, 0]], [[1, 1, 0]], [[0, 1, 0]]])
    >>> texts = model.encode(ids, mask, routed.bool())
    >>> list(texts.keys.shape), list(texts.semantic.shape)
    ([1, 3, 5], [1, 8])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.backbone)
        self.config = config
        shape = config.backbone
        self.token = Linear(shape.hidden, config.token_dimension) if config.has_token_vectors else None
        self.semantic = Linear(shape.hidden, config.semantic_dimension) if config.has_semantic else None
        self.offset = (
            DocumentOffset(config.semantic_dimension, config.document_offset)
            if config.document_offset
            else None
        )
        self.router = (
            RouterHead(shape.hidden, shape.vocabulary, shape.epsilon) if config.has_router_head else None
        )
        self.query = _StaticWeights(shape.vocabulary) if config.static_queries else None
        for head in (self.token, self.semantic):
            if head is not None:
                nn.init.normal_(head.weight, std=shape.hidden**-0.5)
                nn.init.zeros_(head.bias)
        self._prepared_router: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def prepare_router(self, dtype: torch.dtype) -> None:
        """Prepare the router matrix once instead of per batch; the weights must not change afterwards."""
        if self.router is not None and self.config.router == "dynamic":
            self._prepared_router = whole_groups(self.embeddings.word, self.router.bias, dtype)

    def router_matrix(self) -> tuple[Tensor, Tensor]:
        """The router's matrix and bias, prepared or as they are."""
        assert self.router is not None
        return self._prepared_router or (self.embeddings.word, self.router.bias)

    def encode(
        self,
        ids: Tensor,
        mask: Tensor,
        routed: Tensor,
        *,
        query: bool = False,
        learning: bool = True,
        dtype: torch.dtype = torch.float32,
        padded: bool | None = None,
    ) -> EncodedTexts:
        """Compute vectors, keys and semantic vectors; `routed` marks the tokens that may have keys.

        Without `learning`, sums needed only by losses are omitted, and so is Φ unless it is the score itself.
        `padded` says whether `mask` has zeros, if known.
        """
        if query and self.query is not None:
            return EncodedTexts(routed, pooled=self.query(ids, routed))
        hidden = self(ids, mask, dtype, padded)  # [n, T, h]
        routing = self._route(hidden, ids, routed, query, learning)
        vectors = None if self.token is None else self.token_vectors(hidden, routed)
        return EncodedTexts(routed, vectors, **routing, semantic=self.semantic_vector(hidden, mask, query))

    def token_vectors(self, hidden: Tensor, routed: Tensor) -> Tensor:
        """Token vectors from the last states; 0 for tokens without keys: [n, T, d]."""
        assert self.token is not None
        vectors = _wide(self.token(hidden)) * routed[..., None]  # [n, T, d]
        return F.normalize(vectors, dim=-1) if self.config.router == "all_to_all" else vectors

    def _route(
        self, hidden: Tensor, ids: Tensor, routed: Tensor, query: bool, learning: bool
    ) -> dict[str, Tensor]:
        if self.config.router == "static":
            return {"keys": ids[..., None], "weights": _wide(routed.to(hidden.dtype))[..., None]}
        if self.router is None:
            return {}
        num_keys = self.config.query_keys if query else self.config.document_keys
        x, matrix = self.router(hidden), (self.embeddings.word, self.router.bias)
        if (self.config.sparse_pooling, self.config.sparse_activation) != ("max", "log"):
            return {"pooled": self._pool_keys(x, *matrix, routed)}
        if not learning and self.config.router == "dynamic":
            weights, keys = route_top(x, *self.router_matrix(), routed, num_keys)
            return {"weights": weights, "keys": keys}
        return route(x, *matrix, routed, num_keys)._asdict()

    def _pool_keys(self, x: Tensor, word: Tensor, bias: Tensor, routed: Tensor) -> Tensor:
        """Φ of variants of SPLADE, text by text [n, V]."""
        parts = []
        for row, marked in zip(x, routed, strict=True):
            logits = F.linear(row, word.to(row.dtype), bias.to(row.dtype))  # [T, V]
            weights = torch.log1p(_wide(logits).clamp(min=0)) * marked[:, None]
            if self.config.sparse_activation == "log log":
                weights = torch.log1p(weights)
            parts.append(weights.sum(0) if self.config.sparse_pooling == "sum" else weights.amax(0))
        return torch.stack(parts)

    def semantic_vector(self, hidden: Tensor, mask: Tensor, query: bool = False) -> Tensor | None:
        """Semantic vector of a query or a document from the last states: [n, s]."""
        if self.semantic is None:
            return None
        return self.semantic_of(_wide(self.pool(hidden, mask)), mask.sum(1, keepdim=True), query)

    def semantic_of(self, pooled: Tensor, tokens: Tensor, query: bool = False) -> Tensor:
        """Semantic vectors [n, s] from pooled states [n, h] of texts of this many tokens [n, 1]."""
        assert self.semantic is not None
        if self.config.normalize_pooled:
            pooled = F.normalize(pooled, dim=-1)
        vector = _linear_in(self.semantic, pooled)
        if self.config.semantic_activation == "tanh":
            vector = torch.tanh(vector)
        if self.config.normalize_semantic:
            vector = F.normalize(vector, dim=-1)
        return vector if query or self.offset is None else self.offset(vector, tokens)

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """One state per text: that of [CLS], or the mean or maximum over its tokens."""
        if self.config.pooling == "cls":
            return hidden[:, 0]
        if self.config.pooling == "max":
            return hidden.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)
        valid = mask[..., None].to(hidden.dtype)
        total = (hidden * valid).sum(1, dtype=torch.promote_types(hidden.dtype, torch.float32))
        return total / mask.sum(1, keepdim=True)

    def score(self, queries: EncodedTexts, passages: EncodedTexts) -> Tensor:
        """Score of every query with every passage: [B, D]."""
        parts = (self.lexical_score(queries, passages), self.semantic_score(queries, passages))
        return torch.stack([part for part in parts if part is not None]).sum(0)

    def semantic_score(self, queries: EncodedTexts, passages: EncodedTexts) -> Tensor | None:
        """c_q · c_d; None for a model without semantic vectors."""
        if queries.semantic is None or passages.semantic is None:
            return None
        return queries.semantic @ passages.semantic.T  # [B, D]

    def lexical_score(self, queries: EncodedTexts, passages: EncodedTexts) -> Tensor | None:
        """The part of the score that goes through keys; None for a model without keys."""
        kind = self.config.router
        if kind == "none":
            return None
        if kind == "sparse":
            assert queries.pooled is not None and passages.pooled is not None
            return queries.pooled @ passages.pooled.T
        if kind == "all_to_all":
            assert queries.vectors is not None and passages.vectors is not None
            return all_to_all_score(queries.vectors, queries.routed, passages.vectors, passages.routed)
        return lexical_score(_batch(queries), _batch(passages))


def _batch(texts: EncodedTexts) -> RoutedBatch:
    assert texts.keys is not None and texts.weights is not None and texts.vectors is not None
    return RoutedBatch(texts.keys, texts.weights, texts.vectors)


def _linear_in(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer in the precision of its input."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def _wide(value: Tensor) -> Tensor:
    """Widen to at least fp32: scores are sums of many small products."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
