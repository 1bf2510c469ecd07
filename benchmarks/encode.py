"""Encode text on one core: speed and quality of int8 against fp32.

The backbone is gte-small below $CITADEL_DATA with an untrained router, which affects the time but not the
quality; the quality is that of its mean-pooled vector (router `none`, semantic vector = identity) on SciFact.

    python benchmarks/encode.py [--quality] [--checkpoint DIR]     # about 15 minutes with --quality

With --checkpoint the dynamic rows and the quality are those of a trained model.

    python benchmarks/encode.py --model models/small-en            # a minute

An exported model against torch eager on the weights of its ONNX file, and against its backbone alone
quantized by ONNX Runtime's `quantize_dynamic`; and documents per second.

    python benchmarks/encode.py --model models/small-en --beside models/tiny-en

Two models in turns on one core: queries, documents and their ratio. The documents are of SciFact, each model
routes the tokens that it does not skip; the router's short cut is fitted to others before.

    python benchmarks/encode.py --model models/small-en --whole    # two minutes

Documents on one core, in turns with the same model whose whole graph ONNX Runtime runs, without our operators
and our router. The results are compared, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import alternate, one_core, report

from citadel.encode.config import ModelConfig, load_config
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
    """Model folders by router and precision; a checkpoint replaces the untrained dynamic one."""
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
    """nDCG@10 on SciFact; vectors are stored as fp16, so that only the precision of the model differs."""
    from citadel.api import Index
    from citadel.eval import evaluate_queries, read_qrels
    from citadel.text.corpus import read_corpus
    from citadel.text.queries import read_queries

    scifact, scores = DATA / "eval" / "scifact", {}
    qrels = read_qrels(str(scifact / "qrels" / "test.tsv"))
    queries = [(id, text) for id, text in read_queries(str(scifact)) if id in qrels]
    for precision in PRECISIONS:
        index = Index.create(
            folder / f"idx-{precision}", model=models[router, precision], codec="fp16", semantic_codec="fp16"
        )
        index.add(document for document, _ in read_corpus(str(scifact)))
        ranking = index.commit().searcher().search_batch(queries, k=100)
        values = evaluate_queries(ranking, qrels, ["nDCG@10"])["nDCG@10"]
        scores[precision] = sum(values.values()) / len(values)
    return scores


def torch_runs(folder: str, given: list[Encoding]) -> Callable[[], Any]:
    """The same texts through torch eager in fp32, without extracting keys and weights."""
    import torch

    from citadel.model.checkpoint import load_model

    torch.set_num_threads(1)
    model = load_model(folder)
    ids = torch.from_numpy(np.stack([text.ids for text in given]))
    mask, routed = torch.ones_like(ids), torch.from_numpy(np.stack([text.routed for text in given]))

    def run() -> Any:
        with torch.inference_mode():
            return model.encode(ids, mask, routed, learning=False)

    return run


def as_query(encoder: Encoder, given: list[Encoding]) -> Callable[[], Any]:
    """Encode the tokens of a query."""
    return partial(encoder.route, given, encoder.config.query_keys, 0.0)


def backbone_runs(folder: str, given: list[Encoding]) -> Callable[[], Any]:
    """The same texts through the backbone alone, quantized to int8 by ONNX Runtime."""
    from onnx import TensorProto
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from citadel.encode.session import Session
    from citadel.model.matrices import Fp32
    from citadel.model.network import build
    from citadel.model.onnx_weights import read_weights

    whole = load_config(folder)
    config = ModelConfig(
        "none", whole.backbone, token_dimension=0, semantic_dimension=whole.semantic_dimension
    )
    with tempfile.TemporaryDirectory() as name:
        plain, turned, small = (Path(name, f"{step}.onnx") for step in ("plain", "turned", "small"))
        graph = build(config, read_weights(Path(folder, "model.onnx")), Fp32())
        plain.write_bytes(graph.SerializeToString())
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(
            turned
        )  # folds constants into the matrices that the quantizer needs
        InferenceSession(plain, options, providers=["CPUExecutionProvider"])
        extra = {"DefaultTensorType": TensorProto.FLOAT}
        kinds = ["MatMul", "Gather"]
        logging.getLogger().setLevel(logging.ERROR)  # it recommends what was just done
        quantize_dynamic(
            turned, small, kinds, per_channel=True, weight_type=QuantType.QInt8, extra_options=extra
        )
        session = Session(small.read_bytes(), config, str(small))
    return partial(session.run, {"input_ids": np.stack([text.ids for text in given])})


def measure_model(folder: str, rounds: int) -> list[list[Any]]:
    """Milliseconds per text on one core, alternating with torch."""
    encoder, rows = Encoder(folder, threads=1), []
    for name, (count, length) in list(SHAPES.items())[:2]:
        given = texts(count, length)
        runs: dict[Any, Callable[[], Any]] = {
            "onnx": as_query(encoder, given) if "query" in name else partial(encoder.route_documents, given),
            "torch": torch_runs(folder, given),
        }
        least = alternate(runs, rounds, 640 // length)  # torch's 134 MB evict our weights from the cache
        onnx, eager = (1000 * least[which] for which in ("onnx", "torch"))
        rows.append([name, onnx, eager, eager / onnx])
    words = "Which heart conditions cause an irregular beat and how are they treated"
    least = alternate({"text": partial(encoder.encode_query, words)}, rounds, 40)
    tokens = len(encoder.tokenizer.queries([words])[0])
    return [*rows, [f"a text of {tokens} tokens → routed query", 1000 * least["text"], "–", "–"]]


def beside_backbone(folder: str, rounds: int) -> dict[str, float]:
    """Milliseconds per query, alternating with the backbone alone, for a robust ratio."""
    query = texts(*SHAPES["a query of 16 tokens"])
    whole = as_query(Encoder(folder, threads=1), query)
    least = alternate({"whole": whole, "backbone": backbone_runs(folder, query)}, rounds, 40)
    figures = {f"query_{name}_ms": round(1000 * seconds, 3) for name, seconds in least.items()}
    return figures | {"times_its_backbone": round(least["whole"] / least["backbone"], 2)}


def documents_per_second(folder: str, cores: set[int]) -> float:
    """Encode 64 documents of 128 tokens, one batch per core at a time."""
    os.sched_setaffinity(0, cores)
    given, encoder = texts(64, 128), Encoder(folder, threads=len(cores))
    return len(given) / alternate({"all": partial(encoder.route_documents, given)}, 1)["all"]


def report_model(folder: str, rounds: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    rates = {
        str(count): documents_per_second(folder, set(cores[:count]))
        for count in (1, 2)
        if count <= len(cores)
    }
    os.sched_setaffinity(0, set(cores))
    one_core()
    rows = measure_model(folder, rounds)
    columns = ["one core", "int8 ONNX, ms", "torch eager fp32, ms", "times faster"]
    figures = {"documents_per_second_by_cores": rates, "load_before": load, **beside_backbone(folder, rounds)}
    report("encode-model", f"Encoding with {folder}", columns, rows, **figures)
    print(figures)


def report_beside(folders: tuple[str, str], rounds: int) -> None:
    """Milliseconds per text of two models on one core, in turns."""
    load = os.getloadavg()[0]
    one_core()
    encoders = {folder: Encoder(folder, threads=1) for folder in folders}
    words = "Which heart conditions cause an irregular beat and how are they treated"
    rows = []
    natural = {folder: documents_of(encoder) for folder, encoder in encoders.items()}
    for folder, encoder in encoders.items():
        encoder.route_documents(natural[folder]["fitted"])
    for name, (count, length) in SHAPES.items():
        runs: dict[Any, Callable[[], Any]] = {
            folder: as_query(encoder, texts(count, length))
            if "query" in name
            else partial(encoder.route_documents, natural[folder]["128 tokens"][:count])
            for folder, encoder in encoders.items()
        }
        least = alternate(runs, rounds, 640 // length if count == 1 else 1)
        one, other = (1000 * least[folder] / count for folder in folders)
        rows.append([name, one, other, one / other])
    runs = {folder: partial(encoder.encode_query, words) for folder, encoder in encoders.items()}
    least = alternate(runs, rounds, 40)
    one, other = (1000 * least[folder] for folder in folders)
    tokens = len(encoders[folders[0]].tokenizer.queries([words])[0])
    rows.append([f"a text of {tokens} tokens → routed query", one, other, one / other])
    columns = ["one core, ms per text", *(Path(folder).name for folder in folders), "times faster"]
    report("encode-beside", "Two models in turns", columns, rows, load_before=load, models=list(folders))


def documents_of(encoder: Encoder) -> dict[str, list[Encoding]]:
    """Texts of SciFact, as they are and cut to 128 tokens, and others that the router is fitted to."""
    from citadel.text.corpus import read_corpus

    corpus = [document for document, _ in read_corpus(str(DATA / "eval" / "scifact"))]
    whole = encoder.tokenizer.documents([document.encoded_text for document in corpus])
    cut = [
        Encoding(np.append(text.ids[:127], text.ids[-1]), text.offsets[:128], text.routed[:128])
        for text in whole
        if len(text) >= 128
    ]
    return {"fitted": whole[1::12], "SciFact": whole[::200], "128 tokens": cut[::150]}


def report_whole(folder: str, rounds: int) -> None:
    """Milliseconds and processor time per document, in turns with the whole graph in ONNX Runtime."""
    from citadel import _native

    load, before = os.getloadavg()[0], _native.instruction_set()
    one_core()
    ours = Encoder(folder, threads=1)
    _native.use_instruction_set("portable")
    whole = Encoder(folder, threads=1)
    _native.use_instruction_set(before)
    given = documents_of(ours)
    ours.route_documents(given.pop("fitted"))
    rows = []
    for name, documents in given.items():
        runs: dict[Any, Callable[[], Any]] = {
            "ours": partial(ours.route_documents, documents),
            "whole": partial(whole.route_documents, documents),
        }
        for one, other in zip(*(run() for run in runs.values()), strict=True):
            np.testing.assert_array_equal(one.keys, other.keys)
            np.testing.assert_array_equal(one.vectors, other.vectors)
        least = alternate(runs, rounds, 1)
        one, other = (1000 * least[which] / len(documents) for which in runs)
        rows.append([name, one, other, other / one])
    columns = ["one core, ms per document", "ours", "whole graph", "times faster"]
    report("encode-whole", f"Encoding documents with {folder}", columns, rows, load_before=load)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quality", action="store_true", help="SciFact too")
    parser.add_argument("--checkpoint", default="", help="a trained CITADEL")
    parser.add_argument("--model", default="", help="measure this exported model instead")
    parser.add_argument("--beside", default="", help="with --model: a second one, in turns with it")
    parser.add_argument("--whole", action="store_true", help="with --model: in turns with its whole graph")
    options = parser.parse_args()
    if options.model and options.whole:
        report_whole(options.model, options.rounds)
    elif options.model and options.beside:
        report_beside((options.model, options.beside), options.rounds)
    elif options.model:
        report_model(options.model, options.rounds)
    else:
        report_backbone(options)


def report_backbone(options: argparse.Namespace) -> None:
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
    columns = ["one core", "fp32, ms per text", "int8, ms per text", "times faster"]
    report(
        "encode",
        "Encoding with gte-small (33 M parameters)",
        columns,
        rows,
        bytes=sizes,
        scifact_ndcg10=quality,
    )
    for what, value in {**sizes, **quality}.items():
        print(what, value)


if __name__ == "__main__":
    main()
