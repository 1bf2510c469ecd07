"""Reference forward pass in numpy, one text at a time; exports are checked against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import USUAL_LENGTH, ModelConfig
from citadel.encode.tokenizer import attended_tokens
from citadel.model.positions import distance_classes, rotated, rotations
from citadel.types import Floats, TokenVectors

State = Mapping[str, Floats]
Wide = NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def forward(
    config: ModelConfig,
    state: State,
    ids: NDArray[np.int64],
    routed: NDArray[np.bool_],
    *,
    document: bool = False,
) -> TokenVectors:
    """Vectors and φ of the routed tokens of one text, and its semantic vector.

    `document` subtracts the offset of a document, if the model has one. Computed in float64; every token is
    attended to, unless the config excepts padding.
    """
    net = _Numpy(config, state)
    hidden = net.backbone(ids)  # [T, h]
    return TokenVectors(
        ids[routed].astype(np.uint32),
        net.linear(hidden[routed], "token").astype(np.float32) if config.has_token_vectors else None,
        net.activations(hidden[routed]).astype(np.float32) if config.has_router_head else None,
        net.semantic(hidden, document).astype(np.float32) if config.has_semantic else None,
    )


def router_states(config: ModelConfig, state: State, ids: NDArray[np.int64]) -> Wide:
    """States that the router multiplies with the embeddings, without [CLS], which has no key."""
    net = _Numpy(config, state)
    return net.router_states(net.backbone(ids)[1:])


class _Numpy:
    def __init__(self, config: ModelConfig, state: State) -> None:
        self._config, self._state = config, state

    def backbone(self, ids: NDArray[np.int64]) -> Wide:
        shape = self._config.backbone
        is_modern = shape.architecture == "modernbert"
        x = self._get("embeddings.word")[ids]
        if not is_modern:
            x = x + self._get("embeddings.position")[np.arange(len(ids)) + shape.position_offset]
        x = self.norm(x, "embeddings.norm")
        self._attended = attended_tokens(self._config, ids)
        for layer in range(shape.layers):
            x = self._modern_layer(x, layer) if is_modern else self._layer(x, f"layers.{layer}.")
        return self.norm(x, "final_norm") if is_modern else x  # [T, h]

    def _modern_layer(self, x: Wide, layer: int) -> Wide:
        """Norm before each block, and a feed-forward block with a gate (GeGLU)."""
        name, shape = f"layers.{layer}.", self._config.backbone
        inner = self.norm(x, name + "attention.norm") if layer else x
        x = x + self.linear(self._attention(inner, name, layer), name + "attention.output")
        wide = self.linear(self.norm(x, name + "feedforward.norm"), name + "feedforward.up")
        active = gelu(wide[:, : shape.intermediate]) * wide[:, shape.intermediate :]
        return x + self.linear(active, name + "feedforward.down")

    def _layer(self, x: Wide, name: str) -> Wide:
        x = self.norm(
            x + self.linear(self._attention(x, name), name + "attention.output"), name + "attention.norm"
        )
        inner = self.linear(x, name + "feedforward.up")
        active = gelu(inner) if self._config.backbone.activation == "gelu" else np.maximum(inner, 0)
        return self.norm(x + self.linear(active, name + "feedforward.down"), name + "feedforward.norm")

    def _attention(self, x: Wide, name: str, layer: int = 0) -> Wide:
        shape = self._config.backbone
        joined = self.linear(x, name + "attention.qkv").reshape(len(x), 3, shape.heads, shape.head_dimension)
        query, key, value = joined.transpose(1, 2, 0, 3)  # each [heads, T, h/heads]
        if shape.architecture == "modernbert":
            turns = [part[: len(x)] for part in rotations(shape, shape.is_local(layer))]
            query, key = rotated(query, *turns), rotated(key, *turns)
        logits = query @ key.transpose(0, 2, 1) / math.sqrt(shape.head_dimension)  # [heads, T, T]
        distances = np.arange(len(x)) - np.arange(len(x))[:, None]  # j - i
        if shape.relative_buckets:
            classes = distance_classes(shape.positions, shape.relative_buckets)
            table = self._get("embeddings.relative")[
                classes[distances + shape.positions - 1]
            ]  # [T, T, heads]
            logits = logits + table.transpose(2, 0, 1)
        near = np.abs(distances) <= shape.local_window if shape.is_local(layer) else True
        logits = np.where(self._attended & near, logits, -np.inf)
        best = logits.max(axis=-1, keepdims=True)  # -∞ for a token that sees no other; its result is 0
        exponentials = np.exp(logits - np.where(np.isfinite(best), best, 0))
        mixed: Wide = (exponentials / np.maximum(exponentials.sum(axis=-1, keepdims=True), 1e-300)) @ value
        return mixed.transpose(1, 0, 2).reshape(len(x), shape.hidden)

    def semantic(self, hidden: Wide, document: bool) -> Wide:
        pooled = {"cls": hidden[0], "max": hidden.max(axis=0), "mean": hidden.mean(axis=0)}[
            self._config.pooling
        ]
        if self._config.normalize_pooled:
            pooled = _unit(pooled)
        vector = self.linear(pooled, "semantic")
        if self._config.semantic_activation == "tanh":
            vector = np.tanh(vector)
        if self._config.normalize_semantic:
            vector = _unit(vector)
        return self._offset(vector, len(hidden)) if document and self._config.document_offset else vector

    def _offset(self, vector: Wide, tokens: int) -> Wide:
        length = (math.log(tokens) - USUAL_LENGTH) * self._get("offset.length")
        inner = np.maximum(self.linear(vector, "offset.inner") + length, 0)
        offset = np.logaddexp(0, self.linear(inner, "offset.outer"))
        moved: Wide = vector - offset * self._get("offset.direction")
        return moved

    def activations(self, hidden: Wide) -> Wide:
        """φ = log(1 + relu(z)) (Eq. 9), [T, V]."""
        logits = self.router_states(hidden) @ self._get("embeddings.word").T + self._get("router.bias")
        activated: Wide = np.log1p(np.maximum(logits, 0))
        return np.log1p(activated) if self._config.sparse_activation == "log log" else activated

    def router_states(self, hidden: Wide) -> Wide:
        """States that the router multiplies with the embeddings, [T, h]."""
        return self.norm(gelu(self.linear(hidden, "router.dense")), "router.norm")

    def linear(self, x: Wide, name: str) -> Wide:
        product: Wide = x @ self._get(name + ".weight").T + self._get(name + ".bias")
        return product

    def norm(self, x: Wide, name: str) -> Wide:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._config.backbone.epsilon)
        normalized: Wide = centred / spread * self._get(name + ".weight") + self._get(name + ".bias")
        return normalized

    def _get(self, name: str) -> Any:
        return self._state[name].astype(np.float64)


def _unit(vector: Wide) -> Wide:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def gelu(x: Wide) -> Wide:
    """Exact GELU, x · Φ(x).

    >>> gelu(np.array([0.0, 1.0])).round(4).tolist()
    [0.0, 0.8413]
    """
    result: Wide = x * (1 + _erf(x / math.sqrt(2))) / 2
    return result
