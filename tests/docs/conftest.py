"""Files that the commands in the documentation read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.docs.pages import ROOT
from tests.support.foreign_files import write_bi_encoder, write_colbert, write_splade

DOCUMENTS = [
    {"id": "d1", "title": "Relativity", "text": "Einstein proposed relativity.", "year": 1905},
    {"id": "d2", "title": "Evolution", "text": "Darwin proposed evolution by natural selection."},
    {"id": "d3", "title": "Heart", "text": "A blocked coronary artery causes a heart attack."},
    {"id": "d4", "title": "Radium", "text": "Curie isolated radium from pitchblende."},
]
QUERIES = {"q1": "who proposed relativity", "q2": "myocardial infarction"}
QRELS = [("q1", "d1"), ("q2", "d3")]


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """A folder with a small collection in every layout, vectors and a model."""
    lines = [json.dumps(document) + "\n" for document in DOCUMENTS]
    queries = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in QUERIES.items()]
    qrels = "query-id\tcorpus-id\tscore\n" + "".join(f"{query}\t{document}\t1\n" for query, document in QRELS)
    beir = tmp_path / "beir-folder"
    (beir / "qrels").mkdir(parents=True)
    for path, text in {
        tmp_path / "corpus.jsonl": "".join(lines),
        tmp_path / "more.jsonl": '{"id": "d5", "text": "Pasteur disproved spontaneous generation."}\n',
        tmp_path / "queries.jsonl": "".join(queries),
        tmp_path / "qrels.tsv": qrels,
        tmp_path / "gone.txt": "d4\n",
        beir / "corpus.jsonl": "".join(line.replace('"id"', '"_id"') for line in lines),
        beir / "queries.jsonl": "".join(queries),
        beir / "qrels" / "test.tsv": qrels,
    }.items():
        path.write_text(text, encoding="utf-8")
    (tmp_path / "big.tsv.gz").write_bytes(gzip.compress(b"d1\tRelativity\tEinstein proposed relativity.\n"))
    _write_vectors(tmp_path)
    (tmp_path / "my-model").symlink_to(ROOT / "models" / "small-en")
    write_bi_encoder(tmp_path / "my-encoder")
    write_colbert(tmp_path / "my-colbert")
    write_splade(tmp_path / "my-splade")
    return tmp_path


def _write_vectors(folder: Path) -> None:
    """300 postings of 8 dimensions in 100 documents, and one query."""
    random = np.random.default_rng(1)
    keys, vectors = (
        random.integers(0, 20, 300).astype(np.uint32),
        random.normal(size=(300, 8)).astype(np.float32),
    )
    np.savez(
        folder / "vectors.npz",
        ids=np.array([f"d{number}" for number in range(100)]),
        offsets=np.arange(0, 301, 3),
        keys=keys,
        weights=np.ones(300, np.float32),
        vectors=vectors,
    )
    np.savez(folder / "query.npz", keys=keys[:2], weights=np.ones(2, np.float32), vectors=vectors[:2])
