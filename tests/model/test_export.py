"""Exported folders, agreement of the graph with numpy and torch, and errors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("onnx", reason="models are exported with the extra [train]")

import onnx
from onnx import numpy_helper

from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError, UsageError
from citadel.model import agreement
from citadel.model.export import export
from citadel.model.forward import forward
from citadel.model.matrices import dequantize, quantize
from citadel.model.onnx_weights import read_weights
from tests.support.models import ROUTERS, tiny_config, tiny_state, write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", tiny_config())


def test_contents_of_a_model_folder(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "card.md").write_text("Trained on nothing at all.")
    [folder] = export(checkpoint, tmp_path / "model")
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.onnx",
        "tokenizer.json",
    ]
    assert load_config(folder) == load_config(checkpoint)
    card = (folder / "README.md").read_text()
    for words in ("# tiny", "`dynamic`", "Trained on nothing at all.", "| τ | 1 |", "| precision | int8 |"):
        assert words in card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "model"]


def test_both_writes_two_folders(checkpoint: Path, tmp_path: Path) -> None:
    folders = export(checkpoint, tmp_path / "models", "both")
    assert [folder.name for folder in folders] == ["fp32", "int8"]
    assert len({Encoder(folder).fingerprint for folder in folders}) == 2


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_read_weights_restores_the_weights(router: str, precision: str, tmp_path: Path) -> None:
    config = tiny_config(router)
    [folder] = export(write_checkpoint(tmp_path / "checkpoint", config), tmp_path / "model", precision)
    actual, state = read_weights(folder / "model.onnx"), tiny_state(config)
    assert set(actual) == set(state)
    for name, values in state.items():
        is_large = values.ndim == 2 and name.startswith(("embeddings.word", "layers.", "router."))
        expected = dequantize(*quantize(values)) if precision == "int8" and is_large else values
        np.testing.assert_array_equal(actual[name], expected, name)
        assert actual[name].dtype == np.float32


def test_embeddings_are_stored_once(checkpoint: Path, tmp_path: Path) -> None:
    [folder] = export(checkpoint, tmp_path / "model", "int8")
    tensors = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(folder / "model.onnx").graph.initializer
    }
    as_large = [name for name, values in tensors.items() if values.size >= tensors["embeddings.word"].size]
    assert as_large == ["embeddings.word"]
    assert tensors["embeddings.word"].dtype == np.int8


@pytest.mark.parametrize(("route_separator", "keyless"), [(False, [0, -1]), (True, [0])])
def test_unrouted_tokens_have_no_keys_in_the_graph(
    route_separator: bool, keyless: list[int], tmp_path: Path
) -> None:
    config = replace(tiny_config("dynamic"), route_separator=route_separator)
    [folder] = export(write_checkpoint(tmp_path / "checkpoint", config), tmp_path / "model", "int8")
    encoder = Encoder(folder)
    text, empty = encoder.tokenizer.documents(["einstein proposed relativity", ""])
    has_keys = np.ones(len(text), np.bool_)
    has_keys[keyless] = False
    assert encoder.outputs(text)["weights"].any(axis=1).tolist() == has_keys.tolist()
    assert encoder.outputs(empty)["weights"].shape[0] == len(empty) == 2


@pytest.mark.parametrize("router", ROUTERS)
def test_onnx_outputs_equal_torch(router: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: `make setup`")
    from citadel.model.checkpoint import load_model

    config = tiny_config(router)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config)
    [folder] = export(checkpoint, tmp_path / "model", "fp32")
    encoder, model = Encoder(folder), load_model(checkpoint)
    [text] = encoder.tokenizer.documents(["einstein proposed relativity in physics"])
    ids = torch.from_numpy(text.ids)[None]
    with torch.no_grad():
        expected = model.encode(ids, torch.ones_like(ids), torch.from_numpy(text.routed)[None]).tensors()
    actual, routed = encoder.outputs(text), text.routed
    if router == "dynamic":
        assert actual["keys"][routed].tolist() == expected["keys"][0][routed].tolist()
    # all_to_all normalises its vectors after the graph; sparse activations are called `pooled` in torch.
    names = {"semantic": "semantic", "activations": "pooled", "weights": "weights", "vectors": "vectors"}
    for name in set(actual) - {"keys"} - ({"vectors"} if router == "all_to_all" else set()):
        by_token = slice(None) if name in ("semantic", "activations") else routed
        np.testing.assert_allclose(actual[name][by_token], expected[names[name]][0][by_token], atol=1e-5)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_export_reports_the_comparison_with_torch(router: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: `make setup`")
    lines: list[str] = []
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_config(router))
    export(checkpoint, tmp_path / "model", precision, report=lines.append)
    [line] = lines
    actual = re.search(
        r"model: agrees with torch: 3 texts, (\d+) tokens(?:, (\d+) of (\d+) keys equal)?, mean", line
    )
    assert actual and int(actual[1]) > 10
    assert (actual[2] is not None) == (router == "dynamic")
    if actual[2] and precision == "fp32":
        assert int(actual[2]) == int(actual[3]) > 10


def test_disagreement_with_torch_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    """The graph and torch have different weights."""
    pytest.importorskip("torch", reason="torch is not installed: `make setup`")
    from citadel.model.checkpoint import load_model
    from citadel.model.torch_agreement import check_torch

    [folder] = export(checkpoint, tmp_path / "model", "fp32")
    for name in ("token.weight", "semantic.weight", "router.dense.weight"):
        model = load_model(checkpoint)
        model.get_parameter(name).data.mul_(1.1)
        with pytest.raises(InputError, match=r"the exported [a-z ]+ differ from torch's by 0\.\d+: nothing"):
            check_torch(Encoder(folder), model, exact=True)


def test_keys_of_equal_weight_may_be_swapped() -> None:
    pytest.importorskip("torch", reason="torch is not installed: `make setup`")
    from citadel.model.torch_agreement import compare_keys

    weights = np.array([[2.0, 2.0, 1.0]])
    one, other = np.array([[7, 8, 9]]), np.array([[8, 7, 5]])  # 5 and 9 tie for the last rank
    assert compare_keys(other, weights, one, weights) == (0.0, 3, 0)
    assert compare_keys(np.array([[7, 9, 8]]), weights, one, weights)[0] > 0.1


@pytest.mark.parametrize(
    "changes", [{"pooling": "mean"}, {"normalize_pooled": True}, {"query_keys": 7}, {"document_keys": 200}]
)
def test_other_configs_pass_the_check(changes: dict[str, Any], tmp_path: Path) -> None:
    """Export checks its result, so that the test passes if it does not raise."""
    config = tiny_config(**changes)
    export(write_checkpoint(tmp_path / "checkpoint", config), tmp_path / "model", "fp32")


def test_roberta_position_offset(tmp_path: Path) -> None:
    shape = tiny_config().backbone
    config = tiny_config(backbone=type(shape)(200, 32, 2, 4, 64, 40, position_offset=2, activation="relu"))
    export(write_checkpoint(tmp_path / "checkpoint", config), tmp_path / "model", "fp32")


def test_half_precision_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / "model.safetensors"
    save_file({name: values.astype(np.float16) for name, values in load_file(file).items()}, file)
    [folder] = export(checkpoint, tmp_path / "model", "fp32")
    assert read_weights(folder / "model.onnx")["token.bias"].dtype == np.float32


def test_bfloat16_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: `make setup`")
    from safetensors.torch import save_file as save

    state = {name: torch.from_numpy(values).bfloat16() for name, values in tiny_state(tiny_config()).items()}
    save(state, checkpoint / "model.safetensors")
    [folder] = export(checkpoint, tmp_path / "model", "fp32")
    actual = read_weights(folder / "model.onnx")["token.weight"]
    np.testing.assert_array_equal(actual, state["token.weight"].float().numpy())


# Errors


def assert_export_fails(
    checkpoint: Path, out: Path, message: str, kind: type[Exception] = InputError, **options: Any
) -> None:
    with pytest.raises(kind, match=message):
        export(checkpoint, out, **options)
    assert [path for path in out.parent.iterdir() if path.name.startswith(out.name)] == []


def test_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    assert_export_fails(tmp_path / "gone", tmp_path / "model", "no such checkpoint")


def test_unknown_precision_is_a_usage_error(checkpoint: Path, tmp_path: Path) -> None:
    assert_export_fails(
        checkpoint, tmp_path / "model", "choose one of fp32, int8, both", UsageError, precision="int4"
    )


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("token.weight", None, "the tensor token.weight is missing"),
        ("extra", np.zeros(3, np.float32), "the tensor extra is not part of this model"),
        ("token.bias", np.zeros(3, np.float32), "has shape"),
        ("token.bias", np.full(8, np.nan, np.float32), "holds NaN"),
    ],
)
def test_mismatched_tensors_are_errors(
    name: str, values: Any, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    state = tiny_state(tiny_config()) | {name: values}
    save_file(
        {key: value for key, value in state.items() if value is not None}, checkpoint / "model.safetensors"
    )
    assert_export_fails(checkpoint, tmp_path / "model", message)


@pytest.mark.parametrize("contents", [b"", b"not safetensors"])
def test_damaged_weights_are_an_error(contents: bytes, checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(contents)
    assert_export_fails(checkpoint, tmp_path / "model", "cannot be read as safetensors")


def test_pickled_weights_are_rejected(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    assert_export_fails(checkpoint, tmp_path / "model", "pickled")


def test_missing_weights_are_an_error(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert_export_fails(checkpoint, tmp_path / "model", "has no weights")


def test_missing_tokenizer_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert_export_fails(checkpoint, tmp_path / "model", "no tokenizer")


def test_wrong_graph_is_not_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_state(tiny_config(), seed=1)
    monkeypatch.setattr(agreement, "forward", lambda config, state, *rest: forward(config, other, *rest))
    assert_export_fails(checkpoint, tmp_path / "model", "differ from the model's", precision="int8")


def test_existing_folder_is_kept_unless_overwrite(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "model", "fp32")
    before = Encoder(tmp_path / "model").fingerprint
    with pytest.raises(InputError, match="already exists"):
        export(checkpoint, tmp_path / "model")
    assert Encoder(tmp_path / "model").fingerprint == before
    export(checkpoint, tmp_path / "model", "int8", overwrite=True)
    assert Encoder(tmp_path / "model").fingerprint != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "model"]


def test_overwrite_replaces_only_models(checkpoint: Path, tmp_path: Path) -> None:
    """The checkpoint itself and a folder with other files are not removed."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "letters.txt").write_text("Dear Ada")
    for folder in (checkpoint, other):
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(InputError, match="something other than a model"):
            export(checkpoint, folder, overwrite=True)
        assert sorted(path.name for path in folder.iterdir()) == before


def test_mean_pooling_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    config = replace(tiny_config("dynamic"), pooling="mean")
    [folder] = export(write_checkpoint(tmp_path / "checkpoint", config), tmp_path / "model", "fp32")
    encoder = Encoder(folder, threads=1)
    texts = ["einstein proposed relativity in physics", "physics in relativity proposed einstein"]
    for alone, beside in zip(texts, encoder.encode_documents(texts), strict=True):
        [actual] = encoder.encode_documents([alone])
        assert actual.semantic is not None and beside.semantic is not None
        assert actual.semantic.tobytes() == beside.semantic.tobytes()
