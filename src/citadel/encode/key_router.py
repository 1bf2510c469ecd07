"""The router's matrix product outside ONNX Runtime, without storing V activations per token.

Used only where it is faster. Keys and logits are bit-identical to the full graph, unless a model allows that
a few keys are lost (`ModelConfig.key_margin`). Weights may differ in the last bit, because the two libraries
round the logarithm differently (in 1 of 100,663,296 numbers tried).
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.key_bounds import Table, find_bounds
from citadel.encode.onnx_file import OnnxFile

if TYPE_CHECKING:
    from citadel._native import Router

# Initialisers of an int8 graph.
TABLE, SCALES, BIASES = "embeddings.word", "embeddings.word.scale", "router.bias"
STEP, ZERO = "keys.step", "keys.zero"  # quantisation of the states
CHOSEN = {"keys", "weights"}  # outputs computed here
_FAST = "avx512vnni"  # with other instruction sets ONNX Runtime is faster
_LARGEST_TAU, _ROUNDED = 80.0, 1e-5  # φ is rounded to fp32, and so is τ
SAMPLE = 4096  # states that the bounds are fitted to: of a hundred texts or more, so that they vary
SAMPLED = 8  # every eighth state of a document, as neighbours are alike
_MAX_KEYS = 64  # per token; keys are inserted one by one, so ONNX Runtime is faster for many more


class KeyRouter:
    """Computes the outputs `keys` and `weights` of the full graph. Thread-safe."""

    def __init__(self, states: str, router: Router, limit: int, table: Table, margin: float = 1.0) -> None:
        self.states = states  # output of the shortened graph, the input of `choose`
        self._router, self._num_keys, self._table, self._margin = router, limit, table, margin
        self._floor = math.inf  # of the logits that the bounds are for; infinite without bounds
        self._sample: list[NDArray[np.uint8]] | None = []  # states that the bounds are fitted to
        self._sampling = threading.Lock()

    def choose(
        self,
        states: NDArray[np.uint8],
        length: int,
        tau: float | None = None,
        routed: NDArray[np.bool_] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Top keys of the tokens after [CLS]: [n, t, h] → [n, T, L], zeros for tokens without a state.

        With τ, keys whose weights do not exceed it may be missing, and with `routed` [n, T] those of other
        tokens.
        """
        n, t, h = states.shape
        chosen = None if routed is None else np.flatnonzero(routed[:, 1 : 1 + t])
        rows = states.reshape(n * t, h)
        rows = rows if chosen is None or len(chosen) == n * t else rows[chosen]
        floor = -math.inf if tau is None else math.expm1(min(tau, _LARGEST_TAU)) * (1 - _ROUNDED)
        if floor >= self._floor:
            keys, weights = self._router.best_above(rows, self._num_keys)
        else:
            keys, weights = self._router.best(rows, self._num_keys)
            if self._sample is not None and tau is not None:
                self._learn(rows, floor)
        if len(keys) < n * t:
            keys, weights = (self._spread(values, chosen, n * t) for values in (keys, weights))
        return {"keys": self._around(keys, n, length), "weights": self._around(weights, n, length)}

    def _learn(self, states: NDArray[np.uint8], floor: float) -> None:
        """Add to the sample of states; once there are enough, find the bounds."""
        if not self._sampling.acquire(blocking=False):  # another batch is as good
            return
        try:
            if self._sample is None:
                return
            self._sample.append(states[len(self._sample) % SAMPLED :: SAMPLED].copy())
            if sum(map(len, self._sample)) < SAMPLE:
                return
            sample, self._sample = np.concatenate(self._sample), None
            bounds = find_bounds(self._table, sample, floor, self._margin)
            if bounds is not None:
                self._router.set_bounds(*bounds)
                self._floor = floor  # last: from now on other threads use the bounds
        except MemoryError:  # works without
            return
        finally:
            self._sampling.release()

    def _spread(self, values: NDArray[Any], rows: NDArray[np.int64] | None, count: int) -> NDArray[Any]:
        """Values of some rows among zeros: [r, L] → [count, L]."""
        whole = np.zeros((count, self._num_keys), values.dtype)
        whole[rows] = values
        return whole

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
        steps = (np.float32(step) * scales).astype(np.float64)
        whole = Table(table, steps, biases.astype(np.float64), zero)
        chosen = KeyRouter(states, router, limit, whole, config.key_margin)
        return Shortened(file.cut(states, CHOSEN), chosen)
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
