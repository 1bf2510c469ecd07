"""Search over one snapshot: text or vectors in, hits out. Immutable; threads may share it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.errors import Cancelled, EmptyQueryError, InputError, UsageError
from citadel.filter.parse import GivenFilter, given_filter
from citadel.index.snapshot import Snapshot, matching_analyser
from citadel.routing import get_router
from citadel.search.async_search import run_cancellable
from citadel.search.engine import Engine, EngineOpener, EngineOptions, open_engine
from citadel.search.grouping import ByDocument, GroupRanking, best_of_documents, best_of_groups
from citadel.search.hits import HitPassages, Hits
from citadel.search.plan import Options, Plan, TermStatistics, count_terms, plan_vectors, tau_used
from citadel.search.request import Request, Requests
from citadel.search.rerank import Rerank, RerankPage
from citadel.settings import available_threads
from citadel.text.analyser import Analyser
from citadel.text.parse import shorten
from citadel.text.queries import named_queries, query_id
from citadel.types import Ranking, RoutedTokens, Scored

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.encode.calibration import Calibration
    from citadel.encode.encoder import Encoder
    from citadel.explain.result import Explanation
    from citadel.explain.text import TextExplanation

_BATCH = 256  # queries planned and searched per call
_CANCELLABLE_BATCH = 16  # queries encoded per call, where a flag is checked in between
_PARTS = ("keys", "weights", "vectors", "semantic")


class PreparedQuery(NamedTuple):
    """A query in the engine's form; `is_cut` if its text was longer than the model reads."""

    query: Any
    is_cut: bool = False
    logit: float | None = None  # the calibration's part of the query; None without a calibration


class QueryEncoder(Protocol):
    """Encodes queries into routed tokens, on the CPU or on the GPU that searches."""

    def encode_queries(self, texts: Sequence[str]) -> list[RoutedTokens]: ...


class Searcher:
    """Searches the generation that was newest when the searcher was created.

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
        engine: str | EngineOpener = "native",
        encoder: Callable[[], Encoder] | None = None,
        device: str = "cpu",
        query_encoder: Callable[[], QueryEncoder] | None = None,
        gpu_memory: int | None = None,
        *,
        calibration: Callable[[], Calibration | None] | None = None,
        document_encoder: Callable[[], Encoder] | None = None,  # if it is not that of queries
        card_memory: int | None = None,  # former name of gpu_memory
    ) -> None:
        self._query_encoder, self._load_calibration = query_encoder, calibration
        self._document_encoder = document_encoder
        self.recipe: tuple[Callable[..., Searcher], tuple[Any, ...]] | None = None  # for pickling
        self.snapshot, self.settings, self._encoder = snapshot, snapshot.settings, encoder
        self.statistics = TermStatistics(snapshot) if self.settings.router == "bm25" else None
        floor = get_router(self.settings.router).floor
        norm = self.statistics.norm if self.statistics else (0.0, 0.0)
        if device != "cpu" and engine == "native":
            engine = "gpu"
        memory = card_memory if gpu_memory is None else gpu_memory
        options = EngineOptions(engine, threads or available_threads(), device, memory)
        with snapshot.whole():
            self._engine: Engine[Any] = open_engine(snapshot, floor, norm, options)
        self._requests = Requests(snapshot, self._engine)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the index's path and generation, and the options of this searcher."""
        if self.recipe is None:
            raise UsageError("only a searcher from Index.searcher() can be pickled: create it that way")
        rebuild, arguments = self.recipe
        return rebuild, (self.snapshot, *arguments)

    def __len__(self) -> int:
        return len(self.snapshot)

    def count(self, filter: GivenFilter | None = None, *, cancel: Cancel | None = None) -> int:
        """The number of documents whose metadata match a filter; a search with it keeps its result."""
        parsed = None if filter is None else given_filter(filter)
        if parsed is None:
            return len(self)
        if self.snapshot.has_long_documents:  # the engine counts passages
            return sum(int(mask.sum()) for _, _, mask in self.snapshot.live_allowed(parsed, cancel))
        return len(self._requests.allowed(parsed, cancel))

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
        min_relevance: float | None = None,
        rerank: Rerank | None = None,
        rerank_k: int = 100,
    ) -> Hits:
        """The best k documents for a text, or fewer if fewer have a score.

        `filter` keeps documents by their metadata, such as `{"year": {"$gte": 1900}}`; the result is the best
        k of those. `offset` skips the first hits, `min_score` leaves out hits with a lower score. With
        `group_by`, only the best document of each value of a metadata field is a hit; documents without the
        field are groups of their own. `ef` is the number of documents that the mode `graph` scores exactly:
        more takes longer and misses fewer. `effort`, from 0 to 1, sets it relative to its default: 0.5 is the
        default, 0 a quarter and 1 four times as many. `min_relevance` leaves out hits with a lower
        `hit.relevance`, for models with a calibration.

        `rerank` is a function of the query and a list of texts that returns a score for each, such as a
        cross-encoder. It scores the best `rerank_k` hits, at least `offset + k`, and the result is ordered by
        its scores; `hit.parts` has both. `min_score` then applies to its scores. It has nothing to do with
        `semantic_mode="rerank"`.
        """
        if rerank is not None:
            reranking = RerankPage(rerank, rerank_k, k, offset, min_score)
            k, offset, min_score = reranking.depth, 0, None
        page = (offset, min_score, group_by, ef, min_relevance, effort)
        request = self._requests.make(k, semantic_mode, tau, cancel, filter, *page)
        hits = self._search(self._prepare_text(query), request)
        return hits if rerank is None else reranking.hits(query, hits)

    async def asearch(self, query: str, k: int = 10, *, cancel: Cancel | None = None, **options: Any) -> Hits:
        """`search` in a worker thread, with texts and metadata; cancelling the task stops the search.

        >>> import asyncio, citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "a theory of relativity"}])
        >>> asyncio.run(index.commit().searcher().asearch("relativity", k=1)).ids
        ['d1']
        """

        def work(flag: Cancel) -> Hits:
            hits = self.search(query, k, cancel=flag, **options)
            hits.load(flag)
            return hits

        return await run_cancellable(work, cancel)

    async def asearch_batch(
        self,
        queries: Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, str],
        k: int = 10,
        *,
        cancel: Cancel | None = None,
        **options: Any,
    ) -> Ranking:
        """`search_batch` in a worker thread; cancelling the task stops the search."""
        return await run_cancellable(
            lambda flag: self.search_batch(queries, k, cancel=flag, **options), cancel
        )

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
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
    ) -> Hits:
        """The best k documents for query vectors: keys [n], weights [n], vectors [n, d], semantic [s]."""
        page = (offset, min_score, group_by, ef, None, effort)
        request = self._requests.make(k, semantic_mode, tau, cancel, filter, *page)
        plan = plan_vectors(self.settings, keys, weights, vectors, semantic)
        if plan.semantic is None and self.settings.semantic is not None:
            request = request.without_semantic()
        return self._search(PreparedQuery(self._engine.prepare(plan)), request)

    def search_batch(
        self,
        queries: Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, str],
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
        min_relevance: float | None = None,
        rerank: Rerank | None = None,
        rerank_k: int = 100,
    ) -> Ranking:
        """The hits of many queries, in order; queries without an id are named 1, 2, …"""
        named = named_queries(queries)
        if rerank is not None:
            reranking = RerankPage(rerank, rerank_k, k, offset, min_score)
            k, offset, min_score = reranking.depth, 0, None
        page = (offset, min_score, group_by, ef, min_relevance, effort)
        request = self._requests.make(k, semantic_mode, tau, cancel, filter, *page)
        prepared = self._prepare_texts([text for _, text in named], cancel)
        ranking = self._batch([id for id, _ in named], prepared, request)
        return ranking if rerank is None else reranking.ranking(dict(named), ranking)

    def search_vectors_batch(
        self,
        queries: Mapping[str, Mapping[str, Any]],
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
    ) -> Ranking:
        """The hits of many queries given as vectors: id → {keys, weights, vectors, semantic}."""
        page = (offset, min_score, group_by, ef, None, effort)
        request = self._requests.make(k, semantic_mode, tau, cancel, filter, *page)
        plans = [plan_vectors(self.settings, *map(query.get, _PARTS)) for query in queries.values()]
        lacks_semantic = {plan.semantic is None for plan in plans}
        if lacks_semantic == {True, False}:
            raise InputError(
                "some queries have a semantic vector and some have none: search them in two batches"
            )
        if True in lacks_semantic and self.settings.semantic is not None:
            request = request.without_semantic()
        prepared = (PreparedQuery(self._engine.prepare(plan)) for plan in plans)
        return self._batch([query_id(id) for id in queries], prepared, request)

    def prepare(self, queries: Sequence[str]) -> list[PreparedQuery]:
        """Prepare texts for `search_prepared`; a model encodes several at once."""
        return list(self._prepare_texts(queries))

    def prepare_routed(self, query: str, routed: RoutedTokens) -> PreparedQuery:
        """Prepare a text that `text_encoder` has encoded."""
        if routed.is_blank:
            raise empty_query(query)
        rows = (routed.keys, routed.weights, routed.vectors, routed.semantic)
        plan = plan_vectors(self.settings, *rows)
        return PreparedQuery(self._engine.prepare(plan), routed.is_cut, self._logit(plan))

    def prepare_vectors(
        self, keys: Any = None, weights: Any = None, vectors: Any = None, semantic: Any = None
    ) -> PreparedQuery:
        """Prepare query vectors; without a semantic vector, search with `semantic_mode="off"`."""
        return PreparedQuery(
            self._engine.prepare(plan_vectors(self.settings, keys, weights, vectors, semantic))
        )

    def search_prepared(
        self,
        query: PreparedQuery,
        k: int = 10,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        effort: float | None = None,
        min_relevance: float | None = None,
    ) -> Hits:
        """The best k documents for a query from `prepare`."""
        page = (offset, min_score, group_by, ef, min_relevance, effort)
        request = self._requests.make(k, semantic_mode, tau, cancel, filter, *page)
        return self._search(query, request)

    def _search(self, query: PreparedQuery, request: Request) -> Hits:
        scored = self._engine.search(query.query, request.options, request.cancel, request.allowed)
        return self._hits(scored, request, query)

    def _batch(self, ids: list[str], queries: Iterator[PreparedQuery], request: Request) -> Ranking:
        """Search in parts of _BATCH queries, so that a long batch can be interrupted."""
        hits: list[Hits] = []
        while part := list(itertools.islice(queries, _BATCH)):
            results = self._engine.search_batch(
                [each.query for each in part], request.options, request.cancel, request.allowed
            )
            hits += [self._hits(scored, request, each) for scored, each in zip(results, part, strict=True)]
        return Ranking(tuple(ids), tuple(hits))

    def _hits(self, scored: Scored, request: Request, query: PreparedQuery) -> Hits:
        # Documents without tokens have a zero semantic vector, so their score is 0.
        has_semantic = self.settings.semantic is not None
        drop_zero = has_semantic and self.settings.model is not None and request.options.semantic != "off"
        if request.groups is not None or (drop_zero and not scored.scores.all()):
            scored = self._best_of_groups(scored, request, query, drop_zero)
        page, tau = request.page(scored), tau_used(self.settings, request.options)
        page, relevance = self._relevant(page, request, query)
        passages = None
        if self.snapshot.has_long_documents:
            passages = HitPassages(self.snapshot, page, lambda chosen: self._rescore(query, request, chosen))
            page = page._replace(numbers=self.snapshot.owners(page.numbers))
        return Hits(self.snapshot, page, tau, query.is_cut, request.offset, passages, relevance)

    def _relevant(
        self, page: Scored, request: Request, query: PreparedQuery
    ) -> tuple[Scored, NDArray[np.float64] | None]:
        """The hits of at least the requested relevance, and the relevance of each."""
        least = request.min_relevance
        uncalibrated = query.logit is None or request.options.semantic == "off"
        calibration = None if uncalibrated else self.calibration
        if calibration is None or query.logit is None:
            if least is not None:
                raise UsageError(
                    "min_relevance needs a text query, semantic vectors and a model with a calibration.json: "
                    "leave it out, or use min_score"
                )
            return page, None
        relevance = calibration.relevance(page.scores, query.logit)
        if least is not None:
            kept = int((relevance >= least).sum())  # relevance falls with the score
            relevance = relevance[:kept]
            page = page._replace(numbers=page.numbers[:kept], scores=page.scores[:kept])
        return page, relevance

    def _best_of_groups(
        self, first: Scored, request: Request, query: PreparedQuery, drop_zero: bool
    ) -> Scored:
        if isinstance(request.groups, ByDocument) and not (drop_zero and not first.scores.all()):
            best = best_of_documents(self.snapshot, first, request.options.k, request.k)
            if best is not None:
                return best

        def search_more(k: int, masks: Sequence[NDArray[np.bool_]]) -> Scored:
            options, allowed = self._requests.more(request, k, masks)
            return self._engine.search(query.query, options, request.cancel, allowed)

        ranking = GroupRanking(self.snapshot, request.groups or ByDocument(self.snapshot), drop_zero)
        return best_of_groups(ranking, first, request.options.k, request.k, request.min_score, search_more)

    def _rescore(self, query: PreparedQuery, request: Request, passages: range) -> Scored:
        """The scores of some passages of one segment, best first."""
        masks = [np.zeros(segment.passages, np.bool_) for segment in self.snapshot.segments]
        part = int(np.searchsorted(self.snapshot.passage_bases, passages.start, side="right")) - 1
        base = int(self.snapshot.passage_bases[part])
        masks[part][passages.start - base : passages.stop - base] = True
        options = request.options._replace(k=len(passages))
        if options.semantic != "off":
            options = options._replace(semantic="exact")
        return self._engine.search(query.query, options, None, self._engine.prepare_filter(masks))

    def best_passage(self, plan: Plan, passages: range, options: Options, cancel: Cancel | None) -> int:
        """The passage with the highest score among those of one document; the first if none has a score."""
        request = Request(options, cancel=cancel)
        scored = self._rescore(PreparedQuery(self._engine.prepare(plan)), request, passages)
        return int(scored.numbers[0]) if len(scored.numbers) else passages.start

    def _prepare_texts(self, queries: Sequence[str], cancel: Cancel | None = None) -> Iterator[PreparedQuery]:
        for query in queries:
            _check_text(query)
        return (
            map(self._prepare_terms, queries) if self.statistics else self._prepare_encoded(queries, cancel)
        )

    def _prepare_text(self, query: str) -> PreparedQuery:
        _check_text(query)
        return self._prepare_terms(query) if self.statistics else next(self._prepare_encoded([query]))

    def _prepare_terms(self, query: str) -> PreparedQuery:
        assert self.statistics is not None
        terms = self.analyser.terms(query)
        if not terms and not self.analyser.has_words(query):
            raise empty_query(query)
        return PreparedQuery(self._engine.prepare_terms(*count_terms(terms), self.statistics))

    def _prepare_encoded(
        self, queries: Sequence[str], cancel: Cancel | None = None
    ) -> Iterator[PreparedQuery]:
        """Encode a batch of queries at a time, on all cores."""
        encoder, size = self.text_encoder, _BATCH if cancel is None else _CANCELLABLE_BATCH
        for start in range(0, len(queries), size):
            if cancel is not None and cancel.is_set():
                raise Cancelled("the search was cancelled")
            part = queries[start : start + size]
            yield from map(self.prepare_routed, part, encoder.encode_queries(part))

    def _logit(self, plan: Plan) -> float | None:
        if self.calibration is None or plan.semantic is None:
            return None
        return self.calibration.query_part(plan.weights, plan.semantic)

    def explain(
        self,
        query: str,
        id: str,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
    ) -> Explanation:
        """Explain a document's score: matching query and document tokens, their keys and shares."""
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
        """Like `explain`, for query vectors as in `search_vectors`."""
        from citadel.explain.match import explain_vectors

        query = (keys, weights, vectors, semantic)
        with self.snapshot.whole():
            return explain_vectors(self, *query, id, semantic_mode=semantic_mode, tau=tau, cancel=cancel)

    def explain_text(self, text: str, *, tau: float | None = None, side: str = "document") -> TextExplanation:
        """Every token of a text with its keys and weights in this index, at any τ."""
        from citadel.explain.text import explain_terms, explain_text

        if self.statistics:
            return explain_terms(self, text, tau=tau, side=side)
        encoder = self.encoder if side == "query" else self.document_encoder
        return explain_text(encoder, text, tau=tau, side=side)

    @property
    def text_encoder(self) -> QueryEncoder:
        """What encodes queries; searchers of one model share it."""
        return self._query_encoder() if self._query_encoder else self.encoder

    @property
    def encoder(self) -> Encoder:
        """The model for queries, loaded on first use."""
        if self._encoder is None:
            raise UsageError(
                "this index was built from vectors and has no model for text queries: "
                "use search_vectors or --vectors F.npz"
            )
        return self._encoder()

    @property
    def document_encoder(self) -> Encoder:
        """The model for documents, loaded on first use; usually that for queries too."""
        return self.encoder if self._document_encoder is None else self._document_encoder()

    @cached_property
    def calibration(self) -> Calibration | None:
        """Turns scores into `hit.relevance`; None for bm25 and for models without a `calibration.json`."""
        return None if self._load_calibration is None else self._load_calibration()

    @cached_property
    def analyser(self) -> Analyser:
        """The analyser of a bm25 index."""
        return matching_analyser(self.settings, self.snapshot.storage.location)


def _check_text(query: object) -> None:
    if not isinstance(query, str):
        raise UsageError(f"a query must be a string, not {type(query).__name__}")


def empty_query(query: str) -> EmptyQueryError:
    """The error for a query without words."""
    return EmptyQueryError(f"the query {shorten(query)} has no words to search for: give at least one")
