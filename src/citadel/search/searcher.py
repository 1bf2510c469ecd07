"""Search over one snapshot: text or vectors in, hits out. Immutable; threads may share it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from citadel.errors import EmptyQueryError, FingerprintError, InputError, UsageError
from citadel.index.snapshot import Snapshot
from citadel.routing import get_router
from citadel.search.engine import Engine, EngineOptions, open_engine
from citadel.search.hits import Hits
from citadel.search.plan import Options, TermStatistics, count_terms, plan_options, plan_vectors, tau_used
from citadel.settings import available_threads
from citadel.text.analyser import Analyser, get_analyser
from citadel.text.parse import shorten
from citadel.text.queries import named_queries
from citadel.types import Ranking, RoutedTokens, Scored

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.encode.encoder import Encoder
    from citadel.explain.result import Explanation
    from citadel.explain.text import TextExplanation

_BATCH = 256  # queries planned and searched per call
_MAX_CACHED_OPTIONS = 64
_PARTS = ("keys", "weights", "vectors", "semantic")


class PreparedQuery(NamedTuple):
    """A query as the engine takes it; `is_cut` when its text was longer than the model reads."""

    query: Any
    is_cut: bool = False


class QueryEncoder(Protocol):
    """Encodes queries into routed tokens, on the CPU or on the GPU that searches."""

    def encode_queries(self, texts: Sequence[str]) -> list[RoutedTokens]: ...


class Searcher:
    """Searches the generation that was newest when it was made.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp())
    >>> index.add([{"id": "d1", "text": "a theory of relativity"}, {"id": "d2", "text": "a history of Rome"}])
    2
    >>> searcher = index.commit().searcher()
    >>> [hit.id for hit in searcher.search("relativity theory")]
    ['d1']
    """

    def __init__(
        self,
        snapshot: Snapshot,
        threads: int | None = None,
        engine: str = "native",
        encoder: Callable[[], Encoder] | None = None,
        device: str = "cpu",
        query_encoder: Callable[[], QueryEncoder] | None = None,
        gpu_memory: int | None = None,
        *,
        card_memory: int | None = None,  # former name of gpu_memory
    ) -> None:
        self._query_encoder = query_encoder
        self.recipe: tuple[Callable[..., Searcher], tuple[Any, ...]] | None = None  # for pickling
        self.snapshot, self.settings, self._encoder = snapshot, snapshot.settings, encoder
        self.statistics = TermStatistics(snapshot) if self.settings.router == "bm25" else None
        floor = get_router(self.settings.router).floor
        norm = self.statistics.norm if self.statistics else (0.0, 0.0)
        self._cached_options: dict[Any, Options] = {}
        if device != "cpu" and engine == "native":
            engine = "gpu"
        memory = card_memory if gpu_memory is None else gpu_memory
        options = EngineOptions(engine, threads or available_threads(), device, memory)
        with snapshot.whole():
            self._engine: Engine[Any] = open_engine(snapshot, floor, norm, options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the index's path and generation, and the options of this searcher."""
        if self.recipe is None:
            raise UsageError("only a searcher made by Index.searcher() can be pickled: open the index there instead")
        rebuild, arguments = self.recipe
        return rebuild, (self.snapshot, *arguments)

    def __len__(self) -> int:
        return len(self.snapshot)

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Hits:
        """The best k documents for a text; fewer only when fewer have a score."""
        options = self._options(k, semantic_mode, tau)
        return self._search(self._prepare_text(query), options, cancel)

    def search_vectors(
        self,
        keys: Any = None,
        weights: Any = None,
        vectors: Any = None,
        semantic: Any = None,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Hits:
        """The best k documents for query vectors: keys [n], weights [n], vectors [n, d], semantic [s]."""
        options = self._options(k, semantic_mode, tau)
        plan = plan_vectors(self.settings, keys, weights, vectors, semantic)
        if plan.semantic is None:
            options = options._replace(semantic="off")
        return self._search(PreparedQuery(self._engine.prepare(plan)), options, cancel)

    def search_batch(
        self,
        queries: Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, str],
        k: int = 1000,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ranking:
        """The hits of many queries, in order; queries without an id are named 1, 2, …"""
        named = named_queries(queries)
        options = self._options(k, semantic_mode, tau)
        return self._batch([id for id, _ in named], self._prepare_texts([text for _, text in named]), options, cancel)

    def search_vectors_batch(
        self,
        queries: Mapping[str, Mapping[str, Any]],
        k: int = 1000,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ranking:
        """The hits of many queries given as vectors: id → {keys, weights, vectors, semantic}."""
        options = self._options(k, semantic_mode, tau)
        plans = [plan_vectors(self.settings, *map(query.get, _PARTS)) for query in queries.values()]
        lacks_semantic = {plan.semantic is None for plan in plans}
        if lacks_semantic == {True, False}:
            raise InputError("some queries have a semantic vector and some have none: search them in two batches")
        if True in lacks_semantic:
            options = options._replace(semantic="off")
        prepared = (PreparedQuery(self._engine.prepare(plan)) for plan in plans)
        return self._batch(list(queries), prepared, options, cancel)

    def prepare(self, queries: Sequence[str]) -> list[PreparedQuery]:
        """Prepare texts for `search_prepared`; a model encodes several at once."""
        return list(self._prepare_texts(queries))

    def prepare_vectors(
        self, keys: Any = None, weights: Any = None, vectors: Any = None, semantic: Any = None
    ) -> PreparedQuery:
        """Prepare query vectors; without a semantic vector, search with `semantic_mode="off"`."""
        return PreparedQuery(self._engine.prepare(plan_vectors(self.settings, keys, weights, vectors, semantic)))

    def search_prepared(
        self,
        query: PreparedQuery,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Hits:
        """The best k documents for a query from `prepare`, to time or share the two steps of a search."""
        options = self._options(k, semantic_mode, tau)
        return self._search(query, options, cancel)

    def _search(self, query: PreparedQuery, options: Options, cancel: Cancel | None) -> Hits:
        return self._hits(self._engine.search(query.query, options, cancel), options, query.is_cut)

    def _batch(
        self, ids: list[str], queries: Iterator[PreparedQuery], options: Options, cancel: Cancel | None
    ) -> Ranking:
        """Search in parts, so that a long batch can be interrupted."""
        hits: list[Hits] = []
        while part := list(itertools.islice(queries, _BATCH)):
            results = self._engine.search_batch([each.query for each in part], options, cancel)
            hits += [self._hits(scored, options, each.is_cut) for scored, each in zip(results, part, strict=True)]
        return Ranking(tuple(ids), tuple(hits))

    def _hits(self, scored: Scored, options: Options, query_cut: bool) -> Hits:
        if self.settings.model is not None and options.semantic != "off":
            scored = _without_blank_documents(scored)
        return Hits(self.snapshot, scored, tau_used(self.settings, options), query_cut)

    def _options(self, k: int, semantic_mode: str, tau: float | None) -> Options:
        """Cached: planning takes a twentieth of a short query."""
        key = (k.__class__, k, semantic_mode, tau)  # the class tells True from 1
        try:
            return self._cached_options[key]
        except (KeyError, TypeError):  # new, or unhashable
            options = plan_options(self.snapshot, k, semantic_mode, tau)
        if len(self._cached_options) < _MAX_CACHED_OPTIONS:
            self._cached_options[key] = options
        return options

    def _prepare_texts(self, queries: Sequence[str]) -> Iterator[PreparedQuery]:
        """Prepare texts for the engine."""
        for query in queries:
            _check_text(query)
        return map(self._prepare_terms, queries) if self.statistics else self._prepare_encoded(queries)

    def _prepare_text(self, query: str) -> PreparedQuery:
        _check_text(query)
        return self._prepare_terms(query) if self.statistics else next(self._prepare_encoded([query]))

    def _prepare_terms(self, query: str) -> PreparedQuery:
        assert self.statistics is not None
        terms = self.analyser.terms(query)
        if not terms and not self.analyser.has_words(query):
            raise _empty_query(query)
        return PreparedQuery(self._engine.prepare_terms(*count_terms(terms), self.statistics))

    def _prepare_encoded(self, queries: Sequence[str]) -> Iterator[PreparedQuery]:
        """Encode a batch of queries at a time, on all cores."""
        encoder = self._query_encoder() if self._query_encoder else self.encoder
        for start in range(0, len(queries), _BATCH):
            part = queries[start : start + _BATCH]
            for query, routed in zip(part, encoder.encode_queries(part), strict=True):
                if routed.is_blank:
                    raise _empty_query(query)
                rows = (routed.keys, routed.weights, routed.vectors, routed.semantic)
                yield PreparedQuery(self._engine.prepare(plan_vectors(self.settings, *rows)), routed.is_cut)

    # -- explanations ------------------------------------------------------------------------------------------------

    def explain(
        self,
        query: str,
        id: str,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Explanation:
        """Why a document has its score: matching query and document tokens, their keys and their shares."""
        from citadel.explain.match import explain_match

        with self.snapshot.whole():
            return explain_match(self, query, id, semantic_mode=semantic_mode, tau=tau, cancel=cancel)

    def explain_vectors(
        self,
        id: str,
        keys: Any = None,
        weights: Any = None,
        vectors: Any = None,
        semantic: Any = None,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Explanation:
        """The same for a query given as vectors, as `search_vectors` takes them."""
        from citadel.explain.match import explain_vectors

        given = (keys, weights, vectors, semantic)
        with self.snapshot.whole():
            return explain_vectors(self, *given, id, semantic_mode=semantic_mode, tau=tau, cancel=cancel)

    def explain_text(self, text: str, *, tau: float | None = None, side: str = "document") -> TextExplanation:
        """Every token of a text with its keys and weights in this index, at any τ."""
        from citadel.explain.text import explain_terms, explain_text

        if self.statistics:
            return explain_terms(self, text, tau=tau, side=side)
        return explain_text(self.encoder, text, tau=tau, side=side)

    @property
    def encoder(self) -> Encoder:
        """The model of this index, loaded on first use."""
        if self._encoder is None:
            raise UsageError(
                "this index holds given vectors, so a text cannot be a query: use search_vectors or --vectors F.npz"
            )
        return self._encoder()

    @cached_property
    def analyser(self) -> Analyser:
        """The analyser of a bm25 index."""
        assert self.settings.analyser is not None  # the manifest of a bm25 index has one
        analyser = get_analyser(self.settings.analyser)
        if analyser.fingerprint != self.settings.fingerprint:
            raise FingerprintError(
                f"the index was built with analyser {self.settings.fingerprint}, this machine has "
                f"{analyser.fingerprint}; install the same PyStemmer or build the index again"
            )
        return analyser


def _check_text(query: object) -> None:
    if not isinstance(query, str):
        raise UsageError(f"a query is a text, not {type(query).__name__}")


def _empty_query(query: str) -> EmptyQueryError:
    return EmptyQueryError(f"the query {shorten(query)} has no words to search for: give at least one")


def _without_blank_documents(scored: Scored) -> Scored:
    """Drop documents without tokens: their semantic vector is zero, and so is their score."""
    if scored.scores.all():
        return scored
    kept = np.flatnonzero(scored.scores)
    return scored._replace(numbers=scored.numbers[kept], scores=scored.scores[kept])
