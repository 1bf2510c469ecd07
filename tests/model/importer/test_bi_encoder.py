"""Bi-encoders of sentence-transformers give the vectors and scores of the library itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs `pip install sentence-transformers`")

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import citadel
from citadel.encode.config import load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.importer.convert import import_model
from tests.support.foreign import TEXTS, foreign_backbone


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_backbone(tmp_path_factory.mktemp("foreign") / "backbone")


def saved(
    backbone: Path, folder: Path, *modules: Any, pooling: str = "mean", **how: Any
) -> SentenceTransformer:
    """A model of the library, saved to a folder."""
    torch.manual_seed(1)
    model = SentenceTransformer(
        modules=[Transformer(str(backbone)), Pooling(32, pooling), *(make() for make in modules)], **how
    )
    model.save_pretrained(str(folder))
    return model.eval()


def tanh() -> Dense:
    return Dense(32, 24)


def plain() -> Dense:
    return Dense(32, 16, bias=False, activation_function=None)


def narrow() -> Dense:
    return Dense(16, 8, activation_function=None)


CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "mean": ((), {}),
    "mean, dot product": ((), {"similarity_fn_name": "dot"}),
    "cls, normalised": ((Normalize,), {"pooling": "cls"}),
    "max": ((), {"pooling": "max", "similarity_fn_name": "dot"}),
    "tanh": ((tanh,), {"similarity_fn_name": "dot"}),
    "two projections": ((plain, narrow), {"similarity_fn_name": "dot"}),
    "projection, then normalised": ((plain, Normalize), {}),
    "normalised, then projected": ((Normalize, plain), {"similarity_fn_name": "dot"}),
    "prompts": ((), {"prompts": {"query": "who: ", "document": "history, "}}),
    "prompt of passages": ((), {"prompts": {"query": "who: ", "passage": "history, "}}),
    "default prompt": ((), {"prompts": {"all": "in the "}, "default_prompt_name": "all"}),
}


@pytest.mark.parametrize("case", CASES)
def test_vectors_and_scores_are_those_of_the_library(case: str, backbone: Path, tmp_path: Path) -> None:
    modules, how = CASES[case]
    model = saved(backbone, tmp_path / "foreign", *modules, **how)
    [folder] = import_model(str(tmp_path / "foreign"), tmp_path / "ours", "fp32")
    loaded = SentenceTransformer(str(tmp_path / "foreign"))
    encoder = Encoder(folder, threads=1)
    ours = [np.stack([text.semantic for text in part if text.semantic is not None]) for part in (
        encoder.encode_queries(TEXTS), encoder.encode_documents(TEXTS),
    )]  # fmt: skip
    theirs = [loaded.encode_query(TEXTS), loaded.encode_document(TEXTS)]
    if how.get("similarity_fn_name") == "dot":
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-4)
    np.testing.assert_allclose(ours[0] @ ours[1].T, model.similarity(*theirs).numpy(), atol=1e-4)


def test_imported_model_is_indexed_and_searched(backbone: Path, tmp_path: Path) -> None:
    model = saved(backbone, tmp_path / "foreign", Normalize)
    [folder] = import_model(str(tmp_path / "foreign"), tmp_path / "ours", "int8")
    assert "Imported from `foreign`" in (folder / "README.md").read_text()
    with citadel.Index.create(tmp_path / "idx", model=str(folder), semantic_codec="fp16") as index:
        index.add([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
        index.commit()
        hits = index.search("einstein and relativity", k=len(TEXTS))
    scores = model.similarity(model.encode_query(["einstein and relativity"]), model.encode_document(TEXTS))
    for hit in hits:
        assert hit.score == pytest.approx(float(scores[0, int(hit.id)]), abs=0.05)


def test_lengths_of_the_library_are_kept(backbone: Path, tmp_path: Path) -> None:
    model = saved(backbone, tmp_path / "foreign")
    model.max_seq_length = 12
    model.save_pretrained(str(tmp_path / "foreign"))
    [folder] = import_model(str(tmp_path / "foreign"), tmp_path / "ours", "fp32")
    assert (load_config(folder).query_length, load_config(folder).document_length) == (12, 12)
    [vector] = Encoder(folder).encode_documents([TEXTS[3]])
    [expected] = model.encode_document([TEXTS[3]], normalize_embeddings=True)
    assert vector.semantic is not None
    np.testing.assert_allclose(vector.semantic, expected, atol=1e-4)


def changed(path: Path, change: Any) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps(change(data) or data))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "pooling": (
        lambda f: changed(f / "1_Pooling/config.json", lambda d: d.update(pooling_mode="lasttoken")),
        ("lasttoken", "not supported"),
    ),
    "two poolings": (
        lambda f: changed(f / "1_Pooling/config.json", lambda d: d.update(pooling_mode=["cls", "mean"])),
        ("cls + mean", "not supported"),
    ),
    "unknown module": (
        lambda f: changed(f / "modules.json", lambda d: d[1].update(type="sentence_transformers.models.CNN")),
        ("Pooling", "not supported"),
    ),
    "custom module": (
        lambda f: changed(f / "modules.json", lambda d: d[1].update(type="custom.Evil")),
        ("custom.Evil", "never run"),
    ),
    "custom code": (
        lambda f: changed(f / "config.json", lambda d: d.update(auto_map={"AutoModel": "a.B"})),
        ("trust_remote_code", "never run"),
    ),
    "a path outside": (
        lambda f: changed(f / "modules.json", lambda d: d[1].update(path="../../etc")),
        ("../../etc", "leaves"),
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ("tokenizer.json", "save_pretrained")),
    "no modules": (lambda f: (f / "modules.json").unlink(), ("modules.json",)),
    "similarity": (
        lambda f: changed(
            f / "config_sentence_transformers.json", lambda d: d.update(similarity_fn_name="manhattan")
        ),
        ("manhattan", "not supported"),
    ),
    "another model type": (
        lambda f: changed(f / "config_sentence_transformers.json", lambda d: d.update(model_type="Other")),
        ("'Other'", "not supported"),
    ),
    "another backbone": (
        lambda f: changed(f / "config.json", lambda d: d.update(model_type="llama")),
        ("'llama'", "not supported"),
    ),
    "prompt that merges": (
        lambda f: changed(
            f / "config_sentence_transformers.json", lambda d: d.update(prompts={"query": "e"})
        ),
        ("'e'", "merges"),
    ),
    "JSON of another kind": (lambda f: (f / "modules.json").write_text('{"a": 1}'), ("modules.json", "list")),
    "deep JSON": (lambda f: (f / "modules.json").write_text("[" * 100_000), ("modules.json", "JSON")),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), ("pytorch_model.bin", "pickled"),
    ),
    "a pipe as weights": (
        lambda f: piped(f / "model.safetensors"),
        ("model.safetensors", "regular file"),
    ),
    "a pipe as modules": (
        lambda f: piped(f / "modules.json"),
        ("modules.json", "regular file"),
    ),
    "cut weights": (
        lambda f: os.truncate(f / "model.safetensors", 1000), ("model.safetensors", "safetensors"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_is_one_sentence(case: str, backbone: Path, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    saved(backbone, tmp_path / "foreign")
    change(tmp_path / "foreign")
    with pytest.raises(InputError) as caught:
        import_model(str(tmp_path / "foreign"), tmp_path / "ours")
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert not (tmp_path / "ours").exists()


def test_dense_module_that_does_not_fit_is_refused(backbone: Path, tmp_path: Path) -> None:
    saved(backbone, tmp_path / "foreign", plain, narrow)
    changed(tmp_path / "foreign" / "modules.json", lambda d: [d[0], d[1], d[3]])
    with pytest.raises(InputError, match="reads 16 values, the backbone gives 32"):
        import_model(str(tmp_path / "foreign"), tmp_path / "ours")
