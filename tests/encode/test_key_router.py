"""A graph without its router's product gives the bits of the whole graph, and is made only where it can be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from citadel import _native
from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.encode.key_router import BIASES, shorten
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


def both(folder: str | Path) -> tuple[Encoder, Encoder]:
    """The encoder with the router outside of the graph, and with the whole graph."""
    shortened = Encoder(folder, threads=1)
    _native.use_instruction_set("portable")
    whole = Encoder(folder, threads=1)
    _native.use_instruction_set(FAST)
    return shortened, whole


def assert_same_outputs(encoders: tuple[Encoder, Encoder], texts: list[Encoding]) -> None:
    for text in texts:
        found, wanted = (encoder.outputs(text) for encoder in encoders)
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            assert found[name].dtype == values.dtype
            np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.usefixtures("fast")
def test_a_tiny_model_gives_the_bits_of_its_graph(tiny_model: ModelFolder) -> None:
    folder = tiny_model("dynamic", "int8")
    encoders = both(folder)
    assert shorten(contents(folder), load_config(folder)) is not None
    tokenizer = encoders[0].tokenizer
    assert_same_outputs(encoders, [*tokenizer.documents(TEXTS), *tokenizer.queries(TEXTS)])


@pytest.mark.usefixtures("fast")
def test_the_default_model_gives_the_bits_of_its_graph() -> None:
    encoders = both("default")
    rng = np.random.default_rng(0)
    texts = []
    for length in (2, 3, 16, 17, 40, 128):
        ids = rng.integers(1000, 30_000, length)
        texts.append(Encoding(ids, ((0, 0),) * length, np.ones(length, np.bool_)))
    assert_same_outputs(encoders, texts)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("router", "precision"), [("dynamic", "fp32"), ("static", "int8"), ("sparse", "int8")])
def test_other_graphs_stay_whole(router: str, precision: str, tiny_model: ModelFolder) -> None:
    folder = tiny_model(router, precision)
    assert shorten(contents(folder), load_config(folder)) is None


@pytest.mark.usefixtures("fast")
def test_a_file_that_is_no_model_is_left_to_onnx_runtime(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = tiny_model("dynamic", "int8")
    config = load_config(folder)
    for damaged in (b"", b"no model", contents(folder)[:-100]):
        assert shorten(damaged, config) is None
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "model.onnx").write_bytes(contents(folder)[:-100])
    with pytest.raises(InputError, match="export the model again"):
        Encoder(copy)


@pytest.mark.usefixtures("fast")
def test_a_table_that_is_not_finite_stays_in_the_graph(tiny_model: ModelFolder) -> None:
    config = tiny_config("dynamic")
    state = dict(tiny_state(config))
    state[BIASES] = np.full_like(state[BIASES], np.nan)
    assert shorten(build(config, state, Int8()).SerializeToString(), config) is None


def test_with_other_instructions_the_graph_is_run_whole(tiny_model: ModelFolder) -> None:
    folder, before = tiny_model("dynamic", "int8"), _native.instruction_set()
    _native.use_instruction_set("portable")
    try:
        assert shorten(contents(folder), load_config(folder)) is None
    finally:
        _native.use_instruction_set(before)


def test_without_the_compiled_module_the_graph_is_run_whole(
    tiny_model: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("dynamic", "int8")
    monkeypatch.setitem(sys.modules, "citadel._native", None)
    assert shorten(contents(folder), load_config(folder)) is None
