"""The router's matrix product outside ONNX Runtime, without storing V activations per token.

Used only where it is faster. Keys and logits are bit-identical to the full graph. Weights may differ in the
last bit, because the two libraries round the logarithm differently (in 1 of 100,663,296 numbers tried).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.onnx_file import OnnxFile

if TYPE_CHECKING:
    from citadel._native import Router

# Initialisers of an int8 graph.
TABLE, SCALES, BIASES = "embeddings.word", "embeddings.word.scale", "router.bias"
STEP, ZERO = "keys.step", "keys.zero"  # quantisation of the states
CHOSEN = {"keys", "weights"}  # outputs computed here
_FAST = "avx512vnni"  # with other instruction sets ONNX Runtime is faster
_MAX_KEYS = 64  # per token; keys are inserted one by one, so ONNX Runtime is faster for many more


class KeyRouter:
    """Computes the outputs `keys` and `weights` of the full graph."""

    def __init__(self, states: str, router: Router, limit: int) -> None:
        self.states = states  # output of the shortened graph, the input of `choose`
        self._router, self._num_keys = router, limit

    def choose(self, states: NDArray[np.uint8], length: int) -> dict[str, NDArray[Any]]:
        """Top keys of the tokens after [CLS]: [n, t, h] → [n, T, L], zeros for tokens without a state."""
        n, t, h = states.shape
        keys, weights = self._router.best(states.reshape(n * t, h), self._num_keys)
        return {"keys": self._around(keys, n, length), "weights": self._around(weights, n, length)}

    def _around(self, chosen: NDArray[Any], n: int, length: int) -> NDArray[Any]:
        """Pad with zeros: [n · t, L] → [n, T, L]."""
        whole = np.zeros((n, length, self._num_keys), chosen.dtype)
        rows = chosen.reshape(n, -1, self._num_keys)
        whole[:, 1 : 1 + rows.shape[1]] = rows
        return whole


class Shortened(NamedTuple):
    """A graph that ends before the router's product, and the router that completes it."""

    graph: bytes
    router: KeyRouter


def shorten(file: OnnxFile, config: ModelConfig) -> Shortened | None:
    """Remove the router's product from a graph; None if it must stay.

    It stays unless the graph is an int8 graph of a dynamic router that matches config.json and the machine
    has AVX-512 VNNI.
    """
    limit = min(max(config.query_keys, config.document_keys), config.backbone.vocabulary)
    if config.router != "dynamic" or limit > _MAX_KEYS:
        return None
    try:
        from citadel._native import Router, instruction_set
    except ImportError:  # the extension was not compiled
        return None
    if instruction_set() != _FAST:
        return None
    try:
        states = find_states(file, limit)
        table = file.array(TABLE, np.int8).reshape(config.backbone.vocabulary, config.backbone.hidden)
        scales, biases = (file.array(name, np.float32) for name in (SCALES, BIASES))
        step, zero = file.array(STEP, np.float32).item(), file.array(ZERO, np.uint8).item()
        router = Router(table, scales, biases, step, zero)
        return Shortened(file.cut(states, CHOSEN), KeyRouter(states, router, limit))
    except ValueError:  # not an exported file; ONNX Runtime reports what is wrong with it
        return None


def find_states(file: OnnxFile, limit: int) -> str:
    """Name of the input of the router's product; ValueError if product and top keys do not follow it."""
    nodes = file.nodes()
    [[states]] = [node.outputs for node in nodes if node.inputs[1:] == [STEP, ZERO]]
    [product] = [node for node in nodes if states in node.inputs]
    [logits] = product.outputs
    [chosen] = [node for node in nodes if logits in node.inputs]
    if product.inputs[2:] != [STEP, SCALES, ZERO, "", BIASES] or chosen.inputs != [logits, f"shape_{limit}"]:
        raise ValueError("not the router's product")
    if not CHOSEN.issubset(file.outputs()):
        raise ValueError("not the outputs of a dynamic router")
    return states
