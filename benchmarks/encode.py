"""Encoding text on one core: int8 against fp32 in one run, and what int8 costs in quality.

The backbone is gte-small below $CITADEL_DATA with an untrained router, which decides the time but not the quality; the
quality is that of its own mean-pooled vector (router `none`, semantic vector = identity) on SciFact.

    python benchmarks/encode.py [--quality] [--checkpoint DIR]     # with --quality some 15 minutes

With --checkpoint the dynamic rows and the quality are those of a trained model.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import alternate, one_core, report

from citadel.encode.config import ModelConfig
from citadel.encode.encoder import Encoder
from citadel.encode.tokenizer import Encoding

DATA = Path(os.environ.get("CITADEL_DATA", ""))
PRECISIONS = ("fp32", "int8")
SHAPES = {
    "a query of 16 tokens": (1, 16),
    "a document of 128 tokens": (1, 128),
    "32 documents of 128 tokens": (32, 128),
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "dynamic": {"token_dimension": 32, "semantic_dimension": 384},
    "none": {"token_dimension": 0, "semantic_dimension": 384},
}


def export_models(folder: Path, checkpoint: str) -> dict[tuple[str, str], Path]:
    """Model folders by router and precision; a checkpoint takes the place of the untrained dynamic one."""
    import torch

    from citadel.model.checkpoint import new_model, save_model
    from citadel.model.export import export

    made = {}
    for router, heads in SYSTEMS.items():
        config = ModelConfig(router, pooling="mean", normalize_pooled=True, name="gte-small", **heads)
        model, backbone = new_model(config, str(DATA / "models" / "gte-small"))
        assert model.semantic is not None
        with torch.no_grad():
            torch.nn.init.eye_(model.semantic.weight)
        save_model(model, folder / router, backbone / "tokenizer.json")
        source = checkpoint if checkpoint and router == "dynamic" else folder / router
        for path in export(source, folder / f"{router}-models", "both"):
            made[router, path.name] = path
    return made


def texts(count: int, length: int) -> list[Encoding]:
    ids = np.random.default_rng(0).integers(1000, 30_000, (count, length))
    ids[:, 0], ids[:, -1] = 101, 102
    routed = np.ones(length, np.bool_)
    routed[0] = False
    return [Encoding(row, ((0, 0),) * length, routed) for row in ids]


def measure_speed(models: dict[tuple[str, str], Path], rounds: int) -> list[list[Any]]:
    rows = []
    for router in SYSTEMS:
        encoders = {precision: Encoder(models[router, precision], threads=1) for precision in PRECISIONS}
        for name, (count, length) in SHAPES.items():
            given = texts(count, length)
            runs: dict[Any, Callable[[], Any]] = {
                precision: partial(encoder.route_documents, given) for precision, encoder in encoders.items()
            }
            least = alternate(runs, rounds if count == 1 else 1)
            slow, fast = (least[precision] * 1000 / count for precision in PRECISIONS)
            rows.append([f"{router}: {name}", slow, fast, slow / fast])
    return rows


def measure_quality(models: dict[tuple[str, str], Path], router: str, folder: Path) -> dict[str, float]:
    """nDCG@10 on SciFact, vectors stored as fp16 so that only the model's own precision differs."""
    from citadel.eval import evaluate_queries, read_qrels
    from citadel.library import Index
    from citadel.text.corpus import read_corpus
    from citadel.text.queries import read_queries

    scifact, found = DATA / "eval" / "scifact", {}
    qrels = read_qrels(str(scifact / "qrels" / "test.tsv"))
    queries = [(id, text) for id, text in read_queries(str(scifact)) if id in qrels]
    for precision in PRECISIONS:
        index = Index.create(
            folder / f"idx-{precision}", model=models[router, precision], codec="fp16", semantic_codec="fp16"
        )
        index.add(document for document, _ in read_corpus(str(scifact)))
        ranking = index.commit().searcher().search_batch(queries, k=100)
        values = evaluate_queries(ranking, qrels, ["nDCG@10"])["nDCG@10"]
        found[precision] = sum(values.values()) / len(values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quality", action="store_true", help="SciFact too")
    parser.add_argument("--checkpoint", default="", help="a trained CITADEL")
    options = parser.parse_args()
    if not (DATA / "models" / "gte-small").is_dir():
        sys.exit("encode.py: CITADEL_DATA names no folder with models/gte-small: skipped")
    cores = os.sched_getaffinity(0)
    one_core()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = export_models(folder, options.checkpoint)
        rows = measure_speed(models, options.rounds)
        sizes = {
            f"{router} {precision}": (path / "model.onnx").stat().st_size
            for (router, precision), path in models.items()
        }
        os.sched_setaffinity(0, cores)
        router = "dynamic" if options.checkpoint else "none"
        quality = measure_quality(models, router, folder) if options.quality else {}
    columns = ["one core", "fp32, ms a text", "int8, ms a text", "times faster"]
    report("encode", "Encoding with gte-small (33 M parameters)", columns, rows, bytes=sizes, scifact_ndcg10=quality)
    for what, value in {**sizes, **quality}.items():
        print(what, value)


if __name__ == "__main__":
    main()
