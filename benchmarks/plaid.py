"""Centroid indexes with residual codes (ColBERT-v2, PLAID): latency, overlap with fp32, size, build.

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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import one_core, report

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


def build(documents: Texts, codec: str, folder: str) -> tuple[citadel.Index, float]:
    """An index of the documents' vectors in one segment, and the CPU seconds it took."""
    fields = {"lexical": citadel.Field(DIMENSION, codec)}
    router = None if codec.startswith("residual") else "all_to_all"
    items = [{"id": str(number), "vectors": rows} for number, rows in enumerate(documents)]
    start = time.process_time()
    index = citadel.Index.create(folder, router=router, fields=fields, fingerprint="plaid")
    index.add_vectors(items)
    index.commit()
    index.merge()
    return index, time.process_time() - start


def exact_rankings(documents: Texts, queries: Texts) -> list[set[str]]:
    """The best K documents of each query by fp32 MaxSim."""
    rows, starts = np.concatenate(documents), np.cumsum([0, *map(len, documents)])[:-1]
    return [
        set(map(str, np.argsort(-np.maximum.reduceat(query @ rows.T, starts, axis=1).sum(axis=0))[:K]))
        for query in queries
    ]


def overlap(index: citadel.Index, queries: Texts, exact: list[set[str]], **options: Any) -> float:
    """The share of the exact best K that a search returns."""
    searcher = index.searcher(threads=1)
    hits = (searcher.search_vectors(vectors=query, k=K, **options).ids for query in queries)
    return float(np.mean([len(best & set(ids)) / K for best, ids in zip(exact, hits, strict=True)]))


def run_all(searcher: Any, queries: Texts, **options: Any) -> None:
    for query in queries:
        searcher.search_vectors(vectors=query, k=K, **options)


def cpu_seconds(run: Callable[[], Any], rounds: int = 3) -> float:
    """The least CPU seconds of a run: on a busy machine the clock would also count other processes."""
    least = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        run()
        least = min(least, time.process_time() - start)
    return least


def bytes_per_token(index: citadel.Index, tokens: int) -> float:
    """Bytes of the lists, codes and codebook of an index per token; ids and texts do not count."""
    figures = index.stats()
    document_store = figures["sections"]["DOCUMENT_STORE"]
    ids = sum(size for name, size in figures["sections"].items() if name.startswith("ID_"))
    return float((figures["bytes"] - document_store - ids) / tokens)


def measure(documents: Texts, queries: Texts, codecs: Sequence[str], efs: Sequence[int]) -> list[list[Any]]:
    """A row per codec and number of scored documents."""
    exact, tokens, rows = exact_rankings(documents, queries), sum(map(len, documents)), []
    with tempfile.TemporaryDirectory() as folder:
        for codec in codecs:
            index, seconds = build(documents, codec, f"{folder}/{codec}")
            size = bytes_per_token(index, tokens)
            modes: dict[str, dict[str, Any]] = {"exact": {"semantic_mode": "exact"}}
            if codec.startswith("residual"):
                modes |= {f"ef {ef}": {"ef": ef} for ef in efs}
            run = partial(run_all, index.searcher(threads=1), queries)
            runs: dict[Any, Callable[[], Any]] = {
                name: partial(run, **options) for name, options in modes.items()
            }
            least = {name: cpu_seconds(search) for name, search in runs.items()}
            for name, options in modes.items():
                share = overlap(index, queries, exact, **options)
                rows.append(
                    [codec, name, 1000 * least[name] / len(queries), share, size, int(tokens / seconds)]
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a folder in the Hugging Face format")
    parser.add_argument("--data", type=Path, required=True, help="a BEIR folder")
    parser.add_argument("--documents", type=int, help="use the first N documents only")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/plaid-cache"))
    parser.add_argument("--codecs", nargs="+", default=["int8", "residual4", "residual2", "residual1"])
    parser.add_argument("--ef", type=int, nargs="+", default=[64, 128, 256, 512])
    options = parser.parse_args()
    documents, queries = token_vectors(options.model, options.data, options.cache, options.documents)
    one_core()
    tokens = sum(map(len, documents))
    rows = measure(documents, queries, options.codecs, options.ef)
    title = f"{options.data.name}: {len(documents):,} documents, {tokens:,} tokens, {options.model.name}"
    columns = [
        "codec",
        "mode",
        "CPU ms per query",
        f"overlap@{K} with fp32",
        "bytes per token",
        "tokens per CPU second",
    ]
    report("plaid", title, columns, rows, documents=len(documents), tokens=tokens)


if __name__ == "__main__":
    main()
