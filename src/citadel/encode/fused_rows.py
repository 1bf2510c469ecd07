"""Replace passes over an int8 graph's states by operators of our own, each of which reads a row once.

ONNX Runtime quantises the input of a product with four operators and scales its result with two or three, and
each of them reads and writes all states. The results are bit-identical (native/README.md, "Arithmetic").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from citadel.encode.onnx_file import OnnxFile, Operation

DOMAIN = "citadel"
_FAST = "avx512vnni"  # the only set whose kernels are faster than ONNX Runtime's
_STEP, _ZERO = np.float32(1 / 127), 128  # of the codes that our operators write


class _Quantized(NamedTuple):
    """The nodes that quantise the rows of `x`, and their results."""

    nodes: tuple[int, ...]
    x: str
    largest: str
    codes: str


class _Graph:
    """A graph's nodes, and who reads what."""

    def __init__(self, file: OnnxFile) -> None:
        self.nodes = file.operations()
        self._readers = defaultdict[str, list[int]](list)
        for number, node in enumerate(self.nodes):
            for name in set(node.inputs):
                self._readers[name].append(number)
        self._file, self._outputs = file, set(file.outputs())
        self._tensors = {tensor.name: tensor for tensor in file.tensors()}

    def readers(self, name: str) -> list[int]:
        return [] if name in self._outputs else self._readers[name]

    def reader(self, name: str, kind: str) -> int:
        """The only node that reads `name`, if it is of this kind and has no attributes; otherwise -1."""
        readers = self.readers(name)
        if len(readers) != 1 or self.nodes[readers[0]].kind != kind or self.nodes[readers[0]].attributes:
            return -1
        return readers[0]

    def is_row(self, name: str) -> bool:
        """Whether a name is an initialiser with one dimension."""
        return name in self._tensors and len(self._tensors[name].shape) == 1

    def width(self, name: str) -> int:
        return self._tensors[name].shape[-1]

    def is_last_axis(self, name: str) -> bool:
        return name in self._tensors and self._tensors[name].numbers == (-1,)

    def has_code_scale(self, step: str, zero: str) -> bool:
        if any(name not in self._tensors or self._tensors[name].shape for name in (step, zero)):
            return False
        return bool(
            self._file.array(step, np.float32) == _STEP and self._file.array(zero, np.uint8).item() == _ZERO
        )


def fused(file: OnnxFile) -> OnnxFile | None:
    """The graph with our operators; None if it has nothing to replace or the machine is not of the kind."""
    try:
        from citadel._native import instruction_set
    except ImportError:  # the extension was not compiled
        return None
    if instruction_set() != _FAST:
        return None
    graph = _Graph(file)
    removed, added = set[int](), dict[int, Operation]()
    chains = list(_quantized(graph))
    scales, by_input = {chain.largest for chain in chains}, {chain.x: chain for chain in chains}
    for number, node in enumerate(graph.nodes):
        if node.kind == "Mul" and not node.attributes and node.inputs[1] in scales:
            nodes, operation, chain = _scaled(graph, node, by_input)
            if operation is not None:
                removed |= {number, *nodes}
                added[max(number, nodes[-1]) if chain is None else number] = operation
                if chain is not None:
                    chains.remove(chain)
                    removed |= set(chain.nodes)
    for chain in chains:
        removed |= set(chain.nodes)
        added[chain.nodes[0]] = _operation("QuantizeRows", [chain.x], [chain.codes, chain.largest])
    widths = {
        node.outputs[0]: graph.width(node.inputs[2])
        for node in added.values()
        if node.kind == f"{DOMAIN}.AddRows"
    }
    return file.replaced(removed, added, DOMAIN, widths) if added else None


def library() -> str:
    """The library that ONNX Runtime loads the operators from."""
    from citadel import _native

    return _native.__file__


def _operation(kind: str, inputs: list[str], outputs: list[str]) -> Operation:
    return Operation(f"{DOMAIN}.{kind}", inputs, outputs, {})


def _quantized(graph: _Graph) -> Iterator[_Quantized]:
    """Rows divided by their largest magnitude, then quantised."""
    for number, node in enumerate(graph.nodes):
        if node.kind != "Abs":
            continue
        [x], [magnitude] = node.inputs, node.outputs
        largest = _largest(graph, magnitude)
        if largest < 0:
            continue
        [divisor] = graph.nodes[largest].outputs
        for quotient in graph.readers(divisor):
            if graph.nodes[quotient] == Operation("Div", [x, divisor], graph.nodes[quotient].outputs, {}):
                codes = graph.reader(graph.nodes[quotient].outputs[0], "QuantizeLinear")
                if codes >= 0 and graph.has_code_scale(*graph.nodes[codes].inputs[1:3]):
                    chain = (number, largest, quotient, codes)
                    yield _Quantized(chain, x, divisor, graph.nodes[codes].outputs[0])


def _largest(graph: _Graph, magnitude: str) -> int:
    """The node that takes the largest magnitude of each row; -1 for none."""
    readers = graph.readers(magnitude)
    if len(readers) != 1:
        return -1
    node = graph.nodes[readers[0]]
    is_maximum = node.kind == "ReduceMax" and node.attributes == {"keepdims": (1,)} and len(node.inputs) == 2
    return readers[0] if is_maximum and graph.is_last_axis(node.inputs[1]) else -1


def _scaled(
    graph: _Graph, node: Operation, by_input: dict[str, _Quantized]
) -> tuple[list[int], Operation | None, _Quantized | None]:
    """What follows a scaled product: the nodes, the operator for them, and the rows that it quantises."""
    [scaled] = node.outputs
    given = list(node.inputs)
    readers = graph.readers(scaled)
    if len(readers) != 1:
        return [], None, None
    reader = graph.nodes[readers[0]]
    if reader.kind == "Split" and reader.attributes == {"axis": (-1,), "num_outputs": (3,)}:
        return [readers[0]], _operation("SplitRows", given, reader.outputs), None
    biased = graph.reader(scaled, "Add")
    if biased < 0 or not graph.is_row(bias := _other(graph.nodes[biased], scaled)):
        return [], None, None
    [total] = graph.nodes[biased].outputs
    if (active := graph.reader(total, "Gelu")) >= 0:
        [result] = graph.nodes[active].outputs
        chain = by_input.get(result)
        if chain is None or set(graph.readers(result)) != {chain.nodes[0], chain.nodes[2]}:
            return [], None, None
        results = [chain.codes, chain.largest]
        return [biased, active], _operation("GeluQuantizeRows", [*given, bias], results), chain
    if (last := graph.reader(total, "Add")) >= 0:
        residual = _other(graph.nodes[last], total)
        return (
            [biased, last],
            _operation("AddRows", [*given, bias, residual], graph.nodes[last].outputs),
            None,
        )
    return [], None, None


def _other(node: Operation, name: str) -> str:
    """The other input of a node with two inputs."""
    first, second = node.inputs
    return second if first == name else first
