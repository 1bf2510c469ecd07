"""sentence-transformers loads exported models and gives our vectors, weights and scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs `pip install sentence-transformers`")

from safetensors.numpy import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder

from citadel.encode.config import BackboneConfig, ModelConfig
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.export import export
from citadel.model.importer.convert import import_model
from citadel.model.sentence_transformers_format import export_sentence_transformers
from tests.support.foreign import TEXTS
from tests.support.models import VOCABULARY, tiny_config, write_checkpoint

SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "relu": {"activation": "relu"},
    "roberta": {"position_offset": 2, "positions": 42},
    "mpnet": {"position_offset": 2, "positions": 42, "architecture": "mpnet", "relative_buckets": 32},
    "modernbert": {
        "architecture": "modernbert", "rotary_base": 1000.0, "local_rotary_base": 100.0, "local_window": 4,
        "full_every": 2, "layers": 3, "epsilon": 1e-5,
    },
}  # fmt: skip
EINS = VOCABULARY.index("einstein")
PUNCTUATION = tuple(VOCABULARY.index(mark) for mark in ".,")
PROMPTS = {"query_prompt": (VOCABULARY.index("who"),), "document_prompt": (VOCABULARY.index("[unused100]"),)}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"ColBERT, {name}": (name, "all_to_all", {"query_length": 8}) for name in SHAPES},
    "ColBERT, padded to at least 8": ("bert", "all_to_all", {}),
    "ColBERT, padding not attended to": ("bert", "all_to_all", {"query_length": 8, "attend_padding": False}),
    "ColBERT without padding": ("bert", "all_to_all", {"query_padding": 0}),
    "ColBERT, prompts": ("bert", "all_to_all", PROMPTS),
    "ColBERT, only the text": (
        "bert", "all_to_all", {"route_separator": False, "route_punctuation": False, "query_padding": 0},
    ),
    "ColBERT, skip lists": (
        "bert", "all_to_all",
        {"route_cls": True, "skipped_tokens": PUNCTUATION, "unrouted_query_tokens": (EINS, PUNCTUATION[0])},
    ),
    **{f"SPLADE, {name}": (name, "sparse", {}) for name in SHAPES if name != "relu"},
    "SPLADE, sum": ("bert", "sparse", {"sparse_pooling": "sum", "sparse_activation": "log log"}),
    "SPLADE, special tokens": ("bert", "sparse", {"route_cls": True}),
    "SPLADE, only the text": ("bert", "sparse", {"route_separator": False, "route_punctuation": False}),
    "SPLADE, stored weights": (
        "bert", "sparse", {"static_queries": True, "unrouted_query_tokens": (2, 3), "query_length": 18},
    ),
    **{f"DPR, {name}": (name, "none", {}) for name in SHAPES},
    "DPR, [CLS]": ("bert", "none", {"pooling": "cls", "normalize_pooled": False}),
    "DPR, cosine": ("bert", "none", {"normalize_semantic": True, "semantic_activation": "tanh", **PROMPTS}),
}  # fmt: skip
# Without [UNK], which is token 1, as is the padding of RoBERTa and MPNet.
KNOWN = ["einstein proposed relativity.", "who", "the history of rome, in 12", "gravity " * 60, "e2 e4"]
LOADERS: dict[str, Any] = {
    "all_to_all": MultiVectorEncoder, "sparse": SparseEncoder, "none": SentenceTransformer,
}  # fmt: skip


def checkpoint(folder: Path, shape: str, router: str, how: dict[str, Any]) -> ModelConfig:
    base = tiny_config(router)
    pad = {"pad_id": 1} if "position_offset" in SHAPES[shape] else {}
    config = replace(base, backbone=replace(base.backbone, **SHAPES[shape]), **(pad | how))
    write_checkpoint(folder, config)
    if config.static_queries:
        state = load_file(folder / "model.safetensors")
        save_file({**state, "query.weight": np.abs(state["query.weight"])}, folder / "model.safetensors")
    return config


def ours(encoder: Encoder, texts: list[str], query: bool) -> list[np.ndarray]:
    encoded = encoder.encode_queries(texts) if query else encoder.encode_documents(texts)
    router = encoder.config.router
    if router == "sparse":
        rows = [np.zeros(len(VOCABULARY), np.float32) for _ in texts]
        for row, text in zip(rows, encoded, strict=True):
            row[text.keys] = text.weights
        return rows
    return [np.asarray(text.vectors if router == "all_to_all" else text.semantic) for text in encoded]


def theirs(model: Any, texts: list[str], query: bool) -> list[np.ndarray]:
    encoded = model.encode_query(texts) if query else model.encode_document(texts)
    return [np.asarray(text.to_dense() if isinstance(model, SparseEncoder) else text) for text in encoded]


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    shape, router, how = CASES[case]
    config = checkpoint(tmp_path / "checkpoint", shape, router, how)
    [folder] = export(tmp_path / "checkpoint", tmp_path / "onnx", "fp32")
    out = export_sentence_transformers(tmp_path / "checkpoint", tmp_path / "out")
    model, encoder = LOADERS[router](str(out)), Encoder(folder, threads=1)
    texts = KNOWN if config.backbone.position_offset else TEXTS
    for query in (True, False):
        for own, other in zip(ours(encoder, texts, query), theirs(model, texts, query), strict=True):
            assert own.shape == other.shape
            np.testing.assert_allclose(own, other, atol=1e-4)
    if (shape, router) != ("relu", "sparse"):
        [again] = import_model(str(out), tmp_path / "again", "fp32")
        back = Encoder(again, threads=1)
        for query in (True, False):
            for own, other in zip(ours(encoder, texts, query), ours(back, texts, query), strict=True):
                np.testing.assert_allclose(own, other, atol=1e-5)


def test_exported_folder_is_also_a_source(tmp_path: Path) -> None:
    """The weights of an ONNX model serve as well as a checkpoint."""
    checkpoint(tmp_path / "checkpoint", "bert", "none", {})
    [folder] = export(tmp_path / "checkpoint", tmp_path / "onnx", "fp32")
    first = export_sentence_transformers(tmp_path / "checkpoint", tmp_path / "first")
    second = export_sentence_transformers(folder, tmp_path / "second")
    for name, values in load_file(first / "model.safetensors").items():
        np.testing.assert_array_equal(values, load_file(second / "model.safetensors")[name])


@pytest.mark.parametrize(
    ("router", "how", "words"),
    [
        ("dynamic", {}, "no models with the router dynamic"),
        ("static", {}, "no models with the router static"),
        ("sparse", {"semantic_dimension": 8}, "keys and a semantic vector"),
        ("all_to_all", {"semantic_dimension": 8}, "keys and a semantic vector"),
        ("all_to_all", {"query_length": 6}, "reads as many as it pads to"),
    ],
)
def test_other_models_are_refused(router: str, how: dict[str, Any], words: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoint", "bert", router, how)
    with pytest.raises(InputError, match=words):
        export_sentence_transformers(tmp_path / "checkpoint", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_padding_token_of_roberta_must_be_before_the_positions(tmp_path: Path) -> None:
    config = tiny_config(
        "none", backbone=BackboneConfig(len(VOCABULARY), 32, 1, 4, 64, 42, position_offset=2)
    )
    write_checkpoint(tmp_path / "checkpoint", config)
    with pytest.raises(InputError, match=r"\[PAD\] must be token 1"):
        export_sentence_transformers(tmp_path / "checkpoint", tmp_path / "out")


def test_only_a_model_is_replaced(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoint", "bert", "none", {})
    out = export_sentence_transformers(tmp_path / "checkpoint", tmp_path / "out")
    with pytest.raises(InputError, match="already exists"):
        export_sentence_transformers(tmp_path / "checkpoint", out)
    export_sentence_transformers(tmp_path / "checkpoint", out, overwrite=True)
    assert json.loads((out / "modules.json").read_text())
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="something other than a model"):
        export_sentence_transformers(tmp_path / "checkpoint", tmp_path / "mine", overwrite=True)
