"""Long documents: reading their beginning against splitting them into passages.

    python benchmarks/long_documents.py build/long [--documents 400]

A document is a section of a textbook: the passages of the training data below $CITADEL_DATA that share the
first part of their title, in order, without titles; the default model was not trained on them. Queries are
headings that belong to one passage only, and the section with that passage is relevant. The queries are
split into two halves, so that a choice made on one can be checked on the other. Indexes are built once, in
the given folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from common import report

import citadel

DATA = Path(os.environ.get("CITADEL_DATA", ""))
VARIANTS: dict[str, dict[str, Any]] = {
    "cut": {"long": "cut"},
    "chunk 128, overlap 16": {"chunk_tokens": 128, "chunk_overlap": 16},
    "chunk 256, overlap 0": {"chunk_tokens": 256, "chunk_overlap": 0},
    "chunk 256, overlap 32": {"chunk_tokens": 256, "chunk_overlap": 32},
    "chunk 510, overlap 64": {"chunk_tokens": 510, "chunk_overlap": 64},
}
MIN_CHARACTERS = 3000  # of a long document
QUERIES_PER_DOCUMENT = 4


def read(name: str) -> list[dict[str, Any]]:
    with lzma.open(DATA / "train" / f"{name}.jsonl.xz", "rt") as lines:
        return [json.loads(line) for line in lines]


def collection(count: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """Sections as documents, and for each half of the queries the relevant section by query."""
    passages = [row for row in read("passages") if row["source"] == "openstax"]
    parts = itertools.groupby(passages, key=lambda row: str(row["title"]).split(" > ")[0])
    sections = [list(rows) for _, rows in parts]
    long = [rows for rows in sections if sum(len(row["text"]) for row in rows) > MIN_CHARACTERS]
    chosen = np.random.default_rng(0).permutation(len(long))[:count].tolist()
    documents = [
        {"id": f"s{number}", "text": "\n\n".join(row["text"] for row in long[number])} for number in chosen
    ]
    owner = {row["id"]: f"s{number}" for number in chosen for row in long[number]}
    pairs = read("pairs")
    times = Counter(pair["query"] for pair in pairs)
    taken: Counter[str] = Counter()
    halves: dict[str, dict[str, str]] = {"first": {}, "second": {}}
    for pair in pairs:
        section = owner.get(pair["positive"])
        if section is None or times[pair["query"]] > 1 or taken[section] == QUERIES_PER_DOCUMENT:
            continue
        taken[section] += 1
        half = "first" if zlib.crc32(pair["query"].encode()) % 2 else "second"
        halves[half][pair["query"]] = section
    return documents, halves


def build(folder: Path, documents: list[dict[str, Any]], options: dict[str, Any]) -> citadel.Index:
    """The index of a variant; built at the first call."""
    if folder.exists():
        return citadel.Index.open(folder)
    index = citadel.Index.create(folder, **options)
    start = time.perf_counter()
    index.add(documents, progress=True)
    index.commit()
    (folder.parent / f"{folder.name}.seconds").write_text(f"{time.perf_counter() - start:.1f}")
    return index


def gains(index: citadel.Index, relevant: dict[str, str], k: int = 10) -> np.ndarray[Any, Any]:
    """nDCG@k of each query, which has one relevant document."""
    ranking = index.searcher().search_batch(list(relevant), k=k)
    positions = [
        hits.ids.index(section) if section in hits.ids else None  # type: ignore[attr-defined]
        for hits, section in zip(ranking.hits, relevant.values(), strict=True)
    ]
    return np.array([0.0 if at is None else 1 / np.log2(at + 2) for at in positions])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/long"))
    parser.add_argument("--documents", type=int, default=400)
    options = parser.parse_args()
    if not (DATA / "train" / "passages.jsonl.xz").exists():
        print("long_documents.py: CITADEL_DATA has no train/passages.jsonl.xz: skipped")
        return
    documents, halves = collection(options.documents)
    rows, cut = [], np.zeros(0)
    for name, settings in VARIANTS.items():
        index = build(options.folder / name.replace(", ", "-").replace(" ", "-"), documents, settings)
        scores = {half: gains(index, relevant) for half, relevant in halves.items()}
        cut = scores["second"] if name == "cut" else cut
        better, worse = int((scores["second"] > cut).sum()), int((scores["second"] < cut).sum())
        stats = index.stats()
        rows.append(
            [
                name,
                float(scores["first"].mean()),
                float(scores["second"].mean()),
                better,
                worse,
                stats["passages"],
                round(stats["bytes"] / 1e6, 1),
            ]
        )
    columns = ["variant", "first half", "second half", "better than cut", "worse", "passages", "MB"]
    counts = f"{len(documents)} documents, {len(halves['first'])} + {len(halves['second'])} queries"
    report("long_documents", f"nDCG@10 on sections of textbooks, {counts}", columns, rows, collection=counts)


if __name__ == "__main__":
    main()
