"""The encoder agrees with the reference forward pass and does not depend on the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder, batches
from citadel.encode.pruning import without_blanks
from citadel.errors import InputError, UsageError
from citadel.model.forward import forward
from citadel.routing import get_router
from citadel.types import RoutedTokens
from tests.support.models import ROUTERS, ModelFolder, tiny_config, tiny_state

TEXTS = [
    "",
    "einstein proposed relativity",
    "gravity!",
    "a history of rome, who proposed it",
    "the " * 50,
    "gravity!",
]


def expected(folder: Path, text: str, query: bool) -> RoutedTokens:
    """Route the dense φ of the numpy forward pass."""
    config = load_config(folder)
    tokenizer = Encoder(folder, threads=1).tokenizer
    read = (tokenizer.queries if query else tokenizer.documents)([text])[0]
    keys = {"query_keys": config.query_keys, "document_keys": config.document_keys, "tau": config.tau}
    router = get_router(
        config.router, semantic=config.has_semantic, **keys if config.router == "dynamic" else {}
    )
    plain = forward(config, tiny_state(config), read.ids, read.routed)
    return router.route_query(plain) if query else without_blanks([read], [router.route_document(plain)])[0]


def assert_same(actual: RoutedTokens, wanted: RoutedTokens, tolerance: float = 1e-4) -> None:
    assert actual.keys.tolist() == wanted.keys.tolist()
    for one, other in [
        (actual.weights, wanted.weights),
        (actual.vectors, wanted.vectors),
        (actual.semantic, wanted.semantic),
    ]:
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert (actual.tokens is None) == (wanted.tokens is None)
    if actual.tokens is not None and wanted.tokens is not None:
        assert actual.tokens.tolist() == wanted.tokens.tolist()


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("query", [False, True])
def test_encoder_equals_the_reference_forward_pass(router: str, query: bool, tiny_model: ModelFolder) -> None:
    encoder = Encoder(tiny_model(router), threads=2)
    actual = (encoder.encode_queries if query else encoder.encode_documents)(TEXTS)
    for text, routed in zip(TEXTS, actual, strict=True):
        assert_same(routed, expected(tiny_model(router), text, query))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("router", ROUTERS)
def test_encoding_does_not_depend_on_the_batch(router: str, precision: str, tiny_model: ModelFolder) -> None:
    """To the last bit, because a resumed build forms other batches."""
    encoder = Encoder(tiny_model(router, precision), threads=2)
    for together, text in zip(encoder.encode_documents(TEXTS), TEXTS, strict=True):
        [alone] = encoder.encode_documents([text])
        assert_same(together, alone, tolerance=0.0)


@pytest.mark.parametrize("router", ["dynamic", "static", "all_to_all", "none"])
def test_int8_is_close_to_fp32(router: str, tiny_model: ModelFolder) -> None:
    [exact], [small] = (
        Encoder(tiny_model(router, kind)).encode_documents(TEXTS[3:4]) for kind in ("fp32", "int8")
    )
    pairs = [(exact.semantic, small.semantic)]
    if router != "dynamic":  # int8 may choose other keys
        pairs.append((exact.vectors, small.vectors))
    for one, other in pairs:
        if one is not None and other is not None:
            cosine = (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)
            assert cosine > 0.995


def test_tau_defaults_to_the_models(tiny_model: ModelFolder) -> None:
    text, folder = TEXTS[3:4], tiny_model("dynamic")
    own, low, high = (Encoder(folder, tau=tau).encode_documents(text)[0] for tau in (None, 0.0, 1.2))
    assert own.weights.min() > 1.0 > low.weights.min() > 0 and high.weights.min() > 1.2
    assert len(low) > len(own) > len(high) > 0


def test_queries_ignore_tau(tiny_model: ModelFolder) -> None:
    routed = Encoder(tiny_model("dynamic"), tau=5.0).encode_query("gravity")
    assert routed.tokens is not None and routed.tokens.tolist() == [0, 1]  # the word and [SEP]


def test_batches_have_one_length_and_bounded_size() -> None:
    lengths = [100] * 7 + [3, 600, 3]
    parts = list(batches(lengths))
    assert [[lengths[position] for position in part] for part in parts] == [
        [600],
        [100] * 5,
        [100] * 2,
        [3, 3],
    ]
    assert sorted(position for part in parts for position in part) == list(range(10))


def test_single_string_is_a_usage_error(tiny_model: ModelFolder) -> None:
    encoder = Encoder(tiny_model())
    with pytest.raises(UsageError, match="into a list"):
        encoder.encode_documents("a text")
    with pytest.raises(UsageError, match="not int"):
        encoder.encode_queries([7])  # type: ignore[list-item]


def test_encoding_no_texts(tiny_model: ModelFolder) -> None:
    assert Encoder(tiny_model()).encode_documents([]) == []


# Invalid folders


def copy(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_fingerprint_covers_graph_tokenizer_and_config(tiny_model: ModelFolder, tmp_path: Path) -> None:
    first = Encoder(tiny_model()).fingerprint
    same = copy(tiny_model(), tmp_path / "same")
    assert Encoder(same).fingerprint == first
    (same / "README.md").write_text("other")
    assert Encoder(same).fingerprint == first
    tiny_config(tau=0.2).save(same)
    assert Encoder(same).fingerprint != first


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such model"):
        Encoder(tmp_path / "gone")


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        ("model.onnx", b"", "model.onnx: the graph is refused"),
        ("model.onnx", b"not a model", "model.onnx: the graph is refused"),
        ("model.onnx", None, "model.onnx: there is no such file"),
        ("tokenizer.json", None, "no tokenizer"),
        ("config.json", None, "there is no model here"),
        ("config.json", b"{}", "names no router"),
        ("config.json", b"[", "cannot be read as JSON"),
    ],
)
def test_damaged_folder_is_an_error(
    file: str, contents: bytes | None, message: str, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    folder = copy(tiny_model(), tmp_path / "damaged")
    (folder / file).unlink()
    if contents is not None:
        (folder / file).write_bytes(contents)
    with pytest.raises(InputError, match=message):
        Encoder(folder)


def test_truncated_graph_is_an_error(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = copy(tiny_model(), tmp_path / "half")
    whole = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="export the model again"):
        Encoder(folder)


def test_graph_of_another_router_is_an_error(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = copy(tiny_model("static"), tmp_path / "mixed")
    tiny_config("dynamic").save(folder)
    with pytest.raises(InputError, match="not the graph"):
        Encoder(folder)
