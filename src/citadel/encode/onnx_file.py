"""Read an ONNX file from its bytes and cut nodes off its end, without copying the weights.

The `onnx` library would parse and copy all weights, and the core needs it for nothing else. An ONNX file is a
protobuf message: a sequence of fields, each with a number, a wire type and a value, which may be a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # wire types
_GRAPH, _OPERATOR_SET = 7, 8  # of a model
_SET_DOMAIN, _SET_VERSION = 1, 2
_MODEL_FIELDS = frozenset((1, 2, 3, 4, 5, 6, _GRAPH, 8, 14))  # no functions, no training
_NODE, _INITIALISER, _INPUT, _OUTPUT, _SHAPE = 1, 5, 11, 12, 13  # of a graph
_GRAPH_FIELDS = frozenset((_NODE, 2, _INITIALISER, 10, _INPUT, _OUTPUT, _SHAPE, 16))  # no sparse initialisers
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INTEGER, _ATTRIBUTE_TENSOR, _ATTRIBUTE_INTEGERS = 1, 3, 5, 8
_ATTRIBUTE_FIELDS = frozenset((1, 2, 3, 4, 5, 7, 8, 13, 20))  # no graphs, sparse tensors, types or references
_TENSOR_SHAPE, _TENSOR_KIND, _TENSOR_NAME, _TENSOR_BYTES = 1, 2, 8, 9
_TENSOR_FIELDS = frozenset((_TENSOR_SHAPE, _TENSOR_KIND, _TENSOR_NAME, _TENSOR_BYTES, 12))  # no external data
_WIDTHS = {
    1: 4,
    2: 1,
    3: 1,
    4: 2,
    5: 2,
    6: 4,
    7: 8,
    9: 1,
    10: 2,
    11: 8,
    12: 4,
    13: 8,
}  # bytes by element type
_INT64 = 7
_SMALL = 512  # bytes of a tensor whose values may be the shape of another
_OUTPUT_NAME, _OUTPUT_TYPE = 1, 2
_TENSOR_TYPE, _ELEMENT_TYPE, _TYPE_SHAPE, _FLOAT = 1, 1, 2, 1
_DIMENSION, _DIMENSION_VALUE, _DIMENSION_NAME = 1, 1, 2
_UNSIGNED_BYTES = bytes.fromhex("0a020802")  # a tensor type whose element type is 2


class MessageField(NamedTuple):
    """One field of a protobuf message."""

    number: int
    whole: memoryview  # the encoded field
    value: memoryview  # of a string, bytes or a message; empty for a number


class Node(NamedTuple):
    """Inputs and outputs of a node."""

    inputs: list[str]
    outputs: list[str]


class Operation(NamedTuple):
    """A node with its operator and its integer attributes."""

    kind: str  # with its domain, as in com.microsoft.MultiHeadAttention
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, tuple[int, ...]]


class Tensor(NamedTuple):
    """An initialiser: its shape, and its values if they are few int64 numbers."""

    name: str
    shape: tuple[int, ...]
    numbers: tuple[int, ...] | None


class OnnxFile:
    """The graph of an ONNX file; ValueError if the bytes are not one."""

    def __init__(self, contents: bytes) -> None:
        self._around = list(fields(memoryview(contents)))
        graphs = [field.value for field in self._around if field.number == _GRAPH]
        if len(graphs) != 1:
            raise ValueError("not an ONNX model with one graph")
        self._fields = list(fields(graphs[0]))

    def nodes(self) -> list[Node]:
        """All nodes, in topological order."""
        return [_node(field) for field in self._fields if field.number == _NODE]

    def operations(self) -> list[Operation]:
        """All nodes; ValueError for subgraphs, references and functions."""
        _only(self._around, _MODEL_FIELDS, "the model")
        _only(self._fields, _GRAPH_FIELDS, "the graph")
        return [_operation(field.value) for field in self._fields if field.number == _NODE]

    def tensors(self) -> list[Tensor]:
        """All initialisers; ValueError if the size of one does not match its shape."""
        return [_tensor(field.value) for field in self._fields if field.number == _INITIALISER]

    def inputs(self) -> list[str]:
        """Names of the graph's inputs."""
        return [
            name
            for field in self._fields
            if field.number == _INPUT
            for name in _texts(field.value, _OUTPUT_NAME)
        ]

    def outputs(self) -> list[str]:
        """Names of the graph's outputs."""
        return [
            name
            for field in self._fields
            if field.number == _OUTPUT
            for name in _texts(field.value, _OUTPUT_NAME)
        ]

    def array(self, name: str, kind: type[np.generic]) -> NDArray[Any]:
        """Flat values of an initialiser; ValueError if there is none of this name."""
        for field in self._fields:
            if field.number == _INITIALISER and _texts(field.value, _TENSOR_NAME) == [name]:
                stored = [part.value for part in fields(field.value) if part.number == _TENSOR_BYTES]
                return np.frombuffer(stored[0] if stored else b"", kind).copy()  # aligned, unlike the file
        raise ValueError(f"no initialiser {name}")

    def replaced(
        self,
        removed: Set[int],
        added: Mapping[int, Operation],
        domain: str,
        widths: Mapping[str, int],
    ) -> Self:
        """Replace nodes by others, of `domain` and without attributes, at positions of removed ones.

        `widths` names results that are fp32 arrays [n, T, width]: nothing infers their shapes.
        """
        changed = object.__new__(type(self))
        changed._around = [*self._around, _operator_set(domain)]
        changed._fields, number = [], -1
        for field in self._fields:
            number += field.number == _NODE
            if field.number != _NODE or number not in removed:
                changed._fields.append(field)
            elif number in added:
                changed._fields.append(_new_node(added[number]))
        changed._fields += [_shape_of_states(name, width) for name, width in widths.items()]
        return changed

    def contents(self) -> bytes:
        """The bytes of the file."""
        graph = [field.whole for field in self._fields]
        around = [field.whole for field in self._around if field.number != _GRAPH]
        return b"".join([*around, _before(_GRAPH, sum(map(len, graph))), *graph])

    def cut(self, name: str, without: Set[str]) -> bytes:
        """Add the uint8 output `name`, drop the outputs `without`, and keep only the nodes still needed."""
        outputs = [field for field in self._fields if field.number == _OUTPUT]
        kept = [field for field in outputs if without.isdisjoint(_texts(field.value, _OUTPUT_NAME))]
        wanted = {name}.union(*(_texts(field.value, _OUTPUT_NAME) for field in kept))
        nodes = []
        for field in reversed([field for field in self._fields if field.number == _NODE]):
            inputs, results = _node(field)
            if not wanted.isdisjoint(results):
                wanted |= set(inputs)
                nodes.append(field)
        others = [field for field in self._fields if field.number not in (_NODE, _OUTPUT)]
        new = _field(_OUTPUT, _field(_OUTPUT_NAME, name.encode()) + _field(_OUTPUT_TYPE, _UNSIGNED_BYTES))
        graph = [field.whole for field in (*reversed(nodes), *others, *kept)]
        before = _before(_GRAPH, sum(map(len, graph)) + len(new))
        around = [field.whole for field in self._around if field.number != _GRAPH]
        return b"".join([*around, before, *graph, new])


def fields(message: memoryview) -> Iterator[MessageField]:
    """Parse the fields of a message; ValueError if it is malformed.

    >>> [(field.number, bytes(field.value)) for field in fields(memoryview(b"\\x0a\\x03two\\x10\\x07"))]
    [(1, b'two'), (2, b'')]
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        skip = _SKIP.get(tag & 7)
        if skip is None:
            raise ValueError(f"unknown wire type {tag & 7}")
        first, at = skip(message, at)
        if at > len(message):
            raise ValueError("the last field is truncated")
        yield MessageField(
            tag >> 3, message[start:at], message[first:at] if tag & 7 == _BYTES else message[:0]
        )


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Read a varint; return its value and the offset after it."""
    value = 0
    for position, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, at + position + 1
    raise ValueError("a number is too long")


def _after_bytes(message: memoryview, at: int) -> tuple[int, int]:
    size, first = _varint(message, at)
    return first, first + size


_SKIP: dict[int, Callable[[memoryview, int], tuple[int, int]]] = {
    _VARINT: _varint,
    _EIGHT: lambda _, at: (at, at + 8),
    _BYTES: _after_bytes,
    _FOUR: lambda _, at: (at, at + 4),
}


def _field(number: int, value: bytes) -> bytes:
    return _before(number, len(value)) + value


def _before(number: int, size: int) -> bytes:
    """Tag and length of a field."""
    return _number(number << 3 | _BYTES) + _number(size)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _new_field(number: int, value: bytes) -> MessageField:
    whole = memoryview(_field(number, value))
    return MessageField(number, whole, whole[len(whole) - len(value) :])


def _operator_set(domain: str) -> MessageField:
    version = _number(_SET_VERSION << 3 | _VARINT) + _number(1)
    return _new_field(_OPERATOR_SET, _field(_SET_DOMAIN, domain.encode()) + version)


def _new_node(node: Operation) -> MessageField:
    domain, _, kind = node.kind.rpartition(".")
    parts = [(_NODE_INPUT, name) for name in node.inputs] + [(_NODE_OUTPUT, name) for name in node.outputs]
    parts += [(_NODE_KIND, kind), (_NODE_DOMAIN, domain)]
    return _new_field(_NODE, b"".join(_field(number, text.encode()) for number, text in parts))


def _shape_of_states(name: str, width: int) -> MessageField:
    """State the type and shape of an fp32 array [n, T, width]."""
    sizes = [_field(_DIMENSION_NAME, b"n"), _field(_DIMENSION_NAME, b"T")]
    sizes.append(_number(_DIMENSION_VALUE << 3 | _VARINT) + _number(width))
    shape = b"".join(_field(_DIMENSION, size) for size in sizes)
    kind = _number(_ELEMENT_TYPE << 3 | _VARINT) + _number(_FLOAT) + _field(_TYPE_SHAPE, shape)
    stated = _field(_OUTPUT_TYPE, _field(_TENSOR_TYPE, kind))
    return _new_field(_SHAPE, _field(_OUTPUT_NAME, name.encode()) + stated)


def _texts(message: memoryview, number: int) -> list[str]:
    return [bytes(field.value).decode() for field in fields(message) if field.number == number]


def _node(field: MessageField) -> Node:
    return Node(_texts(field.value, _NODE_INPUT), _texts(field.value, _NODE_OUTPUT))


def _only(parts: Iterable[MessageField], known: frozenset[int], what: str) -> None:
    for field in parts:
        if field.number not in known:
            raise ValueError(f"{what} has a part of kind {field.number}, which an exported graph never has")


def _text(parts: list[MessageField], number: int) -> str:
    return "".join(bytes(field.value).decode() for field in parts if field.number == number)


def _integers(parts: list[MessageField], number: int) -> tuple[int, ...]:
    """Integers of a field, packed or repeated."""
    values: list[int] = []
    for field in parts:
        if field.number == number:
            at, stored = (0, field.value) if len(field.value) else (_varint(field.whole, 0)[1], field.whole)
            while at < len(stored):
                value, at = _varint(stored, at)
                values.append(value - (1 << 64) if value >> 63 else value)
    return tuple(values)


def _operation(message: memoryview) -> Operation:
    parts = list(fields(message))
    domain = _text(parts, _NODE_DOMAIN)
    kind = _text(parts, _NODE_KIND)
    attributes = dict(_attribute(field.value) for field in parts if field.number == _NODE_ATTRIBUTE)
    inputs, outputs = (
        [bytes(f.value).decode() for f in parts if f.number == n] for n in (_NODE_INPUT, _NODE_OUTPUT)
    )
    return Operation(f"{domain}.{kind}" if domain else kind, inputs, outputs, attributes)


def _attribute(message: memoryview) -> tuple[str, tuple[int, ...]]:
    parts = list(fields(message))
    name = _text(parts, _ATTRIBUTE_NAME)
    _only(parts, _ATTRIBUTE_FIELDS, f"the attribute {name[:40]!r}")
    for field in parts:
        if field.number == _ATTRIBUTE_TENSOR:
            _tensor(field.value)
    return name, _integers(parts, _ATTRIBUTE_INTEGER) or _integers(parts, _ATTRIBUTE_INTEGERS)


def _tensor(message: memoryview) -> Tensor:
    parts = list(fields(message))
    name, shape = _text(parts, _TENSOR_NAME), _integers(parts, _TENSOR_SHAPE)
    _only(parts, _TENSOR_FIELDS, f"the tensor {name[:40]!r}")
    [kind] = _integers(parts, _TENSOR_KIND) or (0,)
    stored = [field.value for field in parts if field.number == _TENSOR_BYTES]
    size = sum(map(len, stored))
    if (
        kind not in _WIDTHS
        or len(stored) > 1
        or min(shape, default=0) < 0
        or math.prod(shape) * _WIDTHS[kind] != size
    ):
        raise ValueError(f"the size of the tensor {name[:40]!r} does not match its shape")
    small = kind == _INT64 and size <= _SMALL
    numbers = tuple(np.frombuffer(stored[0] if stored else b"", "<i8").tolist()) if small else None
    return Tensor(name, shape, numbers)
