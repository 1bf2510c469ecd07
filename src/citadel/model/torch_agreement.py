"""Check an exported graph against the torch model on a few texts; `agreement` does it with numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.encoder import Encoder
from citadel.encode.session import DOCUMENT_SEMANTIC
from citadel.encode.tokenizer import Encoding, attended_tokens
from citadel.model.agreement import checked_texts, limit, refuse_beyond, share
from citadel.model.citadel import Citadel

Outputs = dict[str, NDArray[Any]]
_PER_TEXT = ("semantic", "pooled")
_OUTPUTS = (*_PER_TEXT, "vectors", "keys", "weights")  # these by token


class Compared(NamedTuple):
    """Comparison of graph and torch on one text."""

    differences: dict[str, float]  # of each output, relative to its largest value
    keys: int
    equal: int  # of the keys


def check_torch(encoder: Encoder, model: Citadel, exact: bool) -> str:
    """Raise if the outputs of a graph differ from torch; return a line on what was compared."""
    texts = checked_texts(encoder)
    compared = [compare(encoder, model, text) for text in texts]
    for one in compared:
        for what, difference in one.differences.items():
            refuse_beyond(limit(exact), what, difference, "torch's")
    tokens = sum(map(len, texts))
    worst = max((max(one.differences.values(), default=0.0) for one in compared), default=0)
    keys, equal = sum(one.keys for one in compared), sum(one.equal for one in compared)
    routed = f", {equal:,} of {keys:,} keys equal" if keys else ""
    return (
        f"agrees with torch: {len(texts)} texts, {tokens} tokens{routed}, mean difference at most {worst:.1g}"
    )


def compare(encoder: Encoder, model: Citadel, text: Encoding) -> Compared:
    """Compare the outputs of graph and torch for one text."""
    outputs, expected = _graph(encoder, text), _torch(model, text)
    differences = {name: share(outputs[name], expected[name]) for name in outputs if name != "keys"}
    if "keys" not in outputs:
        return Compared(differences, 0, 0)
    difference, keys, equal = compare_keys(
        outputs["keys"], outputs["weights"], expected["keys"], expected["weights"]
    )
    return Compared(differences | {"keys": difference}, keys, equal)


def compare_keys(
    keys: NDArray[Any], weights: NDArray[Any], wanted: NDArray[Any], wanted_weights: NDArray[Any]
) -> tuple[float, int, int]:
    """Difference of the weights of keys [t, L] from torch's; number of keys, and of equal keys.

    Keys with equal weights may be swapped. A key that torch does not list weighs at most as much as its last.
    """
    same = keys[:, :, None] == wanted[:, None, :]  # [t, L, L]
    theirs = np.where(same.any(-1), (same * wanted_weights[:, None, :]).sum(-1), wanted_weights[:, -1:])
    live = wanted_weights > 0
    return share(weights, theirs), int(live.sum()), int((live & (keys == wanted)).sum())


def _graph(encoder: Encoder, text: Encoding) -> Outputs:
    outputs = encoder.outputs(text)
    if DOCUMENT_SEMANTIC in outputs:
        document = outputs.pop(DOCUMENT_SEMANTIC)
        outputs["semantic"] = outputs["semantic"] if _as_query(encoder.config) else document
    if "activations" in outputs:
        outputs["pooled"] = outputs.pop("activations")
    if encoder.config.router == "all_to_all":  # normalised after the graph
        lengths = np.linalg.norm(outputs["vectors"], axis=-1, keepdims=True)
        outputs["vectors"] = outputs["vectors"] / np.maximum(lengths, 1e-12)
    return {name: values if name in _PER_TEXT else values[text.routed] for name, values in outputs.items()}


def _as_query(config: ModelConfig) -> bool:
    """Whether texts are compared as queries: the graph has the larger number of keys."""
    return config.query_keys > config.document_keys


@torch.no_grad()
def _torch(model: Citadel, text: Encoding) -> Outputs:
    ids = torch.from_numpy(text.ids)[None]  # [1, T]
    routed = torch.from_numpy(text.routed)[None]
    query = _as_query(model.config)
    attended = torch.from_numpy(attended_tokens(model.config, text.ids).astype(np.int64))[None]
    encoded = model.encode(ids, attended, routed, query=query, learning=False)
    outputs = {name: part[0].numpy() for name, part in encoded.tensors().items() if name in _OUTPUTS}
    return {name: values if name in _PER_TEXT else values[text.routed] for name, values in outputs.items()}
