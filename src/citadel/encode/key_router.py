"""The router's product outside of ONNX Runtime: the best keys are taken as they come, and V activations a token are
never written. The graph is run whole where this would not be faster; keys and logits are the same bits either way, and
weights but for the logarithm's last one, where two libraries may round apart (one of 100,663,296 numbers tried)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.onnx_file import OnnxFile

if TYPE_CHECKING:
    from citadel._native import Router

TABLE, SCALES, BIASES = "embeddings.word", "embeddings.word.scale", "router.bias"  # initialisers of an int8 graph
STEP, ZERO = "keys.step", "keys.zero"  # of the states, as bytes
CHOSEN = {"keys", "weights"}  # the outputs that come from here instead
_FAST = "avx512vnni"  # byte products in registers; with other instructions ONNX Runtime is faster
_MOST = 64  # keys a token; they are put in order one by one, so with many more ONNX Runtime is faster, too


class KeyRouter:
    """Gives the outputs `keys` and `weights` that the graph would."""

    def __init__(self, states: str, router: Router, limit: int) -> None:
        self.states = states  # the output of the shortened graph to give to `choose`
        self._router, self._most = router, limit

    def choose(self, states: NDArray[np.uint8], length: int) -> dict[str, NDArray[Any]]:
        """The best keys of the tokens behind [CLS]: [n, t, h] → [n, T, L], zeros for the tokens without a state."""
        n, t, h = states.shape
        keys, weights = self._router.best(states.reshape(n * t, h), self._most)
        return {"keys": self._around(keys, n, length), "weights": self._around(weights, n, length)}

    def _around(self, chosen: NDArray[Any], n: int, length: int) -> NDArray[Any]:
        """[n · t, L] → [n, T, L]."""
        whole = np.zeros((n, length, self._most), chosen.dtype)
        rows = chosen.reshape(n, -1, self._most)
        whole[:, 1 : 1 + rows.shape[1]] = rows
        return whole


class Shortened(NamedTuple):
    """A graph that ends before the router's product, and what does the rest."""

    graph: bytes
    router: KeyRouter


def shorten(contents: bytes, config: ModelConfig) -> Shortened | None:
    """A `model.onnx` without its router's product; None where that must stay in the graph.

    It must in a graph that is no int8 graph of a dynamic router as config.json describes it, and on machines without
    AVX-512 and VNNI.
    """
    limit = min(max(config.query_keys, config.document_keys), config.backbone.vocabulary)
    if config.router != "dynamic" or limit > _MOST:
        return None
    try:
        from citadel._native import Router, instruction_set
    except ImportError:  # a machine on which nothing was compiled
        return None
    if instruction_set() != _FAST:
        return None
    try:
        file = OnnxFile(contents)
        states = find_states(file, limit)
        table = file.array(TABLE, np.int8).reshape(config.backbone.vocabulary, config.backbone.hidden)
        scales, biases = (file.array(name, np.float32) for name in (SCALES, BIASES))
        step, zero = file.array(STEP, np.float32).item(), file.array(ZERO, np.uint8).item()
        router = Router(table, scales, biases, step, zero)
        return Shortened(file.cut(states, CHOSEN), KeyRouter(states, router, limit))
    except ValueError:  # not a file of ours: ONNX Runtime says what it is, if anything
        return None


def find_states(file: OnnxFile, limit: int) -> str:
    """The bytes that enter the router's product; a ValueError where not that product and its top keys follow."""
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
