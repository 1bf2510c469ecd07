"""A shortened graph with a KeyRouter gives exactly the outputs of the full graph."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citadel import _native
from citadel.encode import key_router
from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.encode.key_router import BIASES, shorten
from citadel.encode.onnx_file import OnnxFile
from citadel.encode.session import Session
from citadel.encode.tokenizer import Encoding
from citadel.errors import InputError
from citadel.model.matrices import Int8
from citadel.model.network import build
from tests.support.models import ModelFolder, tiny_config, tiny_state

TEXTS = ["", "gravity!", "einstein proposed relativity", "a history of rome, who proposed it", "the " * 50]
FAST = "avx512vnni"


@pytest.fixture
def fast() -> Iterator[None]:
    before = _native.instruction_set()
    if FAST not in _native.instruction_sets():
        pytest.skip(f"this machine has no {FAST}")
    _native.use_instruction_set(FAST)
    yield
    _native.use_instruction_set(before)


def contents(folder: Path) -> bytes:
    return (folder / "model.onnx").read_bytes()


def file_of(folder: Path) -> OnnxFile:
    return OnnxFile(contents(folder))


def both(folder: str | Path) -> tuple[Encoder, Encoder]:
    """The encoder with the shortened graph, and with the full graph."""
    shortened = Encoder(folder, threads=1)
    _native.use_instruction_set("portable")
    whole = Encoder(folder, threads=1)
    _native.use_instruction_set(FAST)
    return shortened, whole


def assert_same_outputs(encoders: tuple[Encoder, Encoder], texts: list[Encoding]) -> None:
    for text in texts:
        actual, wanted = (encoder.outputs(text) for encoder in encoders)
        assert actual.keys() == wanted.keys()
        for name, values in wanted.items():
            assert actual[name].dtype == values.dtype
            np.testing.assert_array_equal(actual[name], values, err_msg=name)


@pytest.mark.usefixtures("fast")
def test_tiny_model_equals_its_full_graph(tiny_model: ModelFolder) -> None:
    folder = tiny_model("dynamic", "int8")
    encoders = both(folder)
    assert shorten(file_of(folder), load_config(folder)) is not None
    tokenizer = encoders[0].tokenizer
    assert_same_outputs(encoders, [*tokenizer.documents(TEXTS), *tokenizer.queries(TEXTS)])


@pytest.mark.usefixtures("fast")
def test_tokens_that_are_not_routed_have_no_product(tiny_model: ModelFolder) -> None:
    encoders = both(tiny_model("dynamic", "int8"))
    ids = np.random.default_rng(1).integers(5, 40, (3, 9))
    routed = np.random.default_rng(2).random((3, 9)) < 0.5
    routed[:, 0] = False
    for mask in (routed, np.zeros_like(routed)):
        actual, wanted = (encoder._session.run({"input_ids": ids}, 0.0, mask) for encoder in encoders)
        for name in ("keys", "weights"):
            np.testing.assert_array_equal(actual[name][mask], wanted[name][mask])
            assert not actual[name][~mask].any()


@pytest.mark.usefixtures("fast")
def test_default_model_equals_its_full_graph() -> None:
    encoders = both("default")
    rng = np.random.default_rng(0)
    texts = []
    for length in (2, 3, 16, 17, 40, 128):
        ids = rng.integers(1000, 30_000, length)
        texts.append(Encoding(ids, ((0, 0),) * length, np.ones(length, np.bool_)))
    assert_same_outputs(encoders, texts)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("router", "precision"), [("dynamic", "fp32"), ("static", "int8"), ("sparse", "int8")]
)
def test_other_graphs_are_not_shortened(router: str, precision: str, tiny_model: ModelFolder) -> None:
    folder = tiny_model(router, precision)
    assert shorten(file_of(folder), load_config(folder)) is None


@pytest.mark.usefixtures("fast")
def test_invalid_file_is_not_shortened(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = tiny_model("dynamic", "int8")
    config = load_config(folder)
    for damaged in (b"", b"no model", contents(folder)[:-100]):
        with pytest.raises(ValueError, match=r"graph|field|number|wire type"):
            shorten(OnnxFile(damaged), config)
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "model.onnx").write_bytes(contents(folder)[:-100])
    with pytest.raises(InputError, match="export the model again"):
        Encoder(copy)


@pytest.mark.usefixtures("fast")
def test_non_finite_table_is_not_shortened(tiny_model: ModelFolder) -> None:
    config = tiny_config("dynamic")
    state = dict(tiny_state(config))
    state[BIASES] = np.full_like(state[BIASES], np.nan)
    assert shorten(OnnxFile(build(config, state, Int8()).SerializeToString()), config) is None


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "change",
    [
        {"document_keys": 7},  # the graph has five
        {"document_keys": 2, "query_keys": 1},
        {"backbone": replace(tiny_config("dynamic").backbone, hidden=12)},
    ],
)
def test_graph_that_does_not_match_the_config_is_not_shortened(
    change: dict[str, Any], tiny_model: ModelFolder
) -> None:
    folder = tiny_model("dynamic", "int8")
    assert shorten(file_of(folder), replace(load_config(folder), **change)) is None


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("change", ["no output", "another bias", "another reader"])
def test_graph_with_another_end_is_not_shortened(change: str, tiny_model: ModelFolder) -> None:
    folder = tiny_model("dynamic", "int8")
    model = onnx.load(folder / "model.onnx")
    product = next(node for node in model.graph.node if BIASES in node.input)
    if change == "no output":
        del model.graph.output[-1]
    elif change == "another bias":
        product.input[-1] = "another"
    else:
        model.graph.node.append(onnx.helper.make_node("Identity", product.output, ["logits"]))
    assert shorten(OnnxFile(model.SerializeToString()), load_config(folder)) is None


@pytest.mark.usefixtures("fast")
def test_graph_with_too_many_keys_is_not_shortened(
    tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("dynamic", "int8")
    monkeypatch.setattr(key_router, "_MAX_KEYS", 4)
    assert shorten(file_of(folder), load_config(folder)) is None


@pytest.mark.usefixtures("fast")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_damaged_file_loads_or_is_an_input_error(offset: int, byte: int, tiny_model: ModelFolder) -> None:
    folder = tiny_model("dynamic", "int8")
    damaged = bytearray(contents(folder))
    # Near the names by which the graph is recognised.
    name = damaged.rindex(b"keys.step") if offset % 2 else damaged.rindex(b"weights")
    damaged[(name + offset % 400 - 200) % len(damaged)] = byte
    with suppress(InputError):
        Session(bytes(damaged), load_config(folder), "model.onnx")


def test_other_instruction_sets_use_the_full_graph(tiny_model: ModelFolder) -> None:
    folder, before = tiny_model("dynamic", "int8"), _native.instruction_set()
    _native.use_instruction_set("portable")
    try:
        assert shorten(file_of(folder), load_config(folder)) is None
    finally:
        _native.use_instruction_set(before)


def test_missing_extension_uses_the_full_graph(
    tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("dynamic", "int8")
    monkeypatch.setitem(sys.modules, "citadel._native", None)
    assert shorten(file_of(folder), load_config(folder)) is None
