"""Random small collections and queries for every router and codec."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

import citadel
from citadel.index.snapshot import Snapshot
from citadel.search.plan import Options, Plan, plan_vectors
from citadel.search.searcher import Searcher
from citadel.types import RoutedTokens
from tests.index.quick import Quick

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")
ROUTERS = ("bm25", "static", "dynamic", "all_to_all", "none", "sparse")
DIMENSIONS = (1, 3, 8, 32, 33)
STEP = 0.02


@dataclass(frozen=True)
class World:
    """Documents and queries of one router; scores of `tied` worlds are often equal."""

    router: str
    codec: str = "int8"
    dimension: int = 8
    semantic: str | None = None  # its codec
    seed: int = 0
    count: int = 12
    tied: bool = False

    @property
    def has_vectors(self) -> bool:
        return self.router in ("static", "dynamic", "all_to_all")

    def _numbers(self, random: np.random.Generator, *shape: int) -> np.ndarray:
        drawn = random.integers(-2, 3, shape) if self.tied else random.normal(size=shape)
        return np.asarray(drawn, np.float32)

    def document(self, number: int, version: int = 0) -> dict[str, Any]:
        random = np.random.default_rng((self.seed, number, version))
        document: dict[str, Any] = {"id": f"d{number}", "text": ""}
        if self.router == "bm25":
            return document | {"text": " ".join(random.choice(WORDS, random.integers(0, 9)))}
        postings = int(random.integers(0, 9))
        if self.router not in ("all_to_all", "none"):
            document["keys"] = random.integers(0, 4, postings)
        if self.router in ("dynamic", "sparse"):
            document["weights"] = (random.integers(1, 120, postings) * STEP).astype(np.float32)
        if self.has_vectors:
            document["vectors"] = self._numbers(random, postings, self.dimension)
        if self.semantic or self.router == "none":
            document["semantic"] = self._numbers(random, 5)
        return document

    def documents(self) -> list[dict[str, Any]]:
        return [self.document(number) for number in range(self.count)]

    def query(self, number: int) -> dict[str, Any]:
        random = np.random.default_rng((self.seed, 1_000_000 + number))
        if self.router == "bm25":
            return {"query": " ".join(random.choice((*WORDS, "zebra"), random.integers(1, 6)))}
        tokens = int(random.integers(0, 5))
        query: dict[str, Any] = {}
        if self.router != "none":
            query["keys"] = (
                random.integers(0, 5, tokens) if self.router != "all_to_all" else np.zeros(tokens, np.int64)
            )
            query["weights"] = (random.integers(1, 9, tokens) / 4).astype(np.float32)
        if self.has_vectors:
            query["vectors"] = self._numbers(random, tokens, self.dimension)
        if self.semantic or self.router == "none":
            query["semantic"] = self._numbers(random, 5)
        return query

    def queries(self) -> list[dict[str, Any]]:
        return [self.query(number) for number in range(3)]

    @property
    def modes(self) -> tuple[str, ...]:
        return ("exact", "rerank", "off") if self.semantic or self.router == "none" else ("off",)

    def create(self, folder: Path | Quick, tau: float | None = None) -> citadel.Index:
        if self.router == "bm25":
            return citadel.Index.create(folder, analyser="plain")
        fields = {"lexical": citadel.Field(self.dimension if self.has_vectors else 0, self.codec)}
        if self.semantic or self.router == "none":
            fields["semantic"] = citadel.Field(5, self.semantic or "int8")
        if self.router == "none":
            del fields["lexical"]
        return citadel.Index.create(folder, router=self.router, fields=fields, fingerprint="random", tau=tau)

    def add(self, index: citadel.Index, documents: Sequence[dict[str, Any]]) -> None:
        index.add(documents) if self.router == "bm25" else index.add_vectors(documents)

    def search(
        self, searcher: Searcher, query: dict[str, Any], k: int = 1000, **options: Any
    ) -> citadel.Hits:
        return (
            searcher.search(**query, k=k, filter=options.get("filter"))
            if self.router == "bm25"
            else searcher.search_vectors(**query, k=k, **options)
        )

    def routed(self, document: dict[str, Any]) -> RoutedTokens:
        """Convert a document or query to the input of the formula."""
        vectors, semantic = document.get("vectors"), document.get("semantic")
        count = len(vectors) if vectors is not None else len(document.get("keys", ()))
        return RoutedTokens(
            np.asarray(document.get("keys", np.zeros(count)), np.uint32),
            np.asarray(document.get("weights", np.ones(count)), np.float32),
            vectors,
            None if semantic is None else np.asarray(semantic, np.float32),
        )


@contextmanager
def built(
    world: World, batches: Sequence[Sequence[dict[str, Any]]], tau: float | None = None
) -> Iterator[citadel.Index]:
    """An index with one commit per batch; low thresholds enable codebooks and probes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("citadel.index.spill.SAMPLE_FLOOR", 1),
        mock.patch("citadel.index.segment_writer.PROBE_FLOOR", 9),
        mock.patch("citadel.index.merge.CHUNK", 128),
        world.create(Quick(Path(folder) / "index"), tau) as index,
    ):
        for batch in batches:
            world.add(index, batch)
            index.commit()
        yield index


Answer = list[tuple[list[str], list[float]]]


def answers(
    world: World,
    index: citadel.Index,
    k: int = 1000,
    engine: str = "native",
    threads: int = 1,
    **options: Any,
) -> Answer:
    """Ids and scores of every query in every mode."""
    searcher, results = index.searcher(engine=engine, threads=threads), []
    for query in world.queries():
        for mode in world.modes if world.router != "bm25" else ("off",):
            hits = world.search(
                searcher, query, k, **({} if world.router == "bm25" else {"semantic_mode": mode}), **options
            )
            results.append((hits.ids, hits.scores))
    return results


def up_to_ties(answer: Answer) -> list[list[tuple[float, str]]]:
    """The same answer with tied hits ordered by id."""
    return [
        sorted(zip(scores, ids, strict=True), key=lambda pair: (-pair[0], pair[1])) for ids, scores in answer
    ]


def bare_options(k: int, mode: str, candidates: int) -> Options:
    return Options(k, mode, candidates, candidates)


def plan(snapshot: Snapshot, query: dict[str, Any]) -> Plan:
    parts = {name: query.get(name) for name in ("keys", "weights", "vectors", "semantic")}
    return plan_vectors(snapshot.settings, **parts)


@st.composite
def worlds(
    draw: st.DrawFn,
    routers: Sequence[str] = ROUTERS,
    codecs: Sequence[str] = ("fp16", "int8", "pq2", "pq1"),
    semantics: Sequence[str | None] = (None, "fp16", "int8"),
) -> World:
    router = draw(st.sampled_from(routers))
    codec = draw(st.sampled_from(codecs))
    dimension = draw(st.sampled_from(DIMENSIONS if codec in ("fp16", "int8") else (8, 32)))
    semantic = draw(st.sampled_from(semantics)) if router not in ("bm25", "none") else None
    return World(
        router,
        codec,
        dimension,
        semantic,
        draw(st.integers(0, 1 << 30)),
        draw(st.integers(1, 24)),
        draw(st.booleans()),
    )
