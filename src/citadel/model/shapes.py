"""Names and shapes of a model's tensors, and the check of a checkpoint against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from citadel.encode.config import BackboneConfig, ModelConfig
from citadel.errors import InputError
from citadel.types import Floats


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor by name.

    >>> shapes(ModelConfig("dynamic"))["layers.11.attention.qkv.weight"]
    (2304, 768)
    """
    return dict(_shapes(config))


def backbone_shapes(shape: BackboneConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a backbone by name.

    >>> backbone_shapes(BackboneConfig(hidden=8, heads=2))["embeddings.norm.weight"]
    (8,)
    """
    return dict(_backbone(shape))


def _backbone(shape: BackboneConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = shape.hidden
    yield "embeddings.word", (shape.vocabulary, hidden)
    is_modern = shape.architecture == "modernbert"
    if not is_modern:
        yield "embeddings.position", (shape.positions, hidden)
    if shape.relative_buckets:
        yield "embeddings.relative", (shape.relative_buckets, shape.heads)
    yield from _norm("embeddings.norm", hidden)
    for layer in range(shape.layers):
        name = f"layers.{layer}."
        yield from _linear(name + "attention.qkv", 3 * hidden, hidden)
        yield from _linear(name + "attention.output", hidden, hidden)
        if layer or not is_modern:  # ModernBERT's first layer follows the norm of the embeddings
            yield from _norm(name + "attention.norm", hidden)
        yield from _linear(name + "feedforward.up", (1 + is_modern) * shape.intermediate, hidden)
        yield from _linear(name + "feedforward.down", hidden, shape.intermediate)
        yield from _norm(name + "feedforward.norm", hidden)
    if is_modern:
        yield from _norm("final_norm", hidden)


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    shape = config.backbone
    hidden = shape.hidden
    yield from _backbone(shape)
    if config.has_token_vectors:
        yield from _linear("token", config.token_dimension, hidden)
    if config.has_semantic:
        yield from _linear("semantic", config.semantic_dimension, hidden)
    if config.document_offset:
        units = config.document_offset
        yield "offset.direction", (config.semantic_dimension,)
        yield from _linear("offset.inner", units, config.semantic_dimension)
        yield "offset.length", (units,)
        yield from _linear("offset.outer", 1, units)
    if config.has_router_head:
        yield from _linear("router.dense", hidden, hidden)
        yield from _norm("router.norm", hidden)
        yield "router.bias", (shape.vocabulary,)
    if config.static_queries:
        yield "query.weight", (shape.vocabulary,)


def _linear(name: str, out: int, given: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".weight", (out, given)
    yield name + ".bias", (out,)


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".weight", (width,)
    yield name + ".bias", (width,)


def check_shapes(config: ModelConfig, state: Mapping[str, Floats], where: str) -> None:
    """Raise if the tensors of a checkpoint do not match its config."""
    wanted = shapes(config)
    for name in sorted({*wanted, *state}):
        if name not in state:
            raise InputError(f"the tensor {name} is missing: take another checkpoint", where)
        if name not in wanted:
            raise InputError(
                f"the tensor {name} is not part of this model: its config.json belongs to another model",
                where,
            )
        if state[name].shape != wanted[name]:
            raise InputError(f"the tensor {name} has shape {state[name].shape}, not {wanted[name]}", where)
        if not np.isfinite(state[name]).all():
            raise InputError(f"the tensor {name} holds NaN or infinity: take an earlier checkpoint", where)
