"""Measure with the native engine: one index per τ and codec, filled in one pass over the documents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citadel.encode.batches import join
from citadel.paper.counts import query_cost, size_histogram
from citadel.paper.record import machine
from citadel.paper.system import MeasuredEncoder, Variant, fields_of, router_of
from citadel.types import Document, Ranking, RoutedTokens

if TYPE_CHECKING:
    from citadel.api import Index
    from citadel.search.searcher import Searcher

_VECTORS = ("SEMANTIC_", "PROBE_")
LATENCY_DEPTH = 1000  # as in the paper
LATENCY_SECONDS = 60.0  # per variant; fewer queries are timed if all would take longer


@dataclass(frozen=True)
class IndexLists:
    """Size and list lengths of an index."""

    documents: int
    postings: int
    bytes: int
    sizes: dict[Any, int]  # key or term → postings
    codec: str = ""  # as stored: with too few vectors to train a codebook, pq falls back to another codec

    def figures(self, names: MeasuredEncoder | None = None) -> dict[str, Any]:
        """Return the fields of a measurement."""
        top = sorted(self.sizes.items(), key=lambda pair: -pair[1])[:20]
        return {
            "documents": self.documents,
            "postings": self.postings,
            "bytes": self.bytes,
            "list_sizes": size_histogram(self.sizes.values()),
            "largest_lists": [[_name(key, names), size] for key, size in top],
        }


def _name(key: Any, encoder: MeasuredEncoder | None) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode(errors="replace")
    return (
        encoder.tokenizer.token(int(key))
        if encoder is not None and encoder.config.router != "all_to_all"
        else "any"
    )


class EngineSystem:
    """Indexes in a temporary folder, one per τ and codec."""

    engine = "native"

    def __init__(
        self, encoder: MeasuredEncoder | None, variants: Sequence[Variant], threads: int | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="citadel-measure-")
        self._encoder, self._threads, self._alone = encoder, threads, len(variants) == 1
        self._indexes = {
            key: self._create(*key) for key in dict.fromkeys((each.tau, each.codec) for each in variants)
        }

    def _create(self, tau: float, codec: str) -> Index:
        from citadel.api import Index

        folder = Path(self._folder.name, f"{tau:g}-{codec}")
        if self._encoder is None:
            return Index.create(folder, model="bm25", threads=self._threads)
        config, fields = self._encoder.config, fields_of(self._encoder.config, codec)
        pruning = tau if config.router == "dynamic" else None
        fingerprint = self._encoder.fingerprint
        return Index.create(
            folder, fields=fields, router=router_of(config, codec), fingerprint=fingerprint, tau=pruning
        )

    def add(self, documents: Sequence[Document], routed: Sequence[RoutedTokens]) -> None:
        """Add documents to every index."""
        for index in self._indexes.values():
            if self._encoder is None:
                index.add(documents)
            else:
                index.add_vectors(join(documents, routed))

    def finish(self) -> None:
        """Commit and merge into one segment, so that sizes are comparable."""
        for index in self._indexes.values():
            index.commit()
            index.merge()

    def lists(self, variant: Variant) -> IndexLists:
        """Size and list lengths of a variant's index."""
        from citadel.index.stats import list_lengths

        index = self._indexes[variant.tau, variant.codec]
        stats, sizes = index.stats(), dict(list_lengths(index.searcher().snapshot))
        codecs = "+".join(stats["codecs"])
        if stats["router"] == "centroid":  # a list has a document once, however many of its tokens it holds
            sizes = {f"centroid {key}": size for key, size in sizes.items()}
            size = round(stats["tokens"] * (stats["bytes_per_token"] or 0))
            return IndexLists(len(index), stats["tokens"], size, sizes, codecs)
        vectors = sum(size for name, size in stats["sections"].items() if name.startswith(_VECTORS))
        return IndexLists(len(index), stats["postings"], stats["lexical_bytes"] + vectors, sizes, codecs)

    def search(
        self, variant: Variant, queries: Sequence[tuple[str, str]], routed: Sequence[RoutedTokens], k: int
    ) -> tuple[Ranking, list[dict[str, int]]]:
        """Search all queries; return their hits and costs."""
        searcher = self._indexes[variant.tau, variant.codec].searcher(threads=self._threads)
        if self._encoder is None:
            ranking = searcher.search_batch(queries, k)
            return ranking, [
                {"token_products": _products(hits), "dot_products": _products(hits)} for _, hits in ranking
            ]
        if searcher.settings.router == "centroid":
            return _search_centroids(searcher, queries, routed, k)
        vectors = {
            id: {
                "keys": text.keys,
                "weights": text.weights,
                "vectors": text.vectors,
                "semantic": text.semantic,
            }
            for (id, _), text in zip(queries, routed, strict=True)
        }
        ranking = searcher.search_vectors_batch(vectors, k, semantic_mode=variant.semantic)
        sizes = self.lists(variant).sizes
        return ranking, [
            _cost(text, sizes, _products(hits)) for text, (_, hits) in zip(routed, ranking, strict=True)
        ]

    def latency(
        self, variant: Variant, texts: Sequence[str], routed: Sequence[RoutedTokens], k: int = LATENCY_DEPTH
    ) -> dict[str, Any]:
        """Measure latency by stage, one query at a time on one thread; empty for bm25.

        Several variants are timed without encoding, which would evict the lists from the cache and make the
        variants harder to compare.
        """
        if self._encoder is None:
            return {}
        from citadel.bench.latency import Bench, affordable, described, measure_latency
        from citadel.routing import get_router
        from citadel.search.centroid import CentroidEngine
        from citadel.search.cpu import CpuEngine
        from citadel.search.plan import plan_options

        encoder, snapshot = self._encoder, self._indexes[variant.tau, variant.codec].searcher().snapshot
        engine = (
            CentroidEngine(snapshot)
            if snapshot.settings.router == "centroid"
            else CpuEngine(snapshot, get_router(encoder.config.router).floor, (0.0, 0.0), 1)
        )
        options = plan_options(snapshot, k, variant.semantic, None)
        encode = _encode_one(encoder) if self._alone else None
        bench = Bench(snapshot, engine, options, texts if encode else routed, encode, snapshot.owner_ids)
        host = machine() | {"encoded_on": encoder.device}
        return described(bench, measure_latency(affordable(bench, LATENCY_SECONDS)), host)

    def close(self) -> None:
        """Remove the indexes."""
        for index in self._indexes.values():
            index.close()
        self._folder.cleanup()


def _search_centroids(
    searcher: Searcher, queries: Sequence[tuple[str, str]], routed: Sequence[RoutedTokens], k: int
) -> tuple[Ranking, list[dict[str, int]]]:
    """Search a centroid index; a query token is multiplied with all centroids, then with stored tokens."""
    vectors = {id: {"vectors": text.vectors} for (id, _), text in zip(queries, routed, strict=True)}
    ranking, book = searcher.search_vectors_batch(vectors, k), searcher.snapshot.centroids
    return ranking, [
        _centroid_cost(len(text), 0 if book is None else len(book), _products(hits))
        for text, (_, hits) in zip(routed, ranking, strict=True)
    ]


def _centroid_cost(tokens: int, centroids: int, products: int) -> dict[str, int]:
    """
    >>> _centroid_cost(tokens=2, centroids=16, products=100)
    {'query_tokens': 2, 'token_products': 132, 'semantic_products': 0, 'dot_products': 132}
    """
    whole = products + tokens * centroids
    return {
        "query_tokens": tokens,
        "token_products": whole,
        "semantic_products": 0,
        "dot_products": whole,
    }


def _encode_one(encoder: MeasuredEncoder) -> Callable[[str], RoutedTokens]:
    return lambda text: encoder.encode_queries([text])[0]


def _products(hits: Any) -> int:
    return int(hits.dot_products)


def _cost(text: RoutedTokens, sizes: dict[int, int], products: int) -> dict[str, int]:
    cost = query_cost(text.keys, sizes)
    rest = products - cost.token_products
    return {**cost._asdict(), "semantic_products": rest, "dot_products": products}
