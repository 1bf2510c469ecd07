"""The documents, queries, judgements and vectors that all peers share, from a BEIR folder and trained models.

    python benchmarks/peers/prepare.py $CITADEL_DATA/eval/cranfield build/peers/cranfield \\
        --colbert runs/family/colbert/int8 --splade runs/family/splade/int8 --citadel runs/family/citadel/int8
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import K, Task, max_sim, top

from citadel.encode.encoder import Encoder
from citadel.eval.datasets import Dataset, beir_folder
from citadel.types import RoutedTokens

MODELS = ("colbert", "splade", "citadel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection")
    parser.add_argument("out")
    for name in MODELS:
        parser.add_argument(f"--{name}", default="", help="an exported model")
    options = parser.parse_args()
    dataset, out = beir_folder(options.collection), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    write_texts(dataset, out)
    for name in MODELS:
        if getattr(options, name):
            encode(getattr(options, name), name, out)
    write_exact(out)


def write_texts(dataset: Dataset, out: Path) -> None:
    documents = list(dataset.documents())
    texts = {"ids": [each.id for each in documents], "texts": [each.encoded_text for each in documents]}
    (out / "documents.json").write_text(json.dumps(texts))
    asked = {"ids": [id for id, _ in dataset.judged], "texts": [text for _, text in dataset.judged]}
    (out / "queries.json").write_text(json.dumps(asked))
    (out / "qrels.json").write_text(json.dumps(dataset.qrels))


def encode(folder: str, name: str, out: Path) -> None:
    """What a model makes of both sides, as .npz; what is there is kept."""
    encoder = Encoder(folder)
    for side in ("documents", "queries"):
        file = out / f"{name}-{side}.npz"
        if file.exists():
            continue
        start = time.perf_counter()
        texts = json.loads((out / f"{side}.json").read_text())["texts"]
        routed = encoder.encode_queries(texts) if side == "queries" else encoder.encode_documents(texts)
        np.savez(file, **arrays(routed))
        print(f"{file}: {len(texts):,} texts in {time.perf_counter() - start:.0f} s", flush=True)


def arrays(routed: list[RoutedTokens]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "offsets": np.concatenate([[0], np.cumsum([len(text) for text in routed])]).astype(np.int64),
        "keys": np.concatenate([text.keys for text in routed]),
        "weights": np.concatenate([text.weights for text in routed]),
    }
    if routed[0].vectors is not None:
        found["vectors"] = np.concatenate([text.vectors for text in routed if text.vectors is not None])
    if routed[0].semantic is not None:
        found["semantic"] = np.stack([text.semantic for text in routed if text.semantic is not None])
    return found


def write_exact(out: Path) -> None:
    """The best documents by the exact score, to compare peers with."""
    task, exact = Task(out), {}
    if (out / "colbert-documents.npz").exists():
        documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
        exact["colbert"] = [top(max_sim(queries.matrix(query), documents)) for query in range(len(queries))]
    if (out / "splade-documents.npz").exists():
        exact["splade"] = sparse_exact(task)
    (out / "exact.json").write_text(json.dumps(exact))


def sparse_exact(task: Task) -> list[list[int]]:
    documents, queries = task.routed("splade", "documents"), task.routed("splade", "queries")
    owners = np.repeat(np.arange(len(documents)), np.diff(documents.offsets))
    order = np.argsort(documents.keys, kind="stable")
    keys, owners, weights = documents.keys[order], owners[order], documents.weights[order]
    ranked = []
    for query in range(len(queries)):
        scores = np.zeros(len(documents))
        rows = queries.rows(query)
        for key, weight in zip(queries.keys[rows], queries.weights[rows], strict=True):
            low, high = np.searchsorted(keys, key), np.searchsorted(keys, key, side="right")
            scores[owners[low:high]] += float(weight) * weights[low:high]
        ranked.append(top(scores, K))
    return ranked


if __name__ == "__main__":
    main()
