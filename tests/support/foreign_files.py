"""A tiny model of sentence-transformers, written file by file, without that library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import processors

from scripts.smoke_data import HIDDEN, write_backbone
from tests.support.models import VOCABULARY, tiny_tokenizer

_PACKAGE = "sentence_transformers.models."


def write_bi_encoder(folder: Path) -> Path:
    """Mean pooling, then Normalize."""
    write_files(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": _PACKAGE + kind}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def write_colbert(folder: Path) -> Path:
    """Stanford's layout: `artifact.metadata`, and the projection among the weights."""
    write_files(folder)
    file = folder / "model.safetensors"
    projection = np.random.default_rng(1).normal(size=(16, HIDDEN)).astype(np.float32)
    save_file({**load_file(file), "linear.weight": projection}, file, metadata={"format": "pt"})
    metadata = {"query_maxlen": 16, "doc_maxlen": 24, "dim": 16, "mask_punctuation": True}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def write_splade(folder: Path) -> Path:
    """A backbone with an MLM head, as the SPLADE papers publish it."""
    write_files(folder)
    file, head = folder / "model.safetensors", "cls.predictions."
    random = np.random.default_rng(2)
    tensors = {
        "transform.dense.weight": random.normal(size=(HIDDEN, HIDDEN)),
        "transform.dense.bias": np.zeros(HIDDEN),
        "transform.LayerNorm.weight": np.ones(HIDDEN),
        "transform.LayerNorm.bias": np.zeros(HIDDEN),
        "bias": np.zeros(len(VOCABULARY)),
    }
    added = {head + name: values.astype(np.float32) for name, values in tensors.items()}
    save_file({**load_file(file), **added}, file, metadata={"format": "pt"})
    return folder


def write_files(folder: Path) -> None:
    """A random backbone with its tokenizer."""
    folder.mkdir(parents=True)
    write_backbone(folder, len(VOCABULARY), np.random.default_rng(0))
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
