"""Speed of an imported ColBERT model against sentence-transformers, on one core.

A MultiVectorEncoder of 12 layers × 384 with random weights is imported as int8; documents and queries of
SciFact below $CITADEL_DATA are encoded in turns by citadel and by sentence-transformers (torch, fp32).

    taskset -c 0 python benchmarks/import.py                          # three minutes

With --quality, nDCG@10 on SciFact of fp32 and int8 for trained checkpoints or imported sources:

    python benchmarks/import.py --quality runs/family/colbert runs/family/splade    # about an hour
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import alternate, one_core, report

DATA = Path(os.environ.get("CITADEL_DATA", "data"))
SCIFACT = DATA / "eval" / "scifact"
TOKENIZER = Path(__file__).parent.parent / "models" / "small-en" / "tokenizer.json"
PRECISIONS = ("fp32", "int8")


def write_source(folder: Path) -> Path:
    """A ColBERT model as sentence-transformers saves it: 12 layers × 384, vectors of 128."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from tokenizers import Tokenizer, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    size: dict[str, Any] = {
        "hidden_size": 384,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    }
    make_model: Any = BertModel
    make_model(BertConfig(**size)).save_pretrained(folder / "backbone")
    library = Tokenizer.from_file(str(TOKENIZER))
    library.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "PAD", "CLS", "SEP", "MASK")}
    make_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = make_tokenizer(tokenizer_object=library, model_max_length=512, **names)
    tokenizer.save_pretrained(folder / "backbone")
    token: dict[str, Any] = {"module_input_name": "token_embeddings"}
    modules = [
        Transformer(str(folder / "backbone"), query_length=64, document_length=300),
        Dense(384, 128, bias=False, activation_function=None, **token),
        MultiVectorMask(),
        Normalize(**token),
    ]
    MultiVectorEncoder(modules=modules).save_pretrained(str(folder / "source"))
    return folder / "source"


def scifact(count: int) -> tuple[list[str], list[str]]:
    """Queries and documents."""
    with open(SCIFACT / "queries.jsonl", encoding="utf-8") as file:
        queries = [json.loads(line)["text"] for line in file][:count]
    with open(SCIFACT / "corpus.jsonl", encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for line in file][:count]
    return queries, documents


def measure_speed(rounds: int, count: int) -> None:
    """Texts per second of both, each run with all texts of one kind, queries one by one."""
    import torch
    from sentence_transformers import MultiVectorEncoder

    from citadel.encode.encoder import Encoder
    from citadel.model.importer.convert import import_model

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        source = write_source(Path(name))
        [folder] = import_model(str(source), Path(name, "ours"), "int8")
        ours, theirs = Encoder(folder, threads=1), MultiVectorEncoder(str(source), device="cpu")
        queries, documents = scifact(count)
        runs: dict[Any, Any] = {
            ("documents", "ours"): lambda: ours.encode_documents(documents),
            ("documents", "theirs"): lambda: theirs.encode_document(documents, show_progress_bar=False),
            ("queries", "ours"): lambda: [ours.encode_query(text) for text in queries],
            ("queries", "theirs"): lambda: [
                theirs.encode_query([text], show_progress_bar=False) for text in queries
            ],
        }
        least = alternate(runs, rounds, repeats=1)
    rows = []
    for kind, texts in (("documents", documents), ("queries", queries)):
        own, other = (len(texts) / least[kind, who] for who in ("ours", "theirs"))
        rows.append([f"{kind} per second", own, other, own / other])
    columns = ["one core", "citadel, int8", "sentence-transformers, torch", "times faster"]
    report("import", "An imported ColBERT model, 12 layers × 384", columns, rows, texts=count, rounds=rounds)


def measure_quality(sources: list[str]) -> None:
    """nDCG@10 on SciFact; vectors are stored as fp16, so that only the precision of the model differs."""
    rows = []
    for source in sources:
        with tempfile.TemporaryDirectory() as name:
            exact, rounded = (ndcg(folder) for folder in both_precisions(source, Path(name)))
        rows.append([Path(source).name, exact, rounded, rounded - exact])
    report("import-quality", "nDCG@10 on SciFact", ["model", *PRECISIONS, "difference"], rows)


def both_precisions(source: str, out: Path) -> list[Path]:
    """The model folders of a checkpoint of ours or of a foreign model."""
    from citadel.model.export import export
    from citadel.model.importer.convert import import_model

    config = Path(source) / "config.json"
    is_ours = config.is_file() and "router" in json.loads(config.read_text(encoding="utf-8"))
    return (export if is_ours else import_model)(source, out / "models", "both")


def ndcg(model: Path) -> float:
    from citadel.api import Index
    from citadel.eval import evaluate_queries, read_qrels
    from citadel.text.corpus import read_corpus
    from citadel.text.queries import read_queries

    qrels = read_qrels(str(SCIFACT / "qrels" / "test.tsv"))
    queries = [(id, text) for id, text in read_queries(str(SCIFACT)) if id in qrels]
    with tempfile.TemporaryDirectory() as name:
        index = Index.create(Path(name, "idx"), model=model, codec="fp16", semantic_codec="fp16")
        index.add(document for document, _ in read_corpus(str(SCIFACT)))
        ranking = index.commit().searcher().search_batch(queries, k=100)
    values = evaluate_queries(ranking, qrels, ["nDCG@10"])["nDCG@10"]
    return sum(values.values()) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure an imported model against its library.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=100, help="queries, and documents")
    parser.add_argument("--quality", nargs="+", metavar="SOURCE", help="measure fp32 and int8 instead")
    options = parser.parse_args()
    if not SCIFACT.is_dir():
        sys.exit("import.py: CITADEL_DATA names no folder with eval/scifact: skipped")
    if options.quality:
        measure_quality(options.quality)
    else:
        one_core()
        measure_speed(options.rounds, options.texts)


if __name__ == "__main__":
    main()
