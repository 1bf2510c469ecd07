"""OnnxFile compared with the onnx library."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from citadel.encode.onnx_file import Node, OnnxFile, fields
from tests.support.models import ModelFolder


def small_model() -> onnx.ModelProto:
    """x → a → bytes → y, and an output z that does not depend on the bytes."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "one", "zero"], ["bytes"]),
        helper.make_node("DequantizeLinear", ["bytes", "one", "zero"], ["y"]),
        helper.make_node("Neg", ["x"], ["z"]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("y", "z")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    stored = [
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array(3, np.uint8), "zero"),
        numpy_helper.from_array(np.arange(300, dtype=np.float32), "long"),
    ]
    graph = helper.make_graph(nodes, "small", inputs, outputs, stored)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9, producer_name="test"
    )


def test_nodes_and_arrays() -> None:
    file = OnnxFile(small_model().SerializeToString())
    assert file.nodes() == [Node(list(node.input), list(node.output)) for node in small_model().graph.node]
    assert file.outputs() == ["y", "z"]
    assert file.array("long", np.float32).tolist() == list(range(300))
    assert file.array("long", np.float32).flags.aligned
    assert file.array("zero", np.uint8).tolist() == [3]
    with pytest.raises(ValueError, match="no initialiser lost"):
        file.array("lost", np.float32)


def test_cut_keeps_only_needed_nodes() -> None:
    model = small_model()
    contents = OnnxFile(model.SerializeToString()).cut("bytes", {"y"})
    session = onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
    results = session.run(["z", "bytes"], {"x": np.array([4, -2], np.float32)})
    assert [values.tolist() for values in results] == [[-4, 2], [8, 2]]
    cut = onnx.load_from_string(contents)
    assert [node.op_type for node in cut.graph.node] == ["Add", "QuantizeLinear", "Neg"]
    assert [(output.name, output.type.tensor_type.elem_type) for output in cut.graph.output] == [
        ("z", TensorProto.FLOAT),
        ("bytes", TensorProto.UINT8),
    ]
    assert (cut.producer_name, cut.ir_version, cut.opset_import) == ("test", 9, model.opset_import)
    assert cut.graph.initializer == model.graph.initializer


def test_agrees_with_the_onnx_library(tiny_model: ModelFolder) -> None:
    contents = (tiny_model("dynamic", "int8") / "model.onnx").read_bytes()
    file, model = OnnxFile(contents), onnx.load_from_string(contents)
    assert file.nodes() == [Node(list(node.input), list(node.output)) for node in model.graph.node]
    for tensor in model.graph.initializer:
        wanted = numpy_helper.to_array(tensor)
        np.testing.assert_array_equal(file.array(tensor.name, wanted.dtype.type), wanted.ravel())


@pytest.mark.parametrize(
    "contents", [b"", b"not a model", b"\x3a\x00\x3a\x00", b"\x3a\x7f", b"\x3a" + b"\xff" * 11, b"\x3b"]
)
def test_invalid_model_is_an_error(contents: bytes) -> None:
    with pytest.raises(ValueError):
        OnnxFile(contents)


@given(st.binary(max_size=200))
def test_fields_cover_the_message_or_raise(contents: bytes) -> None:
    try:
        results = list(fields(memoryview(contents)))
    except ValueError:
        return
    assert b"".join(field.whole for field in results) == contents
    assert all(bytes(field.value) in bytes(field.whole) for field in results)


@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_file_is_read_or_raises(offset: int, byte: int) -> None:
    contents = bytearray(small_model().SerializeToString())
    contents[offset % len(contents)] = byte
    try:
        file = OnnxFile(bytes(contents))
        file.nodes()
        file.cut("bytes", {"y"})
        file.array("long", np.float32)
    except ValueError:
        pass
