"""Centroid indexes with residual codes (ColBERT-v2, PLAID): latency, overlap with fp32, nDCG, size, build.

    python benchmarks/plaid.py --model runs/colbert --data $CITADEL_DATA/eval/scifact
    python benchmarks/plaid.py --model $CITADEL_DATA/models/gte-small --data $CITADEL_DATA/eval/cranfield

A model is a ColBERT model of citadel, a checkpoint or an exported folder, or any transformer in the Hugging
Face format: its last hidden states are centred, projected to the 128 principal directions of a sample of the
documents and normalised, and its queries are padded to 32 tokens with [MASK]. Vectors are kept in `--cache`
for the next run. `--documents N` keeps the documents that a judgement names and the first others. The codec
all_to_all is int8 with the router of that name, which has no centroids.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import one_core, report

import citadel
from citadel.eval import evaluate
from citadel.eval.datasets import Dataset, beir_folder
from citadel.paper.system import SystemSpec, load_system
from citadel.types import Document, Floats, Hit, Ranking, RoutedTokens

DIMENSION, QUERY_TOKENS, DOCUMENT_TOKENS = 128, 32, 300
FITTED_DOCUMENTS = 128
K, PART = 10, 256
ALL_TO_ALL = "all_to_all"
CODECS = (ALL_TO_ALL, "int8", "residual4", "residual2", "residual1")
Texts = list[Floats]
Rankings = list[list[str]]
Ndcg = Callable[[Rankings], float]


class TokenEncoder:
    """The token vectors of texts with a transformer in `folder`."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        width = self._model.config.hidden_size
        self._mean, self._directions = torch.zeros(width), torch.eye(width)

    def fit(self, texts: Sequence[str]) -> None:
        """Choose the principal directions of the states of these texts."""
        states = self._torch.from_numpy(np.concatenate(self.encode(texts, DOCUMENT_TOKENS)))
        self._mean = states.mean(dim=0)
        covariance = self._torch.cov((states - self._mean).T)
        self._directions = self._torch.linalg.eigh(covariance)[1].flip(1)[:, :DIMENSION]

    def encode(self, texts: Sequence[str], limit: int, augment: bool = False) -> Texts:
        """One array [tokens, d] per text, encoded in batches of similar length."""
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
            states = (self._model(**batch).last_hidden_state - self._mean) @ self._directions
        states = self._torch.nn.functional.normalize(states, dim=-1).numpy()
        masks = batch["attention_mask"].numpy().astype(bool)
        return [row[mask] for row, mask in zip(states, masks, strict=True)]


class Vectors(NamedTuple):
    """Token vectors of a collection's documents and of its judged queries."""

    documents: Texts
    queries: Texts


def token_vectors(model: Path, dataset: Dataset, cache: Path, documents: int | None) -> Vectors:
    """Vectors of documents and queries, from the cache if they are there."""
    file = cache / f"{model.parent.name}-{model.name}-{dataset.name}-{documents or 'all'}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        texts = [document.encoded_text for document in chosen(dataset, documents)]
        queries = [text for _, text in dataset.judged]
        is_ours = "router" in json.loads((model / "config.json").read_text())
        encoded = encode_ours(model, texts, queries) if is_ours else encode_states(model, texts, queries)
        np.savez(
            file,
            documents=np.concatenate(encoded.documents).astype(np.float16),
            sizes=[len(part) for part in encoded.documents],
            queries=np.concatenate(encoded.queries),
            query_sizes=[len(part) for part in encoded.queries],
        )
    with np.load(file) as arrays:
        return Vectors(
            np.split(arrays["documents"].astype(np.float32), np.cumsum(arrays["sizes"])[:-1]),
            np.split(arrays["queries"], np.cumsum(arrays["query_sizes"])[:-1]),
        )


def chosen(dataset: Dataset, limit: int | None) -> list[Document]:
    """The collection, or `limit` documents of it: those with a judgement, then the first others, in order."""
    collection = list(dataset.documents())
    if limit is None:
        return collection
    judged = {document for judgements in dataset.qrels.values() for document in judgements}
    order = sorted(range(len(collection)), key=lambda number: collection[number].id not in judged)
    return [collection[number] for number in sorted(order[:limit])]


def encode_ours(model: Path, texts: list[str], queries: list[str]) -> Vectors:
    """The vectors of a ColBERT model of citadel."""
    encoder = load_system(SystemSpec(str(model), threads=1))
    assert encoder is not None
    encoded = encoder.tokenizer.documents(texts)
    routed = [
        text for i in range(0, len(encoded), PART) for text in encoder.route_documents(encoded[i : i + PART])
    ]
    return Vectors(*([rows(text) for text in side] for side in (routed, encoder.encode_queries(queries))))


def rows(text: RoutedTokens) -> Floats:
    assert text.vectors is not None
    return text.vectors


def encode_states(model: Path, texts: list[str], queries: list[str]) -> Vectors:
    encoder = TokenEncoder(model)
    encoder.fit(texts[:: max(len(texts) // FITTED_DOCUMENTS, 1)])
    return Vectors(
        encoder.encode(texts, DOCUMENT_TOKENS), encoder.encode(queries, QUERY_TOKENS, augment=True)
    )


def build(documents: Texts, codec: str, folder: str) -> tuple[citadel.Index, float]:
    """An index of the documents' vectors in one segment, and the CPU seconds it took."""
    is_plain = codec == ALL_TO_ALL
    fields = {"lexical": citadel.Field(documents[0].shape[1], "int8" if is_plain else codec)}
    router = ALL_TO_ALL if is_plain else "centroid"
    items = [{"id": str(number), "vectors": rows} for number, rows in enumerate(documents)]
    start = time.process_time()
    index = citadel.Index.create(folder, router=router, fields=fields, fingerprint="plaid")
    index.add_vectors(items)
    index.commit()
    index.merge()
    return index, time.process_time() - start


def exact_rankings(documents: Texts, queries: Texts) -> Rankings:
    """The best K documents of each query by fp32 MaxSim."""
    filled = np.flatnonzero([len(rows) for rows in documents])
    stored = np.concatenate(documents)
    starts = np.cumsum([0, *(len(documents[number]) for number in filled)])[:-1]
    scores = (np.maximum.reduceat(query @ stored.T, starts, axis=1).sum(axis=0) for query in queries)
    return [list(map(str, filled[np.argsort(-row, kind="stable")[:K]])) for row in scores]


def rankings(index: citadel.Index, queries: Texts, **options: Any) -> Rankings:
    """The best K documents that a search returns for each query."""
    searcher = index.searcher(threads=1)
    return [searcher.search_vectors(vectors=query, k=K, **options).ids for query in queries]


def overlap(ranked: Rankings, exact: Rankings) -> float:
    """The share of the exact best K."""
    return float(np.mean([len(set(best) & set(own)) / K for best, own in zip(exact, ranked, strict=True)]))


def quality(
    ranked: Rankings, dataset: Dataset, judged: Sequence[tuple[str, str]], ids: Sequence[str]
) -> float:
    """nDCG@10 of rankings of document numbers."""
    hits = tuple(
        tuple(Hit(ids[int(number)], float(-rank), rank) for rank, number in enumerate(row, 1))
        for row in ranked
    )
    ranking = Ranking(tuple(id for id, _ in judged), hits)
    return float(evaluate(ranking, dataset.qrels, "nDCG@10")["nDCG@10"])


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


def measure(vectors: Vectors, codecs: Sequence[str], efs: Sequence[int], ndcg: Ndcg) -> list[list[Any]]:
    """A row for exact MaxSim in fp32, and one per codec and number of scored documents."""
    documents, queries = vectors
    exact, tokens = exact_rankings(documents, queries), sum(map(len, documents))
    table: list[list[Any]] = [["fp32", "exact", "–", 1.0, ndcg(exact), "–", "–"]]
    with tempfile.TemporaryDirectory() as folder:
        for codec in codecs:
            index, seconds = build(documents, codec, f"{folder}/{codec}")
            size = bytes_per_token(index, tokens)
            modes: dict[str, dict[str, Any]] = {"exact": {"semantic_mode": "exact"}}
            if codec != ALL_TO_ALL:
                modes |= {f"ef {ef}": {"ef": ef} for ef in efs}
            run = partial(run_all, index.searcher(threads=1), queries)
            for name, options in modes.items():
                ranked = rankings(index, queries, **options)
                milliseconds = 1000 * cpu_seconds(partial(run, **options)) / len(queries)
                figures = [milliseconds, overlap(ranked, exact), ndcg(ranked), size, int(tokens / seconds)]
                table.append([codec, name, *figures])
                print(table[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a ColBERT model or a transformer")
    parser.add_argument("--data", type=Path, required=True, help="a BEIR folder")
    parser.add_argument("--documents", type=int, help="use the first N documents only")
    parser.add_argument("--queries", type=int, help="use the first N judged queries only")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/plaid-cache"))
    parser.add_argument("--codecs", nargs="+", default=CODECS)
    parser.add_argument("--ef", type=int, nargs="+", default=[64, 128, 256, 512])
    options = parser.parse_args()
    dataset = beir_folder(str(options.data))
    vectors = token_vectors(options.model, dataset, options.cache, options.documents)
    vectors = Vectors(vectors.documents, vectors.queries[: options.queries])
    one_core()
    tokens = sum(map(len, vectors.documents))
    judged = dataset.judged[: options.queries]
    ids = [document.id for document in chosen(dataset, options.documents)]
    rows = measure(vectors, options.codecs, options.ef, lambda ranked: quality(ranked, dataset, judged, ids))
    title = f"{dataset.name}: {len(vectors.documents):,} documents, {tokens:,} tokens, {options.model.name}"
    columns = [
        "codec",
        "mode",
        "CPU ms per query",
        f"overlap@{K} with fp32",
        "nDCG@10",
        "bytes per token",
        "tokens per CPU second",
    ]
    counts = {"documents": len(vectors.documents), "tokens": tokens, "queries": len(vectors.queries)}
    report(f"plaid-{dataset.name}", title, columns, rows, **counts)


if __name__ == "__main__":
    main()
