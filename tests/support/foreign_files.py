"""A tiny model of sentence-transformers, written file by file, without that library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import processors

from scripts.smoke_data import write_backbone
from tests.support.models import VOCABULARY, tiny_tokenizer

_PACKAGE = "sentence_transformers.models."


def write_bi_encoder(folder: Path) -> Path:
    """Mean pooling, then Normalize."""
    write_files(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "path": path, "type": _PACKAGE + kind} for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def write_files(folder: Path) -> None:
    """A random backbone with its tokenizer."""
    folder.mkdir(parents=True)
    write_backbone(folder, len(VOCABULARY), np.random.default_rng(0))
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
