"""SPLADE models give the weights and scores of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs `pip install sentence-transformers`")

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

import citadel
from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError, UsageError
from citadel.model.importer.convert import import_model
from citadel.model.texts import TorchTexts
from citadel.types import RoutedTokens
from tests.support.foreign import TEXTS, foreign_backbone
from tests.support.models import VOCABULARY


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_backbone(tmp_path_factory.mktemp("foreign") / "backbone", head=True)


def transformer(backbone: Path) -> Any:
    return Transformer(str(backbone), transformer_task="fill-mask")


def splade_folder(backbone: Path, folder: Path, pooling: Any = ("max", "relu"), **how: Any) -> Path:
    SparseEncoder(modules=[transformer(backbone), SpladePooling(*pooling)], **how).save_pretrained(
        str(folder)
    )
    return folder


def static_folder(backbone: Path, folder: Path, weights: Any = None, activation: Any = "relu") -> Path:
    """A model whose queries have stored weights."""
    documents = transformer(backbone)
    torch.manual_seed(5)
    weight = torch.rand(len(VOCABULARY)) if weights is None else weights
    queries = SparseStaticEmbedding(documents.tokenizer, weight)
    router = Router.for_query_document([queries], [documents, SpladePooling("max", activation)])
    SparseEncoder(modules=[router]).save_pretrained(str(folder))
    return folder


def version_5_folder(backbone: Path, folder: Path) -> Path:
    """The names of classes and files of sentence-transformers 5."""
    splade_folder(backbone, folder)
    models = "sentence_transformers.sparse_encoder.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{models}.MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": f"{models}.SpladePooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": false}')
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": None}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def dense(routed: RoutedTokens) -> np.ndarray:
    values = np.zeros(len(VOCABULARY), np.float32)
    values[routed.keys] = routed.weights
    return values


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "max": (splade_folder, {}),
    "sum": (splade_folder, {"pooling": ("sum", "relu")}),
    "twice the logarithm": (splade_folder, {"pooling": ("max", "log1p_relu")}),
    "sum, twice the logarithm": (splade_folder, {"pooling": ("sum", "log1p_relu")}),
    "version 5": (version_5_folder, {}),
    "prompts": (splade_folder, {"prompts": {"query": "who: ", "document": "history, "}}),
    "stored weights for queries": (static_folder, {}),
    "stored weights, twice the logarithm": (static_folder, {"activation": "log1p_relu"}),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_and_scores_are_those_of_the_library(case: str, backbone: Path, tmp_path: Path) -> None:
    make, how = CASES[case]
    source = make(backbone, tmp_path / "foreign", **how)
    [folder] = import_model(str(source), tmp_path / "ours", "fp32")
    model = SparseEncoder(str(source))
    theirs = [part.to_dense().numpy() for part in (model.encode_query(TEXTS), model.encode_document(TEXTS))]
    for encoder in (Encoder(folder, threads=1), TorchTexts(folder, "cpu")):
        documents = (
            encoder.encode_documents(TEXTS)
            if isinstance(encoder, Encoder)
            else encoder.route_documents(encoder.tokenizer.documents(TEXTS))
        )
        ours = [
            np.stack([dense(text) for text in part]) for part in (encoder.encode_queries(TEXTS), documents)
        ]
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-4)
        scores = theirs[0] @ theirs[1].T
        np.testing.assert_allclose(ours[0] @ ours[1].T, scores, atol=1e-4 * max(1.0, np.abs(scores).max()))


@pytest.mark.parametrize("make", [splade_folder, static_folder])
def test_imported_splade_is_indexed_searched_and_explained(make: Any, backbone: Path, tmp_path: Path) -> None:
    source = make(backbone, tmp_path / "foreign")
    [folder] = import_model(str(source), tmp_path / "ours", "fp32")
    with citadel.Index.create(tmp_path / "idx", model=str(folder)) as index:
        index.add([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
        index.commit()
        hits = index.search("einstein and relativity", k=len(TEXTS))
        explained = index.searcher().explain("einstein and relativity", hits[0].id)
    model = SparseEncoder(str(source))
    scores = model.similarity(model.encode_query(["einstein and relativity"]), model.encode_document(TEXTS))
    for hit in hits:
        assert hit.score == pytest.approx(float(scores[0, int(hit.id)]), rel=0.02, abs=0.02)
    assert explained.score == pytest.approx(hits[0].score, rel=1e-4)


def test_int8_is_close(backbone: Path, tmp_path: Path) -> None:
    source = splade_folder(backbone, tmp_path / "foreign")
    [folder] = import_model(str(source), tmp_path / "ours", "int8")
    theirs = SparseEncoder(str(source)).encode_document(TEXTS).to_dense().numpy()
    ours = np.stack([dense(text) for text in Encoder(folder, threads=1).encode_documents(TEXTS)])
    assert np.abs(ours - theirs).mean() < 0.1


def test_checkpoint_without_modules_is_read_as_splade(backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--type splade"):
        import_model(str(backbone), tmp_path / "ours")
    with pytest.raises(UsageError, match="unknown type 'colbert'"):
        import_model(str(backbone), tmp_path / "ours", kind="colbert")
    [folder] = import_model(str(backbone), tmp_path / "ours", "fp32", kind="splade")
    theirs = SparseEncoder(modules=[transformer(backbone), SpladePooling()]).encode_query(TEXTS).to_dense()
    ours = np.stack([dense(text) for text in Encoder(folder, threads=1).encode_queries(TEXTS)])
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)


def test_stored_weights_read_as_many_tokens_as_the_library(backbone: Path, tmp_path: Path) -> None:
    source = static_folder(backbone, tmp_path / "foreign")
    [folder] = import_model(str(source), tmp_path / "ours", "fp32")
    assert load_config(folder).query_length == 42  # 40 without [CLS] and [SEP]


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def untied(folder: Path) -> None:
    file = folder / "model.safetensors"
    decoder = torch.ones(len(VOCABULARY), 32)
    save_file({**load_file(file), "cls.predictions.decoder.weight": decoder}, file, metadata={"format": "pt"})


def without_head(folder: Path) -> None:
    file = folder / "model.safetensors"
    kept = {name: part for name, part in load_file(file).items() if not name.startswith("cls.")}
    save_file(kept, file, metadata={"format": "pt"})


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "pooling": (
        splade_folder,
        lambda f: changed(f / "1_SpladePooling/config.json", pooling_strategy="mean"),
        "'mean'",
    ),
    "activation": (
        splade_folder, lambda f: changed(f / "1_SpladePooling/config.json", activation_function="x"), "'x'",
    ),
    "cosine": (
        splade_folder,
        lambda f: changed(f / "config_sentence_transformers.json", similarity_fn_name="cosine"),
        "other than dot",
    ),
    "untied decoder": (splade_folder, untied, "untied"),
    "no head": (splade_folder, without_head, "needs the MLM head"),
    "no fill-mask": (
        splade_folder,
        lambda f: changed(f / "sentence_bert_config.json", transformer_task="feature-extraction"),
        "no fill-mask head",
    ),
    "another activation": (
        splade_folder, lambda f: changed(f / "config.json", hidden_act="relu"), "other than gelu",
    ),
    "two encoders": (
        static_folder,
        lambda f: changed(
            f / "router_config.json",
            structure={"query": ["document_0_Transformer"], "document": ["document_0_Transformer"]},
        ),
        "two encoders",
    ),
    "other routes": (
        static_folder,
        lambda f: changed(f / "router_config.json", structure={"image": [], "text": []}),
        "routes other than",
    ),
    "routes without types": (
        static_folder, lambda f: changed(f / "router_config.json", types=[]), "structure",
    ),
    "custom route": (
        static_folder,
        lambda f: changed(f / "router_config.json", types={"document_0_Transformer": "evil.Module"}),
        "never run",
    ),
    "route outside": (
        static_folder,
        lambda f: changed(
            f / "router_config.json", structure={"query": ["../x"], "document": ["../../etc"]},
            types={"../../etc": "sentence_transformers.a.Transformer", "../x": "sentence_transformers.a.B"},
        ),
        "leaves",
    ),
    "negative weights": (
        static_folder,
        lambda f: save_file(
            {"weight": -torch.ones(len(VOCABULARY))}, f / "query_0_SparseStaticEmbedding/model.safetensors"
        ),
        "weights of queries",
    ),
    "too few weights": (
        static_folder,
        lambda f: save_file(
            {"weight": torch.ones(3)}, f / "query_0_SparseStaticEmbedding/model.safetensors"
        ),
        "weights of queries",
    ),
    "another tokenizer": (
        static_folder,
        lambda f: changed(f / "query_0_SparseStaticEmbedding/tokenizer.json", normalizer=None),
        "different tokenizers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_is_one_sentence(case: str, backbone: Path, tmp_path: Path) -> None:
    make, change, words = REFUSED[case]
    source = make(backbone, tmp_path / "foreign")
    change(source)
    with pytest.raises(InputError, match=words) as caught:
        import_model(str(source), tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()
