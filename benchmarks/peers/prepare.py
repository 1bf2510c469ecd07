"""Prepare texts, judgements and vectors for all peers from a BEIR folder and trained models.

    python benchmarks/peers/prepare.py $CITADEL_DATA/eval/cranfield build/peers/cranfield --family runs/family

The models colbert, splade and citadel are taken from the family; `--colbert DIR` and so on override one.
A model is a checkpoint or an exported folder; if both exist (NAME and NAME/int8), the exported one is used.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import K, Task, max_sim, top

from citadel.errors import CitadelError
from citadel.eval.datasets import Dataset, beir_folder
from citadel.paper.system import MeasuredEncoder, SystemSpec, load_system, pruned
from citadel.types import RoutedTokens

MODELS = {"colbert": "all_to_all", "splade": "sparse", "citadel": "dynamic"}  # required router
PART = 512  # documents per batch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection")
    parser.add_argument("out")
    for name in MODELS:
        parser.add_argument(f"--{name}", default="", help="a checkpoint or an exported model")
    parser.add_argument("--family", default="", help="a folder that has colbert, splade and citadel")
    options = parser.parse_args()
    dataset, out = beir_folder(options.collection), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    write_texts(dataset, out)
    for name in MODELS:
        folder = model_folder(getattr(options, name), options.family, name)
        if folder:
            encode(folder, name, out)
    write_exact(out)


def model_folder(given: str, family: str, name: str) -> str:
    """Folder of a model; empty if none was named.

    >>> model_folder("", "runs/none", "colbert"), model_folder("mine", "runs/family", "colbert")
    ('', 'mine')
    """
    folder = Path(given) if given else Path(family, name) if family else None
    if folder is None or (not given and not folder.is_dir()):
        return ""
    return str(folder / "int8" if (folder / "int8" / "model.onnx").is_file() else folder)


def write_texts(dataset: Dataset, out: Path) -> None:
    documents = list(dataset.documents())
    texts = {"ids": [each.id for each in documents], "texts": [each.encoded_text for each in documents]}
    (out / "documents.json").write_text(json.dumps(texts))
    queries = {"ids": [id for id, _ in dataset.judged], "texts": [text for _, text in dataset.judged]}
    (out / "queries.json").write_text(json.dumps(queries))
    (out / "qrels.json").write_text(json.dumps(dataset.qrels))


def encode(folder: str, name: str, out: Path) -> None:
    """Encode documents and queries to .npz files, unless this model already did."""
    encoder = load_system(SystemSpec(folder))
    assert encoder is not None
    if encoder.config.router != MODELS[name]:
        raise SystemExit(f"{folder}: its router is {encoder.config.router}; --{name} needs {MODELS[name]}")
    for side in ("documents", "queries"):
        file, made_by = out / f"{name}-{side}.npz", out / f"{name}-{side}.model"
        if file.exists() and made_by.exists() and made_by.read_text() == encoder.fingerprint:
            continue
        start = time.perf_counter()
        texts = json.loads((out / f"{side}.json").read_text())["texts"]
        np.savez(file, **arrays(encode_side(encoder, side, texts)))
        made_by.write_text(encoder.fingerprint)
        print(f"{file}: {len(texts):,} texts in {time.perf_counter() - start:.0f} s", flush=True)
    described = {"folder": folder, "fingerprint": encoder.fingerprint, "tau": encoder.config.tau}
    (out / f"{name}.json").write_text(json.dumps(described))


def encode_side(encoder: MeasuredEncoder, side: str, texts: list[str]) -> list[RoutedTokens]:
    """Encode the texts of one side; documents are pruned by the model's own τ."""
    if side == "queries":
        return encoder.encode_queries(texts)
    encoded = encoder.tokenizer.documents(texts)
    parts = (encoder.route_documents(encoded[start : start + PART]) for start in range(0, len(encoded), PART))
    return [pruned(text, encoder.config.tau) for part in parts for text in part]


def arrays(routed: list[RoutedTokens]) -> dict[str, Any]:
    """The encoded texts as concatenated arrays with offsets."""
    columns: dict[str, Any] = {
        "offsets": np.concatenate([[0], np.cumsum([len(text) for text in routed])]).astype(np.int64),
        "keys": np.concatenate([text.keys for text in routed]),
        "weights": np.concatenate([text.weights for text in routed]),
    }
    if routed[0].vectors is not None:
        columns["vectors"] = np.concatenate([text.vectors for text in routed if text.vectors is not None])
    if routed[0].semantic is not None:
        columns["semantic"] = np.stack([text.semantic for text in routed if text.semantic is not None])
    return columns


def write_exact(out: Path) -> None:
    """Write the exact rankings that peers are compared with."""
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
    try:
        main()
    except CitadelError as error:
        raise SystemExit(f"prepare: {error}") from None
