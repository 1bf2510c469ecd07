"""Check an exported graph against the numpy forward pass on a few texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.encoder import Encoder
from citadel.encode.session import DOCUMENT_SEMANTIC
from citadel.encode.tokenizer import Encoding
from citadel.errors import InputError
from citadel.model.forward import forward
from citadel.types import Floats

TEXTS = ("", "E = mc².", "Which heart conditions cause an irregular beat, and how are they treated?")
EXACT = 1e-3  # fp32 against float64
CLOSE = 0.2  # int8 against float64


def check_agreement(encoder: Encoder, state: Mapping[str, Floats], exact: bool) -> None:
    """Raise if the outputs of a graph differ from the numpy forward pass."""
    for text in checked_texts(encoder):
        for what, difference in differences(encoder, state, text):
            refuse_beyond(limit(exact), what, difference, "the model's")


def checked_texts(encoder: Encoder) -> list[Encoding]:
    """The texts that are compared: documents, and queries with padding that is not attended to."""
    queries = [] if encoder.config.attend_padding else encoder.tokenizer.queries(TEXTS)
    return [*encoder.tokenizer.documents(TEXTS), *queries]


def limit(exact: bool) -> float:
    """The largest allowed difference.

    >>> limit(exact=True)
    0.001
    """
    return EXACT if exact else CLOSE


def refuse_beyond(max_difference: float, what: str, difference: float, whose: str) -> None:
    """Raise if an output differs by more than `max_difference` or by NaN."""
    if not difference <= max_difference:
        advice = "nothing was written; please report it"
        raise InputError(f"the exported {what} differ from {whose} by {difference:.2g}: {advice}")


def differences(encoder: Encoder, state: Mapping[str, Floats], text: Encoding) -> Iterator[tuple[str, float]]:
    """Mean difference of each output, relative to the largest expected value."""
    expected, outputs = forward(encoder.config, state, text.ids, text.routed), encoder.outputs(text)
    if expected.semantic is not None:
        yield "semantic vectors", share(outputs["semantic"], expected.semantic)
    if DOCUMENT_SEMANTIC in outputs:
        document = forward(encoder.config, state, text.ids, text.routed, document=True)
        assert document.semantic is not None
        yield "semantic vectors of documents", share(outputs[DOCUMENT_SEMANTIC], document.semantic)
    if expected.vectors is not None:
        yield "token vectors", share(outputs["vectors"][text.routed], expected.vectors)
    if expected.activations is not None and "activations" in outputs:
        sums = encoder.config.sparse_pooling == "sum"
        pooled = expected.activations.sum(0) if sums else expected.activations.max(axis=0, initial=0.0)
        yield "activations", share(outputs["activations"], pooled)
    elif expected.activations is not None:
        keys, weights = (outputs[name][text.routed] for name in ("keys", "weights"))  # [t, L]
        best = -np.sort(-expected.activations, axis=1)[:, : weights.shape[1]]
        yield "weights", share(weights, best)
        yield "keys' weights", share(weights, np.take_along_axis(expected.activations, keys, axis=1))


def share(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Mean difference relative to the largest expected value.

    >>> share(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    0.25
    """
    if not expected.size:
        return 0.0
    return float(np.abs(actual - expected).mean() / max(float(np.abs(expected).max()), 1e-6))
