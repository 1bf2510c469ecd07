"""The router's product outside of ONNX Runtime: the best keys are taken as they come, and V activations a token are
never written. The same bits as from the graph, and the graph is run whole where this would not be faster."""

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
_CHOSEN = {"keys", "weights"}  # the outputs that come from here instead
_FAST = "avx512vnni"  # byte products in registers; with other instructions ONNX Runtime is faster


class KeyRouter:
    """Gives the outputs `keys` and `weights` that the graph would."""

    def __init__(self, states: str, router: Router, most: int) -> None:
        self.states = states  # the output of the shortened graph to give to `choose`
        self._router, self._most = router, most

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

    It must in a graph that is no int8 graph of a dynamic router, and on machines without AVX-512 and VNNI.
    """
    if config.router != "dynamic":
        return None
    try:
        from citadel._native import Router, instruction_set
    except ImportError:  # a machine on which nothing was compiled
        return None
    if instruction_set() != _FAST:
        return None
    try:
        file = OnnxFile(contents)
        states = next(node.outputs[0] for node in file.nodes() if node.inputs[1:] == [STEP, ZERO])
        size = config.backbone.vocabulary, config.backbone.hidden
        table, scales, biases = (
            file.array(name, kind) for name, kind in ((TABLE, np.int8), (SCALES, np.float32), (BIASES, np.float32))
        )
        step, zero = file.array(STEP, np.float32).item(), file.array(ZERO, np.uint8).item()
        router = Router(table.reshape(size), scales, biases, step, zero)
    except (ValueError, StopIteration):  # not a file of ours: ONNX Runtime says what it is, if anything
        return None
    most = min(max(config.query_keys, config.document_keys), config.backbone.vocabulary)
    return Shortened(file.cut(states, _CHOSEN), KeyRouter(states, router, most))
