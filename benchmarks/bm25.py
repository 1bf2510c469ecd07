"""BM25 from text to ids: this engine, bm25s (numpy and numba) and tantivy; same tokens, one thread, k = 10.

All get the same terms: documents are analysed by our analyser in advance, queries by the same analyser inside
the timed call. The check column compares each top 10 with an exact BM25 in float64 (ties in any order).

    python benchmarks/bm25.py [--documents 500000] [--queries 300]
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import one_core, report
from numpy.typing import NDArray

import citadel
from citadel.routing import idf
from citadel.text.analyser import Analyser, get_analyser
from citadel.text.corpus import read_corpus
from citadel.text.queries import read_queries

K, K1, B = 10, 0.9, 0.4
Search = Callable[[str], list[str]]
Texts = Sequence[tuple[str, str]]


def zipf_corpus(documents: int, queries: int, seed: int = 0) -> tuple[Texts, list[str]]:
    """Documents of about 60 words from a Zipf vocabulary of 200,000 words without the 30 most common."""
    generator = np.random.default_rng(seed)
    ranks = np.arange(30, 200_000)
    shares = ranks**-1.07 / (ranks**-1.07).sum()
    lengths = np.clip(generator.lognormal(4.0, 0.4, documents), 5, 400).astype(int)
    words = np.array([f"w{rank}" for rank in ranks])[generator.choice(len(ranks), lengths.sum(), p=shares)]
    ends = np.cumsum(lengths)
    texts = [
        (f"d{i}", " ".join(words[end - n : end]))
        for i, (end, n) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True))
    ]
    words = np.array([f"w{rank}" for rank in ranks])
    sizes = generator.integers(2, 9, queries)
    return texts, [" ".join(generator.choice(words, n, p=shares)) for n in sizes.tolist()]


class Exact:
    """BM25 by its formula in float64, over all documents, from the terms alone."""

    def __init__(self, terms: Sequence[list[str]]) -> None:
        self._lengths = np.array([len(document) for document in terms], float)
        self._norms = K1 * (1 - B + B * self._lengths / self._lengths.mean())
        vocabulary: dict[str, int] = {}
        flat = np.array(
            [vocabulary.setdefault(term, len(vocabulary)) for document in terms for term in document],
            np.int64,
        )
        owners = np.repeat(np.arange(len(terms)), self._lengths.astype(int))
        pairs, self._counts = np.unique(flat << 32 | owners, return_counts=True)
        self._owners, self._vocabulary = pairs & 0xFFFFFFFF, vocabulary
        self._starts = np.searchsorted(pairs >> 32, np.arange(len(vocabulary) + 1))

    def scores(self, query: Sequence[str]) -> NDArray[np.float64]:
        total = np.zeros(len(self._lengths))
        for term in query:
            number = self._vocabulary.get(term)
            if number is not None:
                part = slice(self._starts[number], self._starts[number + 1])
                owners, counts = self._owners[part], self._counts[part]
                total[owners] += idf(len(total), len(owners)) * counts / (counts + self._norms[owners])
        return total

    def agrees(self, query: Sequence[str], hits: Sequence[int]) -> bool:
        """Whether these hits are a correct top K, up to a relative difference of 1e-5."""
        scores = self.scores(query)
        best = np.sort(scores)[::-1][: min(K, int((scores > 0).sum()))]
        return len(set(hits)) == len(best) and bool(np.allclose(scores[list(hits)], best, rtol=1e-5))


def citadel_search(texts: Texts, analyser: Analyser, folder: str) -> Search:
    index = citadel.Index.create(Path(folder) / "index", analyser=analyser.name, k1=K1, b=B)
    index.add({"id": id, "text": text} for id, text in texts)
    searcher = index.merge().searcher(threads=1)
    return lambda query: searcher.search(query, K).ids


def bm25s_search(backend: str) -> Callable[[Texts, Analyser, str], Search]:
    def build(texts: Texts, analyser: Analyser, _: str) -> Search:
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.ERROR)
        ids = [id for id, _ in texts]
        model = bm25s.BM25(k1=K1, b=B, method="lucene", backend=backend)
        model.index([analyser.terms(text) for _, text in texts], show_progress=False)

        def search(query: str) -> list[str]:
            terms = [term for term in analyser.terms(query) if term in model.vocab_dict]
            if not terms:
                return []
            found, scores = model.retrieve(
                [terms], k=min(K, len(ids)), show_progress=False, n_threads=0 if backend == "numpy" else 1
            )
            return [
                ids[number]
                for number, score in zip(found[0].tolist(), scores[0].tolist(), strict=True)
                if score > 0
            ]

        return search

    return build


def tantivy_search(texts: Texts, analyser: Analyser, folder: str) -> Search:
    import tantivy

    schema = (
        tantivy.SchemaBuilder()
        .add_text_field("id", stored=True, tokenizer_name="raw")
        .add_text_field("text", stored=False, tokenizer_name="whitespace", index_option="freq")
        .build()
    )
    path = Path(folder) / "tantivy"
    path.mkdir()
    index = tantivy.Index(schema, path=str(path))
    writer = index.writer(heap_size=256 << 20, num_threads=1)
    for id, text in texts:
        writer.add_document(tantivy.Document(id=id, text=" ".join(analyser.terms(text))))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(query: str) -> list[str]:
        clauses = [
            (tantivy.Occur.Should, tantivy.Query.term_query(schema, "text", term, "freq"))
            for term in analyser.terms(query)
        ]
        found = searcher.search(tantivy.Query.boolean_query(clauses), K, count=False)
        return [searcher.doc(address)["id"][0] for _, address in found.hits]

    return search


ENGINES: dict[str, Callable[[Texts, Analyser, str], Search]] = {
    "citadel": citadel_search,
    "bm25s, numpy": bm25s_search("numpy"),
    "bm25s, numba": bm25s_search("numba"),
    "tantivy": tantivy_search,
}


def measure(
    name: str, texts: Texts, queries: Sequence[str], analyser: Analyser, checked: int
) -> Iterator[list[Any]]:
    """One row per engine: build seconds, latency, correct top 10s."""
    exact = Exact([analyser.terms(text) for _, text in texts])
    numbers = {id: number for number, (id, _) in enumerate(texts)}
    with tempfile.TemporaryDirectory() as folder:
        searches: dict[str, Search] = {}
        seconds: dict[str, float] = {}
        for engine, build in ENGINES.items():
            start = time.perf_counter()
            searches[engine] = build(texts, analyser, folder)
            seconds[engine] = time.perf_counter() - start
        times = latencies(searches, queries)
        for engine, search in searches.items():
            right = sum(
                exact.agrees(analyser.terms(q), [numbers[id] for id in search(q)]) for q in queries[:checked]
            )
            p50, p95 = np.percentile(times[engine], [50, 95]).tolist()
            mean, base = float(times[engine].mean()), float(times["citadel"].mean())
            yield [
                name,
                engine,
                seconds[engine],
                mean * 1e6,
                p50 * 1e6,
                p95 * 1e6,
                mean / base,
                f"{right}/{min(checked, len(queries))}",
            ]


def latencies(
    searches: dict[str, Search], queries: Sequence[str], rounds: int = 3
) -> dict[str, NDArray[np.float64]]:
    """Minimum seconds of each query over several rounds, engines alternating."""
    least = {engine: np.full(len(queries), np.inf) for engine in searches}
    for _ in range(rounds + 1):  # the first warms up
        for engine, search in searches.items():
            for number, query in enumerate(queries):
                start = time.perf_counter()
                search(query)
                least[engine][number] = min(least[engine][number], time.perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=500_000)
    parser.add_argument("--queries", type=int, default=300)
    options = parser.parse_args()
    one_core()
    rows: list[list[Any]] = []
    scifact = Path(os.environ.get("CITADEL_DATA", "data")) / "eval" / "scifact"
    if scifact.exists():
        texts = [(document.id, document.encoded_text) for document, _ in read_corpus(scifact)]
        judged = {
            line.split("\t")[0] for line in (scifact / "qrels" / "test.tsv").read_text().splitlines()[1:]
        }
        queries = [text for id, text in read_queries(scifact) if id in judged]
        rows += measure(f"SciFact, {len(texts):,}", texts, queries, get_analyser("english"), len(queries))
    synthetic, queries = zipf_corpus(options.documents, options.queries)
    rows += measure(f"Zipf, {len(synthetic):,}", synthetic, queries, get_analyser("plain"), 100)
    columns = ["documents", "engine", "build s", "mean µs", "p50 µs", "p95 µs", "× citadel", "right top 10"]
    report("bm25", "BM25, one thread, k = 10, text in → ids out", columns, rows)


if __name__ == "__main__":
    main()
