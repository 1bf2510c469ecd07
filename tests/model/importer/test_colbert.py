"""ColBERT models give the token vectors and scores of sentence-transformers."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="needs `pip install sentence-transformers`")

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

import citadel
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.importer.convert import import_model
from tests.support.foreign import TEXTS, foreign_backbone

PUNCTUATION = list(string.punctuation)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_backbone(tmp_path_factory.mktemp("foreign") / "backbone")


def encoder_folder(backbone: Path, folder: Path, words: list[str], prompts: Any = None, **how: Any) -> Path:
    """A MultiVectorEncoder as the library saves it."""
    torch.manual_seed(1)
    dense = Dense(32, 16, bias=False, activation_function=None, module_input_name="token_embeddings")
    modules = [
        Transformer(str(backbone), **how),
        dense,
        MultiVectorMask(skiplist_words=words),
        Normalize(module_input_name="token_embeddings"),
    ]
    MultiVectorEncoder(modules=modules, prompts=prompts).save_pretrained(str(folder))
    return folder


def both_skip_lists_folder(backbone: Path, folder: Path) -> Path:
    """Words skipped in queries and documents, and others in documents only."""
    encoder_folder(backbone, folder, [",", "[SEP]"], query_expansion=FIXED)
    changed(folder / "2_MultiVectorMask" / "config.json", skiplist_tasks=["query", "document"])
    modules = json.loads((folder / "modules.json").read_text())
    second = {**modules[2], "idx": 4, "name": "4", "path": "4_MultiVectorMask"}
    (folder / "modules.json").write_text(json.dumps([*modules[:3], second, modules[3]]))
    (folder / "4_MultiVectorMask").mkdir()
    (folder / "4_MultiVectorMask" / "config.json").write_text(json.dumps({"skiplist_words": ["rome"]}))
    return folder


def pylate_folder(backbone: Path, folder: Path, **settings: Any) -> Path:
    """Transformer and Dense alone, with PyLate's settings."""
    encoder_folder(backbone, folder, [])
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    path = folder / "1_Dense" / "config.json"
    kept = ("in_features", "out_features", "bias", "activation_function")
    path.write_text(json.dumps({name: json.loads(path.read_text())[name] for name in kept}))
    given = {"model_type": "ColBERT", "prompts": {}, "similarity_fn_name": "MaxSim", **settings}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(given))
    return folder


def stanford_folder(backbone: Path, folder: Path, **metadata: Any) -> Path:
    """The backbone under the prefix bert., linear.weight and artifact.metadata."""
    foreign_backbone(folder)
    torch.manual_seed(2)
    tensors = {f"bert.{name}": part for name, part in load_file(backbone / "model.safetensors").items()}
    file = folder / "model.safetensors"
    save_file({**tensors, "linear.weight": torch.randn(16, 32)}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


MARKERS = {"query_prefix": "[unused0] ", "document_prefix": "[unused1] "}
FIXED = {"strategy": "fixed", "length": 16}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (encoder_folder, {"words": []}),
    "skip list": (encoder_folder, {"words": PUNCTUATION}),
    "skip lists for queries": (both_skip_lists_folder, {}),
    "prompts": (encoder_folder, {"words": [], "prompts": {"query": "who: ", "document": "the history, "}}),
    "lengths": (encoder_folder, {"words": [], "query_length": 10, "document_length": 20}),
    "expansion, not attended": (encoder_folder, {"words": [",", "rome"], "query_expansion": FIXED}),
    "expansion, attended": (encoder_folder, {"words": [], "query_expansion": {**FIXED, "attend": True}}),
    "at least 8 tokens": (
        encoder_folder,
        {"words": [], "query_expansion": {"strategy": "min", "length": 8}, "query_length": 12},
    ),
    "another token": (encoder_folder, {"words": [], "query_expansion": {**FIXED, "token": "[unused3]"}}),
    "PyLate": (pylate_folder, {**MARKERS, "query_length": 16, "document_length": 24}),
    "PyLate, attended": (
        pylate_folder,
        {**MARKERS, "query_length": 12, "attend_to_expansion_tokens": True, "skiplist_words": []},
    ),
    "PyLate without expansion": (pylate_folder, {**MARKERS, "do_query_expansion": False}),
    "Stanford": (stanford_folder, {"query_maxlen": 16, "doc_maxlen": 24}),
    "Stanford, attended": (
        stanford_folder,
        {
            "query_maxlen": 12,
            "doc_maxlen": 30,
            "attend_to_mask_tokens": True,
            "mask_punctuation": False,
            "query_token_id": "[unused5]",
            "doc_token_id": "[unused6]",
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_token_vectors_and_scores_are_those_of_the_library(case: str, backbone: Path, tmp_path: Path) -> None:
    make, how = CASES[case]
    source = make(backbone, tmp_path / "foreign", **how)
    [folder] = import_model(str(source), tmp_path / "ours", "fp32")
    model, encoder = MultiVectorEncoder(str(source)), Encoder(folder, threads=1)
    for ours, theirs in (
        (encoder.encode_queries(TEXTS), model.encode_query(TEXTS)),
        (encoder.encode_documents(TEXTS), model.encode_document(TEXTS)),
    ):
        for own, other in zip(ours, theirs, strict=True):
            assert own.vectors is not None
            assert own.vectors.shape == other.shape
            np.testing.assert_allclose(own.vectors, np.asarray(other), atol=1e-4)


def test_imported_colbert_is_indexed_and_searched(backbone: Path, tmp_path: Path) -> None:
    source = stanford_folder(backbone, tmp_path / "foreign", query_maxlen=16, doc_maxlen=24)
    [folder] = import_model(str(source), tmp_path / "ours", "fp32")
    texts = [TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[4]]
    with citadel.Index.create(tmp_path / "idx", model=str(folder), codec="fp16") as index:
        index.add([{"id": str(number), "text": text} for number, text in enumerate(texts)])
        index.commit()
        hits = index.search("einstein and relativity", k=len(texts))
    model = MultiVectorEncoder(str(source))
    scores = model.similarity(model.encode_query(["einstein and relativity"]), model.encode_document(texts))
    assert len(hits) == len(texts)
    for hit in hits:
        assert hit.score == pytest.approx(float(scores[0][int(hit.id)]), abs=0.02)


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_skip_list_for_an_unknown_task_is_refused(backbone: Path, tmp_path: Path) -> None:
    source = encoder_folder(backbone, tmp_path / "foreign", [","])
    changed(source / "2_MultiVectorMask" / "config.json", skiplist_tasks=["query", "image"])
    with pytest.raises(InputError, match="other than queries and documents"):
        import_model(str(source), tmp_path / "ours")


def test_missing_projection_is_refused(backbone: Path, tmp_path: Path) -> None:
    source = stanford_folder(backbone, tmp_path / "foreign")
    foreign_backbone(source)
    with pytest.raises(InputError, match=r"no matrix linear\.weight"):
        import_model(str(source), tmp_path / "ours")


@pytest.mark.parametrize("length", [0, -1, "32", 1e9, 41])
def test_impossible_query_length_is_refused(length: Any, backbone: Path, tmp_path: Path) -> None:
    source = stanford_folder(backbone, tmp_path / "foreign", query_maxlen=length)
    if length == 0:  # the default, 32
        import_model(str(source), tmp_path / "ours")
        return
    with pytest.raises(InputError, match=r"tokens are longer|the length"):
        import_model(str(source), tmp_path / "ours")


def test_model_without_normalisation_is_refused(backbone: Path, tmp_path: Path) -> None:
    source = encoder_folder(backbone, tmp_path / "foreign", [])
    modules = json.loads((source / "modules.json").read_text())
    (source / "modules.json").write_text(json.dumps(modules[:-1]))
    with pytest.raises(InputError, match="without a Normalize module"):
        import_model(str(source), tmp_path / "ours")
