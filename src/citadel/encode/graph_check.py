"""Validate a model's graph before it is run: only known operators, and bounded arrays.

Shapes are inferred for the longest text that config.json allows. Integers that become shapes are tracked as
bounds, so that a few bytes cannot allocate gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from citadel.encode.config import ModelConfig
from citadel.encode.onnx_file import OnnxFile, Operation
from citadel.errors import InputError

MAX_NODES = 20_000
MAX_ELEMENTS = 1 << 29  # alive at the same time: 2 GiB of fp32
MIN_TOKENS = 512  # of a batch of short texts
INPUTS = ("input_ids", "attention_mask", "routed_mask")
_SLACK = 4  # multiple of the largest arrays; exported graphs need 1.6
_RANK = 8
_LARGEST_NUMBER = 1 << 40  # of a shape, far below a 64-bit overflow

Shape = tuple[int, ...]
Bounds = tuple[tuple[int, int], ...]  # lowest and highest value of each number


class Array(NamedTuple):
    """Largest possible shape of an array, and bounds of its values if they may become a shape."""

    shape: Shape
    bounds: Bounds | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def check_graph(contents: bytes, config: ModelConfig, path: str) -> None:
    """Reject a `model.onnx` unlike those that `citadel export` writes, without running it."""
    try:
        _check(OnnxFile(contents), config)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        problem = (
            str(error) if isinstance(error, ValueError) else "a node lacks an input, output or attribute"
        )
        raise InputError(f"the graph is refused: {problem[:200]}; export the model again", path) from None


def _check(file: OnnxFile, config: ModelConfig) -> None:
    operations = file.operations()
    if len(operations) > MAX_NODES:
        raise ValueError(f"it has {len(operations):,} nodes, at most {MAX_NODES:,} are allowed")
    tokens = max(config.backbone.longest, MIN_TOKENS)
    known = {tensor.name: Array(tensor.shape, _exact(tensor.numbers)) for tensor in file.tensors()}
    for name in file.inputs():
        if name not in known and name not in INPUTS:
            raise ValueError(f"unknown input {name[:40]!r}")
        known.setdefault(name, Array((1, tokens)))
    _check_sizes(operations, known, set(file.outputs()), _limit(config, tokens))


def _check_sizes(operations: list[Operation], known: dict[str, Array], outputs: set[str], limit: int) -> None:
    """Walk the nodes in order and count the elements that are alive at the same time."""
    last = {name: number for number, node in enumerate(operations) for name in (*node.inputs, *node.outputs)}
    made, alive = set[str](), 0
    for number, node in enumerate(operations):
        results, scratch = _run(node, known), _scratch(node, known)
        alive += sum(array.size for array in results)
        if alive + scratch > limit:
            total = alive + scratch
            raise ValueError(
                f"{node.kind} makes arrays of {total:,} elements, at most {limit:,} fit the model's shape"
            )
        known.update(zip(node.outputs, results, strict=True))
        made.update(node.outputs)
        done = {name for name in (*node.inputs, *node.outputs) if last[name] == number}
        alive -= sum(known[name].size for name in done & made - outputs)


def _limit(config: ModelConfig, tokens: int) -> int:
    """Limit of elements alive at the same time in a model of this shape."""
    backbone = config.backbone
    widest = max(backbone.intermediate, 3 * backbone.hidden, backbone.vocabulary * config.has_router_head)
    largest = tokens * widest + backbone.heads * tokens**2 + backbone.vocabulary * backbone.hidden
    if backbone.architecture == "mpnet":
        largest += backbone.heads * tokens**2  # the bias of relative positions
    return min(_SLACK * largest, MAX_ELEMENTS)


def _exact(numbers: Sequence[int] | None) -> Bounds | None:
    return None if numbers is None else tuple((number, number) for number in numbers)


def _run(node: Operation, known: dict[str, Array]) -> list[Array]:
    """Infer the results of a node."""
    rule = _RULES.get(node.kind)
    if rule is None:
        raise ValueError(f"the operator {node.kind[:60]!r} is not one of an exported graph")
    unknown = [name for name in node.inputs if name and name not in known]
    if unknown or not all(node.inputs[: _NEEDED.get(node.kind, 1)]) or not node.inputs:
        raise ValueError(f"{node.kind} reads {(unknown or ['nothing'])[0][:40]!r}, which nothing gives")
    if "" in node.inputs and node.kind not in _NEEDED:
        raise ValueError(f"{node.kind} leaves an input out")
    given = [known[name] for name in node.inputs if name]
    results = rule(node, given)
    if any(len(array.shape) > _RANK for array in results) or len(results) < len(node.outputs):
        raise ValueError(f"{node.kind} has too many outputs or dimensions")
    return results[: len(node.outputs)]


def _scratch(node: Operation, known: dict[str, Array]) -> int:
    """Number of temporary elements of an operator."""
    if node.kind != _ATTENTION:
        return 0
    query, key = (known[name].shape for name in node.inputs[:2])
    return node.attributes["num_heads"][0] * math.prod(query[:2]) * key[1]


# Shape inference rules, one per operator.


def _same(node: Operation, given: list[Array]) -> list[Array]:
    return [Array(given[0].shape)] * len(node.outputs)


def _kept(_: Operation, given: list[Array]) -> list[Array]:
    return [given[0]]


def _broadcast(node: Operation, given: list[Array]) -> list[Array]:
    shape = _broadcast_shapes([array.shape for array in given])
    bounds = [array.bounds for array in given]
    combine = _ARITHMETIC.get(node.kind)
    if combine is None or any(part is None or len(part) != 1 for part in bounds):
        return [Array(shape)]
    total = bounds[0]
    for part in bounds[1:]:
        assert total is not None
        assert part is not None
        total = (combine(total[0], part[0]),)
    assert total is not None
    return [Array(shape, total if max(map(abs, total[0])) < _LARGEST_NUMBER else None)]


def _broadcast_shapes(shapes: list[Shape]) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _axes(node: Operation, given: list[Array], rank: int) -> list[int]:
    """The axes in the second input, or all axes without one."""
    bounds = given[1].bounds if len(given) > 1 else tuple((axis, axis) for axis in range(rank))
    if bounds is None or any(low != high or not -rank <= low < rank for low, high in bounds):
        raise ValueError(f"{node.kind} has unknown axes")
    return sorted(low % rank for low, _ in bounds)


def _reduce(node: Operation, given: list[Array]) -> list[Array]:
    shape = given[0].shape
    axes = _axes(node, given, len(shape))
    keep = node.attributes.get("keepdims", (1,))[0]
    return [Array(tuple(1 if i in axes else size for i, size in enumerate(shape) if keep or i not in axes))]


def _squeeze(node: Operation, given: list[Array]) -> list[Array]:
    axes = _axes(node, given, len(given[0].shape))
    return [Array(tuple(size for i, size in enumerate(given[0].shape) if i not in axes), given[0].bounds)]


def _unsqueeze(node: Operation, given: list[Array]) -> list[Array]:
    shape = list(given[0].shape)
    rank = len(shape) + len(given[1].bounds or ())
    for axis in _axes(node, given, rank):
        shape.insert(axis, 1)
    return [Array(tuple(shape))]


def _matmul(node: Operation, given: list[Array]) -> list[Array]:
    left, right = given[0].shape, given[1].shape
    if len(left) < 2 or len(right) < 2:
        raise ValueError(f"{node.kind} of a list")
    return [Array((*_broadcast_shapes([left[:-2], right[:-2], ()]), left[-2], right[-1]))]


def _transpose(node: Operation, given: list[Array]) -> list[Array]:
    shape = given[0].shape
    order = node.attributes.get("perm") or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise ValueError("Transpose does not permute all axes")
    return [Array(tuple(shape[axis] for axis in order))]


def _axis(node: Operation, rank: int, default: int) -> int:
    axis = node.attributes.get("axis", (default,))[0]
    if not -rank <= axis < rank:
        raise ValueError(f"{node.kind} has no axis {axis}")
    return axis % rank


def _gather(node: Operation, given: list[Array]) -> list[Array]:
    shape = given[0].shape
    axis = _axis(node, len(shape), 0)
    return [Array((*shape[:axis], *given[1].shape, *shape[axis + 1 :]))]


def _concat(node: Operation, given: list[Array]) -> list[Array]:
    axis = _axis(node, len(given[0].shape), 0)
    shape = list(given[0].shape)
    shape[axis] = sum(array.shape[axis] for array in given)
    bounds = None
    if len(shape) == 1 and all(array.bounds is not None for array in given):
        bounds = tuple(pair for array in given for pair in array.bounds or ())
    return [Array(tuple(shape), bounds)]


def _split(node: Operation, given: list[Array]) -> list[Array]:
    shape, parts = list(given[0].shape), len(node.outputs)
    axis = _axis(node, len(shape), 0)
    if len(given) == 1:
        shape[axis] = -(-shape[axis] // max(node.attributes.get("num_outputs", (parts,))[0], 1))
    return [Array(tuple(shape))] * parts


def _topk(node: Operation, given: list[Array]) -> list[Array]:
    shape = list(given[0].shape)
    shape[_axis(node, len(shape), -1)] = _sizes(node, given[1])[0]
    return [Array(tuple(shape))] * 2


def _shape(node: Operation, given: list[Array]) -> list[Array]:
    start, end = (node.attributes.get(name, (None,))[0] for name in ("start", "end"))
    bounds = tuple((0, size) for size in given[0].shape)[start:end]
    return [Array((len(bounds),), bounds)]


def _sizes(node: Operation, array: Array) -> Shape:
    """Upper bounds of a shape held in an array."""
    if array.bounds is None or not array.bounds or any(high < 0 for _, high in array.bounds):
        raise ValueError(f"{node.kind} makes an array of unknown size")
    return tuple(high for _, high in array.bounds)


def _filled(node: Operation, given: list[Array]) -> list[Array]:
    return [Array(_sizes(node, given[0]))]


def _expand(node: Operation, given: list[Array]) -> list[Array]:
    return [Array(_broadcast_shapes([given[0].shape, _sizes(node, given[1])]))]


def _pad(node: Operation, given: list[Array]) -> list[Array]:
    shape, amounts = given[0].shape, _sizes(node, given[1])
    if len(amounts) != 2 * len(shape) or len(given) > 3:
        raise ValueError("Pad does not name all axes")
    return [Array(tuple(size + amounts[i] + amounts[i + len(shape)] for i, size in enumerate(shape)))]


def _reshape(_: Operation, given: list[Array]) -> list[Array]:
    """Keep the number of elements; -1 infers one size, and 0 copies a size."""
    wanted = given[1].bounds
    if (
        wanted is None
        or sum(pair == (-1, -1) for pair in wanted) > 1
        or any(low != high for low, high in wanted)
    ):
        raise ValueError("Reshape has an unknown target shape")
    sizes = [given[0].shape[i] if pair == (0, 0) else pair[1] for i, pair in enumerate(wanted)]
    rest = math.prod(size for size in sizes if size > 0)
    return [Array(tuple(-(-given[0].size // max(rest, 1)) if size < 0 else size for size in sizes))]


def _attention(node: Operation, given: list[Array]) -> list[Array]:
    query, key, value = (array.shape for array in given[:3])
    if not len(query) == len(key) == len(value) == 3 or len(node.outputs) != 1 or len(node.inputs) > 6:
        raise ValueError("MultiHeadAttention has inputs other than query, key and value [n, T, h]")
    return [Array((*query[:2], value[2]))]


def _rotary(node: Operation, given: list[Array]) -> list[Array]:
    """Rotations that begin at position 0 and have a whole number of heads."""
    if len(given) != 4 or given[1] != Array((1,), ((0, 0),)):
        raise ValueError("RotaryEmbedding does not begin at position 0")
    x, cosines, sines = given[0].shape, given[2].shape, given[3].shape
    if len(x) != 3 or len(cosines) != 2 or cosines != sines or not cosines[1] or x[2] % (2 * cosines[1]):
        raise ValueError("RotaryEmbedding has inputs other than [n, T, h], cosines and sines")
    return [Array(x)] * len(node.outputs)


Rule = Callable[[Operation, list[Array]], list[Array]]
Pair = tuple[int, int]
_ARITHMETIC: dict[str, Callable[[Pair, Pair], Pair]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
_ATTENTION = "com.microsoft.MultiHeadAttention"
_ROTARY = "com.microsoft.RotaryEmbedding"
_NEEDED = {_ATTENTION: 3, "com.microsoft.MatMulIntegerToFloat": 5}  # number of required inputs
_BY_ELEMENT = ("Abs", "Cast", "Gelu", "Log", "QuantizeLinear", "Relu", "Softplus", "Tanh")
_RULES: dict[str, Rule] = {
    **dict.fromkeys((*_BY_ELEMENT, "LayerNormalization", "Slice"), _same),
    **dict.fromkeys(("Add", "Div", "Max", "Mul", "Sub", "Where"), _broadcast),
    **dict.fromkeys(("ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum"), _reduce),
    **dict.fromkeys(("MatMul", "com.microsoft.MatMulIntegerToFloat"), _matmul),
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "Gather": _gather,
    "Identity": _kept,
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _topk,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    _ATTENTION: _attention,
    _ROTARY: _rotary,
}
