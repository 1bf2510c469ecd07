"""Small indexes of every kind, and all ways of reading them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import citadel
from citadel.index.checksum import crc32c
from citadel.index.vectors import batches
from citadel.types import Passages, VectorBatch
from tests.index.quick import Quick
from tests.support.hybrid import create_hybrid

KINDS = ("bm25", "int8", "fp16", "pq2", "residual2", "centroid", "sparse", "none", "long")
LEXICAL_ONLY = ("residual2", "centroid", "sparse")
WORDS = [
    "ant",
    "bee",
    "cat",
    "dog",
    "elk",
    "fox",
    "gnu",
    "hen",
    "ibis",
    "jay",
    "kite",
    "lynx",
    "mole",
    "newt",
    "owl",
]
DOCUMENTS, DIMENSION, SEMANTIC, KEYS = 36, 8, 6, 5
DELETED = ("d3", "d29")  # one in each of the two segments
HAS_COLUMNS = ("bm25", "int8")  # kinds whose documents have metadata
FILTERS: tuple[dict[str, Any], ...] = (
    {"number": {"$lt": 20}, "price": {"$gte": 2.5}},
    {"open": True, "lang": {"$in": ["de", "fr"]}},
    {"day": {"$gt": "1905-06-10"}},
    {"$or": [{"tags": {"$contains": "b"}}, {"tags": ["a", "a"]}]},
    {"url": {"$in": ["x://7", "x://30"]}},
    {"links": {"$contains": "y://12"}},
    {"rare": 7},
    {"mixed": {"$exists": True}, "nested": None},
)
FACETS = ("number", "price", "open", "lang", "day", "tags", "url", "links", "rare")

ROUTERS = {
    "int8": "dynamic",
    "fp16": "static",
    "pq2": "dynamic",
    "residual2": "centroid",
    "centroid": "centroid",
    "sparse": "sparse",
    "none": "none",
    "long": "dynamic",
    "hybrid": "dynamic",
}
CODECS = {"centroid": "int8", "long": "int8", "hybrid": "int8"}  # other kinds are named after theirs


def fields(kind: str) -> dict[str, citadel.Field]:
    semantic = citadel.Field(SEMANTIC, "fp16" if kind == "fp16" else "int8")
    if kind == "none":
        return {"semantic": semantic}
    if kind == "sparse":
        return {"lexical": citadel.Field(0, "fp16")}
    lexical = {"lexical": citadel.Field(DIMENSION, CODECS.get(kind, kind))}
    return lexical if kind in LEXICAL_ONLY else {**lexical, "semantic": semantic}


def metadata_of(number: int) -> dict[str, Any]:
    """Values of every type."""
    values: dict[str, Any] = {
        "number": number,
        "price": number / 4,
        "lang": ("de", "en", "fr")[number % 3],
        "day": f"1905-06-{1 + number % 5 * 6:02}",
        "tags": ["a", "b", "a"][: number % 4],
        "url": f"x://{number}",
        "links": [f"y://{number}", f"y://{number + 1}"],
        "mixed": number if number % 2 else "even",
    }
    if number % 3 == 0:
        values["open"] = number % 2 == 0
    return values | ({"rare": 7, "nested": {"a": 1}} if number % 9 == 5 else {})


def vectors_of(kind: str, number: int) -> dict[str, Any]:
    """Document `number`, with five postings; every key occurs in some document."""
    random = np.random.default_rng(number)
    document: dict[str, Any] = {
        "id": f"d{number}",
        "title": f"title {number}",
        "text": f"text of document {number}",
    }
    if kind != "none":
        document["keys"] = random.integers(0, KEYS, 5)
        document["weights"] = (random.random(5) * 2 + 0.1).round(2)
    if kind not in ("none", "sparse"):
        document["vectors"] = random.normal(size=(5, DIMENSION)).astype(np.float32)
    if kind not in LEXICAL_ONLY:
        document["semantic"] = random.normal(size=SEMANTIC).astype(np.float32)
    return document | metadata_of(number) if kind in HAS_COLUMNS else document


def text_of(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "id": f"d{number}",
        "text": " ".join(random.choice(WORDS, 12)),
        "title": f"title {number}",
        **metadata_of(number),
    }


def create(folder: Path, kind: str) -> citadel.Index:
    if kind == "bm25":
        return citadel.Index.create(Quick(folder), analyser="plain")
    if kind == "hybrid":
        return create_hybrid(Quick(folder), fields(kind), "by hand")
    return citadel.Index.create(
        Quick(folder), fields=fields(kind), router=ROUTERS[kind], fingerprint="by hand"
    )


def add(index: citadel.Index, kind: str, numbers: range) -> None:
    if kind == "bm25":
        index.add(text_of(number) for number in numbers)
    elif kind == "long":
        index.add_vectors(long_documents(index, numbers))
    elif kind == "hybrid":
        index.add_vectors([vectors_of(kind, number) | text_of(number) for number in numbers])
    else:
        index.add_vectors([vectors_of(kind, number) for number in numbers])


def long_documents(index: citadel.Index, numbers: range) -> VectorBatch:
    """Documents of one to three passages; the passages of document n are those of 10 n, 10 n + 1, …"""
    counts = [1 + number % 3 for number in numbers]
    rows = [
        vectors_of("long", 10 * number + part)
        for number, count in zip(numbers, counts, strict=True)
        for part in range(count)
    ]
    [batch] = batches(rows, index.settings, 1 << 30)
    documents = [citadel.Document(f"d{number}", f"text of document {number}") for number in numbers]
    spans = [(5 * part, 5 * part + 6) for count in counts for part in range(count)]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return replace(batch, documents=documents, passages=Passages(starts, np.array(spans, np.uint32)))


def build(folder: Path, kind: str) -> Path:
    """An index of two segments with deletions, probes (semantic field) and a codebook (pq2)."""
    floors = (
        mock.patch("citadel.index.segment_writer.PROBE_FLOOR", 12),
        mock.patch("citadel.index.spill.SAMPLE_FLOOR", 50),
    )
    with floors[0], floors[1], create(folder, kind) as index:
        for numbers in (range(DOCUMENTS // 2), range(DOCUMENTS // 2, DOCUMENTS)):
            add(index, kind, numbers)
            index.commit()
        index.delete(DELETED)
        index.commit()
    for old in sorted(folder.glob("gen.*"))[:-1]:
        old.unlink()  # keep the newest generation only
    return folder


def given_query(kind: str) -> dict[str, Any]:
    """A query with every key."""
    random = np.random.default_rng(99)
    given: dict[str, Any] = {}
    if kind != "none":
        given |= {"keys": np.arange(KEYS), "weights": np.ones(KEYS)}
    if kind not in ("none", "sparse"):
        given["vectors"] = random.normal(size=(KEYS, DIMENSION))
    if kind not in LEXICAL_ONLY:
        given["semantic"] = random.normal(size=SEMANTIC)
    return given


def queries(kind: str) -> Iterator[Callable[[citadel.Searcher], citadel.Hits]]:
    """Searches that together read every list and every semantic vector."""
    if kind == "bm25":
        yield lambda searcher: searcher.search(" ".join(WORDS), k=10)
        yield lambda searcher: searcher.search("cat owl zebra", k=DOCUMENTS)
        return
    given = given_query(kind)
    modes = ("off",) if kind == "sparse" else ("exact",) if kind == "none" else ("exact", "rerank", "off")
    for mode in modes:
        yield lambda searcher, mode=mode: searcher.search_vectors(**given, k=10, semantic_mode=mode)  # type: ignore[misc]
    if kind in ("residual2", "centroid"):
        yield lambda searcher: searcher.search_vectors(**given, k=3, ef=4)
    if kind == "int8":
        yield lambda searcher: searcher.search_vectors(**given, k=10, tau=1.0)


def filtered(index: citadel.Index, searcher: citadel.Searcher, kind: str) -> Iterator[Any]:
    """What is read of the columns: filtered searches, counts and facets."""
    for filter in FILTERS if kind in HAS_COLUMNS else ():
        if kind == "bm25":
            hits = searcher.search(" ".join(WORDS), k=DOCUMENTS, filter=filter)
        else:
            hits = searcher.search_vectors(**given_query(kind), k=10, semantic_mode="rerank", filter=filter)
        yield hits.ids, hits.scores, index.count(filter=filter)
    for name in FACETS if kind in HAS_COLUMNS else ():
        yield index.facets(name, filter={"number": {"$gte": 4}})


def explained(searcher: citadel.Searcher, kind: str, id: str) -> Any:
    """An explanation as JSON."""
    if kind == "bm25":
        return searcher.explain(" ".join(WORDS), id).to_json()
    return searcher.explain_vectors(id, **given_query(kind)).to_json()


def ask(folder: Path, kind: str, engine: str = "native") -> list[Any]:
    """Open, search, explain and get: everything that a reader reads."""
    with citadel.Index.open(folder) as index:
        searcher = index.searcher(engine=engine, threads=1)
        answers: list[Any] = [
            (hits.ids, hits.scores) for hits in (query(searcher) for query in queries(kind))
        ]
        if kind == "hybrid":
            words = index.searcher(mode="bm25", engine=engine, threads=1)
            answers += [(hits.ids, hits.scores) for hits in (query(words) for query in queries("bm25"))]
            answers.append(explained(words, "bm25", "d7"))
        if kind == "long":
            for query in queries(kind):
                answers += [(hit.passage, hit.passages) for hit in query(searcher)]
        answers += filtered(index, searcher, kind)
        answers += [explained(searcher, kind, id) for id in ("d0", "d7", f"d{DOCUMENTS - 1}") if id in index]
        answers += [index.get(f"d{number}") for number in range(DOCUMENTS + 1)]
        return [*answers, len(index)]


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


# ---- manifests, rewritten with a valid checksum ------------------------------------------------------------


def manifest_path(folder: Path) -> Path:
    return max(folder.glob("gen.*"))


def manifest(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(manifest_path(folder).read_bytes().split(b"\n")[0])
    return data


def sealed(line: bytes) -> bytes:
    return line + f"\n{crc32c(line):08x}\n".encode()


def write_manifest(folder: Path, data: Any) -> None:
    manifest_path(folder).write_bytes(sealed(json.dumps(data).encode()))
