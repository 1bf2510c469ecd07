"""Build ONNX graphs from nodes and initialisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

OPSET, CONTRIB = 20, "com.microsoft"
IR_VERSION = 9
Array = NDArray[Any]


class Graph:
    """A graph under construction; every method returns the name of its result.

    >>> graph = Graph()
    >>> graph.node("Add", "x", graph.initialiser("one", np.ones(1, np.float32)))
    'Add_0'
    """

    def __init__(self) -> None:
        self._proto = GraphProto(name="citadel")
        self._known: set[str] = set()

    def initialiser(self, name: str, values: Array) -> str:
        """Add a stored array; arrays of the same name are stored once."""
        if name not in self._known:
            self._known.add(name)
            self._proto.initializer.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def shape(self, *sizes: int) -> str:
        """Add a constant list of integers, for Reshape, Slice and similar nodes."""
        name = "shape_" + "_".join(map(str, sizes))
        return self.initialiser(name, np.array(sizes, np.int64))

    def number(self, value: float) -> str:
        """Add a constant fp32 number."""
        return self.initialiser(f"number_{value!r}", np.array(value, np.float32))

    def node(self, operation: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one result."""
        return self.nodes(operation, *inputs, results=[name] if name else None, **attributes)[0]

    def nodes(
        self,
        operation: str,
        *inputs: str,
        results: Sequence[str] | None = None,
        count: int = 1,
        **attributes: Any,
    ) -> list[str]:
        """Add a node with several results; ONNX Runtime's own operations begin with `ms.`."""
        number = len(self._proto.node)
        kind, own = operation.removeprefix("ms."), operation.startswith("ms.")
        named = list(results or (f"{kind}_{number}" + (f".{i}" if i else "") for i in range(count)))
        domain = CONTRIB if own else ""
        self._proto.node.append(
            helper.make_node(kind, inputs, named, f"{kind}_{number}", domain=domain, **attributes)
        )
        return named

    def input(self, name: str, shape: Sequence[str | int]) -> str:
        """Add an integer input."""
        self._proto.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        return name

    def output(self, name: str, shape: Sequence[str | int], kind: int = TensorProto.FLOAT) -> None:
        """Declare a result of a node as an output of the graph."""
        self._proto.output.append(helper.make_tensor_value_info(name, kind, shape))

    def model(self) -> ModelProto:
        """The finished model."""
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(
            self._proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="citadel"
        )
