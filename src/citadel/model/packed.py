"""Encode texts of different lengths without padding, on a GPU: the tokens of all texts are one sequence."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from citadel.model.backbone import Layer
from citadel.model.citadel import Citadel
from citadel.model.packed_attention import attend, can_attend
from citadel.model.router import route_top

_ROUTED_AT_ONCE = 1 << 13  # tokens


class PackedTexts(NamedTuple):
    """Where the tokens of texts are in one sequence.

    >>> packed = PackedTexts.of(torch.tensor([2, 1]), longest=2, total=3)
    >>> packed.texts.tolist(), packed.starts.tolist(), packed.positions.tolist()
    ([0, 0, 1], [0, 2, 3], [0, 1, 0])
    """

    texts: Tensor  # [N], the text of each token, ascending
    positions: Tensor  # [N], of each token in its text
    starts: Tensor  # [n + 1], int32
    lengths: Tensor  # [n]
    longest: int

    @classmethod
    def of(cls, lengths: Tensor, longest: int, total: int) -> PackedTexts:
        """Texts of these lengths; their maximum and sum are given, because reading them would take time."""
        texts = torch.repeat_interleave(lengths, output_size=total)
        starts = torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0))
        positions = torch.arange(total, device=lengths.device) - starts[texts]
        return cls(texts, positions, starts.int(), lengths, longest)


class PackedEncoding(NamedTuple):
    """Keys, weights and vectors of tokens, and semantic vectors of texts."""

    keys: Tensor  # [N, L]
    weights: Tensor  # [N, L]
    vectors: Tensor  # [N, d]
    semantic: Tensor | None  # [n, s]


def can_pack(model: Citadel, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a model can encode packed texts."""
    return can_attend(device, dtype) and model.can_pack and model.config.router == "dynamic"


@torch.no_grad()
def encode_documents(
    model: Citadel, ids: Tensor, texts: PackedTexts, routed: Tensor, dtype: torch.dtype
) -> PackedEncoding:
    """Encode documents with tokens `ids` [N], of which those `routed` [N] may have keys."""
    hidden = packed_states(model, ids, texts, dtype)  # [N, h]
    assert model.router is not None and model.token is not None
    x = model.router(hidden)
    parts = [
        _route(model, x[at : at + _ROUTED_AT_ONCE], routed[at : at + _ROUTED_AT_ONCE])
        for at in range(0, len(x), _ROUTED_AT_ONCE)
    ]
    weights, keys = (torch.cat(column) for column in zip(*parts, strict=True))
    vectors = model.token(hidden).float() * routed[:, None]
    return PackedEncoding(keys, weights, vectors, _semantic(model, hidden, texts))


def packed_states(model: Citadel, ids: Tensor, texts: PackedTexts, dtype: torch.dtype) -> Tensor:
    """The last states of all tokens [N, h]."""
    embeddings = model.embeddings
    x: Tensor = torch.nn.functional.embedding(ids, embeddings.word)
    x = embeddings.norm((x + embeddings.position[embeddings.offset + texts.positions]).to(dtype))
    for layer in model.layers:
        assert isinstance(layer, Layer)
        x = layer.feedforward(_attention(layer, x, texts))
    return x


def _attention(layer: Layer, x: Tensor, texts: PackedTexts) -> Tensor:
    part = layer.attention
    q, k, v = part.qkv(x).view(len(x), 3, part.heads, -1).unbind(1)  # each [N, heads, h/heads]
    mixed = attend(q, k, v, texts.starts, texts.longest)
    normalized: Tensor = part.norm(x + part.output(mixed.reshape(len(x), -1)))
    return normalized


def _route(model: Citadel, x: Tensor, routed: Tensor) -> tuple[Tensor, Tensor]:
    weights, keys = route_top(x[None], *model.router_matrix(), routed[None], model.config.document_keys)
    return weights[0], keys[0]


def _semantic(model: Citadel, hidden: Tensor, texts: PackedTexts) -> Tensor | None:
    if model.semantic is None:
        return None
    if model.config.pooling == "cls":
        pooled = hidden[texts.starts[:-1]].float()
    else:
        pooled = torch.segment_reduce(
            hidden.float(), model.config.pooling, lengths=texts.lengths, axis=0, unsafe=True
        )
    return model.semantic_of(pooled, texts.lengths[:, None])
