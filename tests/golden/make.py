"""Make the golden indexes of the current format: `python -m tests.golden.make`.

The files are committed once per format version. Later versions must read them and give the rankings in
`expected.json`, so never make them again for a released format.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import citadel
from citadel.index.container import FORMAT
from tests.support.hybrid import create_hybrid

FOLDER = Path(__file__).parent / f"format-{FORMAT}"
TEXTS = [
    "An ant carries a leaf", "A bee meets an ant", "The cat sleeps", "A cat chases the bee and the ant",
    "Dogs and cats", "The dog chases a cat", "A fox", "The quick brown fox jumps over the lazy dog",
    "Elk and fox in the wood", "Bees bees bees",
]  # fmt: skip
QUERIES = ["ant", "cat chases dog", "lazy bees", "zebra"]
FILTERS: list[dict[str, Any]] = [
    {"year": {"$gte": 1903}},
    {"price": {"$lt": 1.5}, "open": True},
    {"lang": {"$in": ["de", "é"]}},
    {"day": {"$gt": "1905-06-12T00:00:00+02:00"}},
    {"$or": [{"tags": {"$contains": "b"}}, {"tags": []}]},
    {"$not": {"rare": {"$exists": True}}},
    {"mixed": {"$exists": True}, "nested": None},
]


def metadata(number: int) -> dict[str, Any]:
    """Values of every type of column, with gaps in some."""
    values: dict[str, Any] = {
        "year": 1900 + number,
        "price": number / 4,
        "lang": ("de", "en", "é")[number % 3],
        "day": f"1905-06-{10 + number % 4}",
        "tags": ["a", "b", "c"][: number % 4],
        "mixed": number if number % 2 else "even",
    }
    if number % 2 == 0:
        values["open"] = number % 4 == 0
    return values | ({"rare": 7, "nested": {"a": number}} if number % 5 == 1 else {})


def text(folder: Path) -> None:
    """A bm25 index with two segments, a deleted and a replaced document."""
    with citadel.Index.create(
        folder, analyser="plain"
    ) as index:  # no stemmer, because its version would matter
        for part in (range(6), range(6, 10)):
            index.add({"id": f"d{n}", "text": TEXTS[n], "title": f"T{n}", **metadata(n)} for n in part)
            index.commit()
        index.delete(["d2"])
        index.add([{"id": "d6", "text": "A fox meets a cat", **metadata(6), "year": 2023}])
        index.commit()


def vectors(folder: Path, codec: str) -> None:
    """A dynamic index with a semantic field, two segments, a deletion, probes and a codebook (pq2)."""
    random = np.random.default_rng(2023)
    fields = {"lexical": citadel.Field(8, codec), "semantic": citadel.Field(4, "int8")}
    floors = (
        mock.patch("citadel.index.spill.SAMPLE_FLOOR", 32),
        mock.patch("citadel.index.segment_writer.PROBE_FLOOR", 16),
    )
    with (
        floors[0],
        floors[1],
        citadel.Index.create(folder, fields=fields, fingerprint="golden", tau=0.1) as index,
    ):
        for part in (range(20), range(20, 30)):
            index.add_vectors([document(n, random) for n in part])
            index.commit()
        index.delete(["d4"])
        index.commit()


def tokens(folder: Path, codec: str) -> None:
    """A centroid index with a segment from before the centroids, one with them, and a deletion."""
    random, fields = np.random.default_rng(2026), {"lexical": citadel.Field(8, codec)}
    with (
        mock.patch("citadel.index.spill.SAMPLE_FLOOR", 60),
        citadel.Index.create(folder, router="centroid", fields=fields, fingerprint="golden") as index,
    ):
        for part in (range(6), range(6, 40)):
            index.add_vectors([token_document(n, random) for n in part])
            index.commit()
        index.delete(["d9"])
        index.commit()


def token_document(number: int, random: np.random.Generator) -> dict[str, Any]:
    vectors = random.normal(size=(1 + number % 7, 8)).astype(np.float32)
    return {"id": f"d{number}", "text": f"text {number}", "vectors": vectors, **metadata(number)}


def hybrid(folder: Path) -> None:
    """A dynamic index with BM25 lists beside its own, two segments, a deletion and a replaced document."""
    random = np.random.default_rng(2026)
    fields = {"lexical": citadel.Field(8, "int8"), "semantic": citadel.Field(4, "int8")}
    with create_hybrid(folder, fields, "golden", tau=0.1) as index:
        for part in (range(6), range(6, 10)):
            index.add_vectors([document(n, random) | {"text": TEXTS[n]} for n in part])
            index.commit()
        index.delete(["d2"])
        index.add_vectors([document(6, random) | {"text": "A fox meets a cat"}])
        index.commit()


def document(number: int, random: np.random.Generator) -> dict[str, Any]:
    return {
        "id": f"d{number}",
        "text": f"text {number}",
        "keys": random.integers(0, 6, 4),
        "weights": random.random(4).astype(np.float32) * 3,
        "vectors": random.normal(size=(4, 8)).astype(np.float32),
        "semantic": random.normal(size=4).astype(np.float32),
        **metadata(number),
    }


def vector_query(number: int) -> dict[str, Any]:
    """Multiples of a quarter, which are exact on every machine."""
    random = np.random.default_rng(number)
    return {
        "keys": random.integers(0, 6, 3),
        "weights": random.integers(1, 5, 3) / 4,
        "vectors": random.integers(-8, 9, (3, 8)) / 4,
        "semantic": random.integers(-8, 9, 4) / 4,
    }


CENTROIDS = ("residual2", "residual4", "centroid-int8")
INDEXES: dict[str, Callable[[Path], None]] = {
    "bm25": text,
    "int8": lambda folder: vectors(folder, "int8"),
    "pq2": lambda folder: vectors(folder, "pq2"),
    "residual2": lambda folder: tokens(folder, "residual2"),  # the committed one is from before the trellis
    "residual4": lambda folder: tokens(folder, "residual4"),
    "centroid-int8": lambda folder: tokens(folder, "int8"),
    "hybrid": hybrid,
}


def rankings(name: str, folder: Path) -> list[list[tuple[str, float]]]:
    """The rankings of the golden queries."""
    index = citadel.Index.open(folder)
    searcher = index.searcher(threads=1)
    if name == "bm25":
        results = [searcher.search(query, k=5) for query in QUERIES]
    elif name in CENTROIDS:
        queries = [vector_query(n)["vectors"] for n in range(4)]
        results = [searcher.search_vectors(vectors=q, k=5, ef=ef) for q in queries for ef in (5, 8, 100)]
    else:
        modes = ("exact", "rerank", "off")
        results = [
            searcher.search_vectors(**vector_query(n), k=5, semantic_mode=m) for n in range(3) for m in modes
        ]
        results.append(searcher.search_vectors(**vector_query(3), k=5, tau=1.5))
    if name == "hybrid":
        words = index.searcher(mode="bm25", threads=1)
        results += [words.search(query, k=5) for query in QUERIES]
    return [list(zip(hits.ids, hits.scores, strict=True)) for hits in results]


def ask(name: str, searcher: citadel.Searcher, mode: str, **options: Any) -> list[tuple[str, float]]:
    """The ranking of the query that all filters use."""
    if name == "bm25":
        hits = searcher.search("the cat ant bee fox dog elk", **options)
    elif name in CENTROIDS:
        hits = searcher.search_vectors(vectors=vector_query(0)["vectors"], semantic_mode=mode, **options)
    else:
        hits = searcher.search_vectors(**vector_query(0), semantic_mode=mode, **options)
    return list(zip(hits.ids, hits.scores, strict=True))


def filtered_searches(name: str) -> list[tuple[dict[str, Any], str]]:
    """Every filter with every semantic mode."""
    modes = (
        ("off",) if name == "bm25" else ("exact", "auto") if name in CENTROIDS else ("exact", "rerank", "off")
    )
    return list(itertools.product(FILTERS, modes))


def filtered(name: str, folder: Path) -> list[list[tuple[str, float]]]:
    """The best documents that each filter allows."""
    searcher = citadel.Index.open(folder).searcher(threads=1)
    return [ask(name, searcher, mode, k=5, filter=filter) for filter, mode in filtered_searches(name)]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    expected: dict[str, Any] = {"filtered": {}}
    for name, build in INDEXES.items():
        build(FOLDER / name)
        (FOLDER / name / "LOCK").unlink()
        for old in sorted((FOLDER / name).glob("gen.*"))[:-1]:
            old.unlink()
        expected[name] = rankings(name, FOLDER / name)
        expected["filtered"][name] = filtered(name, FOLDER / name)
    lines = [f" {json.dumps(name)}: {json.dumps(results)}" for name, results in expected.items()]
    (FOLDER / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
