"""Whether an exported graph says what the torch model says, on a few texts; `agreement` asks numpy, without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.encode.encoder import Encoder
from citadel.encode.tokenizer import Encoding
from citadel.model.agreement import TEXTS, limit, refuse_beyond, share
from citadel.model.citadel import Citadel

Outputs = dict[str, NDArray[Any]]
_PER_TEXT = ("semantic", "pooled")
_OUTPUTS = (*_PER_TEXT, "vectors", "keys", "weights")  # these by token


class Compared(NamedTuple):
    """What was compared on one text."""

    differences: dict[str, float]  # of each output, as a share of its largest number
    keys: int
    equal: int  # of the keys


def check_torch(encoder: Encoder, model: Citadel, exact: bool) -> str:
    """Refuse a graph whose numbers differ from torch's; a line on what was compared."""
    texts = encoder.tokenizer.documents(TEXTS)
    found = [compare(encoder, model, text) for text in texts]
    for one in found:
        for what, difference in one.differences.items():
            refuse_beyond(limit(exact), what, difference, "torch's")
    tokens, worst = sum(map(len, texts)), max((max(one.differences.values(), default=0.0) for one in found), default=0)
    keys, equal = sum(one.keys for one in found), sum(one.equal for one in found)
    routed = f", {equal:,} of {keys:,} keys equal" if keys else ""
    return f"agrees with torch: {len(texts)} texts, {tokens} tokens{routed}, mean difference at most {worst:.1g}"


def compare(encoder: Encoder, model: Citadel, text: Encoding) -> Compared:
    """The outputs of graph and torch for one text."""
    found, expected = _graph(encoder, text), _torch(model, text)
    differences = {name: share(found[name], expected[name]) for name in found if name != "keys"}
    if "keys" not in found:
        return Compared(differences, 0, 0)
    difference, keys, equal = compare_keys(found["keys"], found["weights"], expected["keys"], expected["weights"])
    return Compared(differences | {"keys": difference}, keys, equal)


def compare_keys(
    keys: NDArray[Any], weights: NDArray[Any], wanted: NDArray[Any], wanted_weights: NDArray[Any]
) -> tuple[float, int, int]:
    """How far the weights of keys [t, L] are from those torch gives the same keys; live keys, and equal ones of them.

    Two keys of one weight may change places. A key that torch does not list weighs no more than the last it lists."""
    same = keys[:, :, None] == wanted[:, None, :]  # [t, L, L]
    theirs = np.where(same.any(-1), (same * wanted_weights[:, None, :]).sum(-1), wanted_weights[:, -1:])
    live = wanted_weights > 0
    return share(weights, theirs), int(live.sum()), int((live & (keys == wanted)).sum())


def _graph(encoder: Encoder, text: Encoding) -> Outputs:
    found = encoder.outputs(text)
    if "activations" in found:
        found["pooled"] = found.pop("activations")
    if encoder.config.router == "all_to_all":  # made unit vectors behind the graph
        lengths = np.linalg.norm(found["vectors"], axis=-1, keepdims=True)
        found["vectors"] = found["vectors"] / np.maximum(lengths, 1e-12)
    return {name: values if name in _PER_TEXT else values[text.routed] for name, values in found.items()}


@torch.no_grad()
def _torch(model: Citadel, text: Encoding) -> Outputs:
    ids = torch.from_numpy(text.ids)[None]  # [1, T]
    routed = torch.from_numpy(text.routed)[None]
    most = model.config.query_keys > model.config.document_keys  # the graph gives as many keys as either side needs
    encoded = model.encode(ids, torch.ones_like(ids), routed, query=most, learning=False)
    found = {name: part[0].numpy() for name, part in encoded.tensors().items() if name in _OUTPUTS}
    return {name: values if name in _PER_TEXT else values[text.routed] for name, values in found.items()}
