"""The encoder gives what the routers give for the plain formulas, whatever stands beside a text."""

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

TEXTS = ["", "einstein proposed relativity", "gravity!", "a history of rome, who proposed it", "the " * 50, "gravity!"]


def expected(folder: Path, text: str, query: bool) -> RoutedTokens:
    """The router's answer to dense φ from the forward pass in numpy."""
    config = load_config(folder)
    tokenizer = Encoder(folder, threads=1).tokenizer
    read = (tokenizer.queries if query else tokenizer.documents)([text])[0]
    keys = {"query_keys": config.query_keys, "document_keys": config.document_keys, "tau": config.tau}
    router = get_router(config.router, semantic=config.has_semantic, **keys if config.router == "dynamic" else {})
    plain = forward(config, tiny_state(config), read.ids, read.routed)
    return router.route_query(plain) if query else without_blanks([read], [router.route_document(plain)])[0]


def assert_same(found: RoutedTokens, wanted: RoutedTokens, tolerance: float = 1e-4) -> None:
    assert found.keys.tolist() == wanted.keys.tolist()
    for one, other in [
        (found.weights, wanted.weights),
        (found.vectors, wanted.vectors),
        (found.semantic, wanted.semantic),
    ]:
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert (found.tokens is None) == (wanted.tokens is None)
    if found.tokens is not None and wanted.tokens is not None:
        assert found.tokens.tolist() == wanted.tokens.tolist()


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("query", [False, True])
def test_it_equals_the_router_on_the_formulas(router: str, query: bool, tiny_model: ModelFolder) -> None:
    encoder = Encoder(tiny_model(router), threads=2)
    found = (encoder.encode_queries if query else encoder.encode_documents)(TEXTS)
    for text, routed in zip(TEXTS, found, strict=True):
        assert_same(routed, expected(tiny_model(router), text, query))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("router", ROUTERS)
def test_what_stands_beside_a_text_changes_nothing(router: str, precision: str, tiny_model: ModelFolder) -> None:
    """To the last bit: a build that is resumed has other neighbours in its batches."""
    encoder = Encoder(tiny_model(router, precision), threads=2)
    for together, text in zip(encoder.encode_documents(TEXTS), TEXTS, strict=True):
        [alone] = encoder.encode_documents([text])
        assert_same(together, alone, tolerance=0.0)


@pytest.mark.parametrize("router", ["dynamic", "static", "all_to_all", "none"])
def test_int8_is_close_to_fp32(router: str, tiny_model: ModelFolder) -> None:
    [exact], [small] = (Encoder(tiny_model(router, kind)).encode_documents(TEXTS[3:4]) for kind in ("fp32", "int8"))
    pairs = [(exact.semantic, small.semantic)]
    if router != "dynamic":  # whose tokens may have other keys
        pairs.append((exact.vectors, small.vectors))
    for one, other in pairs:
        if one is not None and other is not None:
            cosine = (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)
            assert cosine > 0.995


def test_tau_is_the_models_own_or_the_callers(tiny_model: ModelFolder) -> None:
    text, folder = TEXTS[3:4], tiny_model("dynamic")
    own, low, high = (Encoder(folder, tau=tau).encode_documents(text)[0] for tau in (None, 0.0, 1.2))
    assert own.weights.min() > 1.0 > low.weights.min() > 0 and high.weights.min() > 1.2
    assert len(low) > len(own) > len(high) > 0


def test_queries_keep_their_best_key_below_tau(tiny_model: ModelFolder) -> None:
    routed = Encoder(tiny_model("dynamic"), tau=5.0).encode_query("gravity")
    assert routed.tokens is not None and routed.tokens.tolist() == [0, 1]  # the word and [SEP]


def test_batches_hold_one_length_and_a_bounded_number_of_tokens() -> None:
    lengths = [100] * 7 + [3, 600, 3]
    parts = list(batches(lengths))
    assert [[lengths[place] for place in part] for part in parts] == [[600], [100] * 5, [100] * 2, [3, 3]]
    assert sorted(place for part in parts for place in part) == list(range(10))


def test_one_text_is_not_several(tiny_model: ModelFolder) -> None:
    encoder = Encoder(tiny_model())
    with pytest.raises(UsageError, match="into a list"):
        encoder.encode_documents("a text")
    with pytest.raises(UsageError, match="not int"):
        encoder.encode_queries([7])  # type: ignore[list-item]


def test_no_texts(tiny_model: ModelFolder) -> None:
    assert Encoder(tiny_model()).encode_documents([]) == []


# ---- folders that are no model ---------------------------------------------------------------------------------------


def copy(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_the_fingerprint_is_that_of_all_three_files(tiny_model: ModelFolder, tmp_path: Path) -> None:
    first = Encoder(tiny_model()).fingerprint
    same = copy(tiny_model(), tmp_path / "same")
    assert Encoder(same).fingerprint == first
    (same / "README.md").write_text("other")
    assert Encoder(same).fingerprint == first
    tiny_config(tau=0.2).save(same)
    assert Encoder(same).fingerprint != first


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
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
def test_a_damaged_folder(
    file: str, contents: bytes | None, message: str, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    folder = copy(tiny_model(), tmp_path / "damaged")
    (folder / file).unlink()
    if contents is not None:
        (folder / file).write_bytes(contents)
    with pytest.raises(InputError, match=message):
        Encoder(folder)


def test_half_a_graph(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = copy(tiny_model(), tmp_path / "half")
    whole = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="export the model again"):
        Encoder(folder)


def test_the_graph_of_another_router(tiny_model: ModelFolder, tmp_path: Path) -> None:
    folder = copy(tiny_model("static"), tmp_path / "mixed")
    tiny_config("dynamic").save(folder)
    with pytest.raises(InputError, match="not the graph"):
        Encoder(folder)
