"""Store and multiply matrices in a graph: as fp32, or as int8 with one scale per row."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from citadel.encode.key_router import STEP, ZERO
from citadel.model.graph import Graph
from citadel.types import Floats

SCALE = ".scale"  # suffix of the scales [rows] of an int8 matrix
MAX_CODE = 127


class ValueRange(NamedTuple):
    """Smallest and largest value, with 0 in between."""

    low: float
    high: float


class Matrices(Protocol):
    """One way to store the large matrices of a model."""

    def product(self, graph: Graph, x: str, name: str, weight: Floats) -> str:
        """x · weightᵀ: [N, in] → [N, out]."""

    def logits(self, graph: Graph, x: str, name: str, table: Floats, bias: str, span: ValueRange) -> str:
        """x · tableᵀ + bias: [N, h] → [N, V], for states that nearly always lie in `span`."""

    def rows(self, graph: Graph, ids: str, name: str, table: Floats) -> str:
        """Look up rows of a table: [n, T] → [n, T, h]."""


class Fp32:
    """fp32. A matrix keeps its layout [out, in] in the file and is transposed when a session starts."""

    def product(self, graph: Graph, x: str, name: str, weight: Floats) -> str:
        return graph.node("MatMul", x, graph.node("Transpose", graph.initialiser(name, weight), perm=[1, 0]))

    def logits(self, graph: Graph, x: str, name: str, table: Floats, bias: str, span: ValueRange) -> str:
        return graph.node("Add", self.product(graph, x, name, table), bias)

    def rows(self, graph: Graph, ids: str, name: str, table: Floats) -> str:
        return graph.node("Gather", graph.initialiser(name, table), ids)


class Int8:
    """int8 with one scale per row, shared by lookup and product.

    The input of a product is quantised with one scale per token. With ONNX's single scale per tensor the
    result for a text would depend on the other texts of its batch.
    """

    def product(self, graph: Graph, x: str, name: str, weight: Floats) -> str:
        matrix, scales = self._store(graph, name, weight)
        turned = graph.node("Transpose", matrix, perm=[1, 0])  # [in, out]
        largest = graph.node("ReduceMax", graph.node("Abs", x), graph.shape(-1), keepdims=1)  # [N, 1]
        step, zero = graph.number(1 / MAX_CODE), graph.initialiser("zero", np.array(128, np.uint8))
        # A row of zeros becomes 0 ÷ 0 and an arbitrary byte; its finite product is multiplied by 0 below.
        codes = graph.node("QuantizeLinear", graph.node("Div", x, largest), step, zero)
        whole = graph.node("ms.MatMulIntegerToFloat", codes, turned, step, scales, zero)
        return graph.node("Mul", whole, largest)

    def logits(self, graph: Graph, x: str, name: str, table: Floats, bias: str, span: ValueRange) -> str:
        """With one scale for all tokens the product adds the bias itself, which saves a pass over V."""
        matrix, scales = self._store(graph, name, table)
        turned = graph.node("Transpose", matrix, perm=[1, 0])  # [h, V]
        size = (span.high - span.low) / 255
        step = graph.initialiser(STEP, np.array(size, np.float32))
        zero = graph.initialiser(ZERO, np.array(round(-span.low / size), np.uint8))
        codes = graph.node("QuantizeLinear", x, step, zero)
        return graph.node("ms.MatMulIntegerToFloat", codes, turned, step, scales, zero, "", bias)

    def rows(self, graph: Graph, ids: str, name: str, table: Floats) -> str:
        matrix, scales = self._store(graph, name, table)
        codes = graph.node("Cast", graph.node("Gather", matrix, ids), to=TensorProto.FLOAT)
        return graph.node(
            "Mul", codes, graph.node("Unsqueeze", graph.node("Gather", scales, ids), graph.shape(2))
        )

    def _store(self, graph: Graph, name: str, weight: Floats) -> tuple[str, str]:
        codes, scales = quantize(weight)
        return graph.initialiser(name, codes), graph.initialiser(name + SCALE, scales)


def quantize(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """int8 codes and one scale per row; a row of zeros has scale 1.

    >>> codes, scales = quantize(np.array([[127, -63.5], [0, 0]], np.float32))
    >>> codes.tolist(), scales.tolist()
    ([[127, -64], [0, 0]], [1.0, 1.0])
    """
    largest = np.abs(matrix).max(axis=1)
    scales = np.where(largest > 0, largest / MAX_CODE, 1).astype(np.float32)  # [rows]
    codes = np.clip(np.round(matrix / scales[:, None]), -MAX_CODE, MAX_CODE)
    return codes.astype(np.int8), scales


def dequantize(codes: NDArray[np.int8], scales: Floats) -> Floats:
    """Codes times scales, as fp32."""
    return (codes.astype(np.float32) * scales[:, None]).astype(np.float32)
