"""Our operators give the bits of the nodes they replace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from citadel import _native
from citadel.encode import session
from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.encode.fused_rows import DOMAIN, fused, library
from citadel.encode.key_router import shorten
from citadel.encode.onnx_file import OnnxFile
from citadel.encode.session import Session
from citadel.errors import ResourceError
from tests.support.models import ModelFolder

FAST = "avx512vnni"
pytestmark = pytest.mark.skipif(
    FAST not in _native.instruction_sets() or _native.instruction_set() != FAST,
    reason=f"the operators are used with {FAST}",
)


def file_of(folder: Path) -> OnnxFile:
    return OnnxFile((folder / "model.onnx").read_bytes())


def kinds(file: OnnxFile) -> Counter[str]:
    return Counter(node.kind for node in file.operations())


def set_initialiser(model: onnx.ModelProto, name: str, values: NDArray[Any]) -> None:
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    stored.CopyFrom(numpy_helper.from_array(values, name))


def run(contents: bytes, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(library())
    started = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    return list(started.run(None, inputs))


def small_graph(width: int) -> bytes:
    """A feed-forward block as `citadel export` writes it: [n, T, width] → [n, T, width]."""
    rng, wide = np.random.default_rng(0), 3 * width
    numbers: dict[str, Any] = {
        "axis": np.array([-1], np.int64),
        "step": np.array(1 / 127, np.float32),
        "zero": np.array(128, np.uint8),
        "up": rng.integers(-127, 128, (width, wide)).astype(np.int8),
        "up.scale": (rng.random(wide) / 500).astype(np.float32),
        "up.bias": rng.standard_normal(wide).astype(np.float32),
        "down": rng.integers(-127, 128, (wide, width)).astype(np.int8),
        "down.scale": (rng.random(width) / 500).astype(np.float32),
        "down.bias": rng.standard_normal(width).astype(np.float32),
    }
    nodes: list[onnx.NodeProto] = []

    def node(kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{kind}{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def product(x: str, name: str) -> str:
        largest = node("ReduceMax", node("Abs", x), "axis", keepdims=1)
        codes = node("QuantizeLinear", node("Div", x, largest), "step", "zero")
        given = (codes, name, "step", f"{name}.scale", "zero")
        return node("Mul", node("MatMulIntegerToFloat", *given, domain="com.microsoft"), largest)

    inner = node("Gelu", node("Add", product("x", "up"), "up.bias"))
    node("Add", node("Add", product(inner, "down"), "down.bias"), "x")
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "T", width])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["n", "T", width])],
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets)
    model.ir_version = 9
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("width", [1, 15, 16, 40, 384])
def test_operators_equal_the_nodes_they_replace(width: int) -> None:
    contents = small_graph(width)
    changed = fused(OnnxFile(contents))
    assert changed is not None
    assert {f"{DOMAIN}.QuantizeRows", f"{DOMAIN}.GeluQuantizeRows", f"{DOMAIN}.AddRows"} <= set(
        kinds(changed)
    )
    rng = np.random.default_rng(width)
    for size in (1e-30, 1e-3, 1.0, 30.0, 1e6):
        x = (rng.standard_normal((3, 50, width)) * size).astype(np.float32)
        x[0, 0] = 0
        for actual, wanted in zip(run(changed.contents(), {"x": x}), run(contents, {"x": x}), strict=True):
            np.testing.assert_array_equal(actual[:, 1:], wanted[:, 1:])
            np.testing.assert_array_equal(actual[1:, 0], wanted[1:, 0])


def test_every_instruction_set_gives_the_same_bits(every_instruction_set: Any) -> None:
    changed = fused(OnnxFile(small_graph(40)))
    assert changed is not None
    x = np.random.default_rng(0).standard_normal((2, 9, 40)).astype(np.float32)
    results = [values[0] for values in every_instruction_set(lambda: run(changed.contents(), {"x": x}))]
    for values in results:
        np.testing.assert_array_equal(values, results[0])


def test_not_a_number_reaches_the_result() -> None:
    changed = fused(OnnxFile(small_graph(40)))
    assert changed is not None
    x = np.ones((1, 2, 40), np.float32)
    x[0, 1, 7] = np.nan
    [result] = run(changed.contents(), {"x": x})
    assert np.isfinite(result[0, 0]).all()
    assert np.isnan(result[0, 1]).all()


def test_default_model_is_fused_everywhere() -> None:
    encoder = Encoder("default", threads=1)
    changed = fused(file_of(Path(encoder.folder)))
    assert changed is not None
    found = kinds(changed)
    assert found[f"{DOMAIN}.AddRows"] == 24
    assert [found[f"{DOMAIN}.{kind}"] for kind in ("SplitRows", "GeluQuantizeRows")] == [12, 12]
    assert found["Abs"] == found["ReduceMax"] == found["Split"] == 0
    assert shorten(changed, load_config(encoder.folder)) is not None


@pytest.mark.parametrize("router", ["dynamic", "static", "sparse", "none", "all_to_all"])
def test_outputs_of_other_routers_do_not_change(router: str, tiny_model: ModelFolder) -> None:
    folder = tiny_model(router, "int8")
    assert fused(file_of(folder)) is not None
    encoder = Encoder(folder, threads=1)
    _native.use_instruction_set("portable")
    try:
        whole = Encoder(folder, threads=1)
    finally:
        _native.use_instruction_set(FAST)
    for text in encoder.tokenizer.documents(["gravity!", "einstein proposed relativity " * 5]):
        actual, wanted = encoder.outputs(text), whole.outputs(text)
        assert actual.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_array_equal(actual[name], values, err_msg=name)


def test_session_starts_without_the_operators(
    tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("dynamic", "int8")
    contents, config = (folder / "model.onnx").read_bytes(), load_config(folder)
    ids = {"input_ids": np.array([[1, 2, 3, 4]])}
    wanted = Session(contents, config, "model.onnx").run(ids)
    monkeypatch.setattr(session, "library", lambda: "no-such-library.so")
    actual = Session(contents, config, "model.onnx").run(ids)
    assert actual.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(actual[name], values)


def test_fp32_graph_has_nothing_to_fuse(tiny_model: ModelFolder) -> None:
    assert fused(file_of(tiny_model("dynamic", "fp32"))) is None


def test_other_instruction_sets_do_not_fuse(tiny_model: ModelFolder) -> None:
    folder = tiny_model("dynamic", "int8")
    _native.use_instruction_set("portable")
    try:
        assert fused(file_of(folder)) is None
    finally:
        _native.use_instruction_set(FAST)


@pytest.mark.parametrize("change", ["zero", "step", "axis", "keepdims", "reader", "output"])
def test_other_nodes_are_not_replaced(change: str) -> None:
    model = onnx.load_from_string(small_graph(16))
    if change in ("zero", "step"):
        set_initialiser(
            model, change, np.array(127, np.uint8) if change == "zero" else np.array(1 / 126, np.float32)
        )
    elif change == "axis":
        set_initialiser(model, change, np.array([1], np.int64))
    elif change == "keepdims":
        del model.graph.node[1].attribute[:]
    elif change == "reader":
        model.graph.node.append(helper.make_node("Identity", [model.graph.node[0].output[0]], ["again"]))
    else:
        model.graph.output.append(
            helper.make_tensor_value_info(model.graph.node[2].output[0], TensorProto.FLOAT, None)
        )
    changed = fused(OnnxFile(model.SerializeToString()))
    assert changed is None or kinds(changed)[f"{DOMAIN}.GeluQuantizeRows"] == 0


def test_rows_that_do_not_fit_are_an_error(tiny_model: ModelFolder) -> None:
    folder = tiny_model("dynamic", "int8")
    model = onnx.load(folder / "model.onnx")
    name = next(t.name for t in model.graph.initializer if t.name.endswith("feedforward.down.bias"))
    set_initialiser(model, name, np.ones(1, np.float32))  # ONNX would repeat it
    started = Session(model.SerializeToString(), load_config(folder), "model.onnx")
    with pytest.raises(ResourceError, match="do not fit"):
        started.run({"input_ids": np.array([[1, 2, 3]])})
