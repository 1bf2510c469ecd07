"""Centroid indexes with residual codes (ColBERT-v2, PLAID): latency, overlap with fp32, size, speed of the build.

    python benchmarks/plaid.py --model DIR --data shared/data/eval/cranfield

Token vectors are the last hidden states of any transformer in the Hugging Face format, projected to 128
dimensions by a fixed random rotation and normalised, so that no trained ColBERT is needed. Queries are padded
to 32 tokens with [MASK], as ColBERT's. Vectors are kept in `--cache` for the next run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import alternate, one_core, report
from numpy.typing import NDArray

import citadel
from citadel.types import Floats

DIMENSION, QUERY_TOKENS, DOCUMENT_TOKENS = 128, 32, 300
QUERIES, K = 100, 10
Texts = list[Floats]


class TokenEncoder:
    """The token vectors of texts with a transformer in `folder`."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(0)
        square = torch.randn(self._model.config.hidden_size, DIMENSION, generator=generator)
        self._rotation = torch.linalg.qr(square)[0]

    def encode(self, texts: Sequence[str], limit: int, augment: bool = False) -> Texts:
        """One array [tokens, 128] per text, encoded in batches of similar length."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        out: Texts = [np.zeros((0, DIMENSION), np.float32)] * len(texts)
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            for row, vectors in zip(rows, self._batch([texts[i] for i in rows], limit, augment), strict=True):
                out[row] = vectors
        return out

    def _batch(self, texts: list[str], limit: int, augment: bool) -> Texts:
        padding = "max_length" if augment else True
        batch = self._tokenizer(
            texts, padding=padding, truncation=True, max_length=limit, return_tensors="pt"
        )
        if augment:
            batch["input_ids"][batch["attention_mask"] == 0] = self._tokenizer.mask_token_id
            batch["attention_mask"][:] = 1
        with self._torch.inference_mode():
            states = self._model(**batch).last_hidden_state @ self._rotation
        states = self._torch.nn.functional.normalize(states, dim=-1).numpy()
        masks = batch["attention_mask"].numpy().astype(bool)
        return [row[mask] for row, mask in zip(states, masks, strict=True)]


def read_texts(file: Path) -> list[str]:
    """Title and text of each line of a BEIR file."""
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return [f"{line.get('title', '')} {line['text']}".strip() for line in lines]


def token_vectors(model: Path, data: Path, cache: Path, documents: int | None) -> tuple[Texts, Texts]:
    """Vectors of documents and queries, from the cache if they are there."""
    file = cache / f"{model.name}-{data.name}-{documents or 'all'}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        encoder = TokenEncoder(model)
        texts = read_texts(data / "corpus.jsonl")[:documents]
        encoded = encoder.encode(texts, DOCUMENT_TOKENS)
        queries = encoder.encode(read_texts(data / "queries.jsonl")[:QUERIES], QUERY_TOKENS, augment=True)
        np.savez(file, documents=np.concatenate(encoded).astype(np.float16), queries=np.stack(queries),
                 sizes=[len(part) for part in encoded])  # fmt: skip
    with np.load(file) as arrays:
        borders = np.cumsum(arrays["sizes"])[:-1]
        documents_of: Texts = np.split(arrays["documents"].astype(np.float32), borders)
        return documents_of, list(arrays["queries"])
