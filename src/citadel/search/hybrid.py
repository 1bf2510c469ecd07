"""Hybrid search: several searchers answer a query, and their hits are fused into one ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from citadel.errors import EmptyQueryError, InputError, UsageError
from citadel.filter.parse import GivenFilter
from citadel.search.async_search import run_cancellable
from citadel.search.fusion import Fusion, check_names, is_cut
from citadel.search.hits import Hits
from citadel.search.ranked_hits import RankedHits, Row, fewest_shards
from citadel.search.request import check_page, check_relevance
from citadel.search.rerank import Rerank, RerankPage
from citadel.search.searcher import PreparedQuery, Searcher, empty_query
from citadel.text.queries import named_queries
from citadel.text.values import unwrapped
from citadel.types import Hit, Ranking, ScorePart

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.explain.hybrid import HybridExplanation
    from citadel.explain.result import Explanation


class HybridQuery(NamedTuple):
    """A text prepared for each searcher; None where it is not searched, or has no words."""

    text: str
    parts: tuple[PreparedQuery | None, ...]


class Hybrid:
    """Searches several searchers and fuses their hits; documents are the same if their ids are.

    `method` and `weights` are those of `citadel.fuse`. Each searcher contributes its best `candidates` hits,
    at least `offset + k`. `names`, for `hit.parts`, are the models' names and `bm25` by default.

    >>> import citadel, tempfile
    >>> texts = {"d1": "a theory of relativity", "d2": "a history of Rome", "d3": "general relativity"}
    >>> model, bm25 = (citadel.Index.create(tempfile.mkdtemp(), model=name) for name in ("default", "bm25"))
    >>> for index in (model, bm25):
    ...     added = index.add({"id": id, "text": text} for id, text in texts.items())
    >>> hybrid = citadel.Hybrid([index.commit().searcher() for index in (model, bm25)], weights=[0.7, 0.3])
    >>> hit = hybrid.search("relativity theory", k=1)[0]
    >>> hit.id, [(part.name, part.rank) for part in hit.parts]
    ('d1', [('default', 1), ('bm25', 1)])
    """

    same_index = False  # whether document numbers mean the same in all searchers

    def __init__(
        self,
        searchers: Sequence[Searcher],
        method: str = "linear",
        weights: Sequence[float] | None = None,
        *,
        candidates: int = 100,
        names: Sequence[str] | None = None,
    ) -> None:
        self.searchers = list(searchers) if isinstance(searchers, list | tuple) else []
        if not self.searchers or not all(isinstance(each, Searcher) for each in self.searchers):
            raise UsageError(
                "Hybrid takes a list of at least one searcher: write [a.searcher(), b.searcher()]"
            )
        if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
            raise UsageError(f"candidates must be a whole number of 1 or more, not {candidates!r}")
        given = _names(self.searchers) if names is None else names
        self.fusion = Fusion(check_names(given, len(self.searchers)), method, weights)
        self.candidates = candidates

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
    ) -> RankedHits:
        """The best k documents of the fused ranking, with the options of `Searcher.search`.

        `min_score` applies to fused scores. `semantic_mode`, `tau`, `ef` and `effort` go to the searchers
        that they fit. `min_relevance` leaves out hits with a lower relevance or none.
        """
        page = _Page(k, offset, min_score, min_relevance, group_by, rerank, rerank_k, self.same_index)
        options = self._options(semantic_mode, tau, ef, cancel, filter, group_by, effort)
        return page.hits(self.fusion, query, self._results(query, page.depth(self.candidates), options))

    async def asearch(
        self, query: str, k: int = 10, *, cancel: Cancel | None = None, **options: Any
    ) -> RankedHits:
        """`search` in a worker thread, with texts and metadata; cancelling the task stops the search."""

        def work(flag: Cancel) -> RankedHits:
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

    def prepare(self, queries: Sequence[str]) -> list[HybridQuery]:
        """Prepare texts for `search_prepared`; a model encodes several at once."""
        columns = [
            prepared(searcher, queries) if weight else [None] * len(queries)
            for searcher, weight in zip(self.searchers, self.fusion.weights, strict=True)
        ]
        return [
            require_words(HybridQuery(text, parts))
            for text, parts in zip(queries, zip(*columns, strict=True), strict=True)
        ]

    def search_prepared(
        self,
        query: HybridQuery,
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
    ) -> RankedHits:
        """The best k documents for a query from `prepare`."""
        page = _Page(k, offset, min_score, min_relevance, group_by, None, 1, self.same_index)
        options = self._options(semantic_mode, tau, ef, cancel, filter, group_by, effort)
        depth = page.depth(self.candidates)
        results: list[Sequence[Hit]] = [
            () if part is None else searcher.search_prepared(part, depth, **own)
            for searcher, part, own in zip(self.searchers, query.parts, options, strict=True)
        ]
        return page.hits(self.fusion, query.text, results)

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
        page = _Page(k, offset, min_score, min_relevance, group_by, rerank, rerank_k, self.same_index)
        options = self._options(semantic_mode, tau, ef, cancel, filter, group_by, effort)
        depth = page.depth(self.candidates)
        try:
            parts = [
                searcher.search_batch(named, depth, **own).hits if weight else [()] * len(named)
                for searcher, weight, own in zip(self.searchers, self.fusion.weights, options, strict=True)
            ]
            results = [list(own) for own in zip(*parts, strict=True)]
        except EmptyQueryError:  # perhaps of one searcher only
            results = [self._results(text, depth, options) for _, text in named]
        fused = [page.hits(self.fusion, text, own) for (_, text), own in zip(named, results, strict=True)]
        return Ranking(tuple(id for id, _ in named), tuple(fused))

    def explain(
        self,
        query: str,
        id: str,
        *,
        semantic_mode: str = "auto",
        tau: float | None = None,
        cancel: Cancel | None = None,
        filter: GivenFilter | None = None,
    ) -> HybridExplanation:
        """Explain a document's fused score: its score, rank and gain in each searcher, and why.

        The candidates of each searcher depend on the `filter`, so give that of the search.
        """
        from citadel.explain.hybrid import HybridExplanation, HybridPart

        options = self._options(semantic_mode, tau, None, cancel, filter, None)
        rows = self.fusion.rows(self._results(query, self.candidates, options))
        row = next((row for row in rows if row.id == id), None)
        empty = [ScorePart(name, None, None, 0.0) for name in self.fusion.names]
        parts = empty if row is None else row.parts
        explanations = self._explanations(query, id, semantic_mode, tau, cancel)
        pairs = zip(parts, self.fusion.weights, explanations, strict=True)
        return HybridExplanation(
            query, id, self.fusion.method, 0.0 if row is None else row.score,
            tuple(HybridPart(part.name, weight, part.score, part.rank, part.gain, own)
                  for part, weight, own in pairs),
        )  # fmt: skip

    def _explanations(
        self, query: str, id: str, semantic_mode: str, tau: float | None, cancel: Cancel | None
    ) -> list[Explanation | None]:
        """The explanation of each searcher that has the document and words of the query."""
        explanations: list[Explanation | None] = []
        missing: InputError | None = None
        for searcher, own in zip(
            self.searchers, self._options(semantic_mode, tau, None, cancel, None, None), strict=True
        ):
            try:
                explanations.append(searcher.explain(query, id, **own))
            except InputError as error:
                explanations.append(None)
                missing = error
        if missing is not None and not any(explanations):
            raise missing
        return explanations

    def _results(self, query: str, depth: int, options: Sequence[dict[str, Any]]) -> list[Sequence[Hit]]:
        """The hits of each searcher; a query that is empty for one may have words for another."""
        results: list[Sequence[Hit]] = []
        empty: EmptyQueryError | None = None
        answered = False
        for searcher, weight, own in zip(self.searchers, self.fusion.weights, options, strict=True):
            try:
                results.append(searcher.search(query, depth, **own) if weight else ())
                answered |= weight > 0
            except EmptyQueryError as error:
                results.append(())
                empty = error
        if empty is not None and not answered:
            raise empty
        return results

    def _options(
        self,
        semantic_mode: str,
        tau: float | None,
        ef: int | None,
        cancel: Cancel | None,
        filter: GivenFilter | None,
        group_by: str | None,
        effort: float | None = None,
    ) -> list[dict[str, Any]]:
        """The options of each searcher; those that fit none go to all, which refuse them."""
        given = {"cancel": cancel, "filter": filter, "group_by": group_by}
        common = {name: value for name, value in given.items() if value is not None}
        depth = {"ef": ef, "effort": effort}
        semantic: dict[str, Any] = {name: value for name, value in depth.items() if value is not None}
        semantic["semantic_mode"] = semantic_mode
        takes_semantic = [searcher.settings.semantic is not None for searcher in self.searchers]
        takes_tau = [searcher.settings.router == "dynamic" for searcher in self.searchers]
        options = []
        for has_semantic, has_tau in zip(takes_semantic, takes_tau, strict=True):
            own: dict[str, Any] = dict(common)
            own |= semantic if has_semantic or not any(takes_semantic) else {}
            own |= {"tau": tau} if tau is not None and (has_tau or not any(takes_tau)) else {}
            options.append(own)
        return options


class _Page:
    """Which part of a fused ranking is returned."""

    def __init__(
        self,
        k: int,
        offset: int,
        min_score: float | None,
        min_relevance: float | None,
        group_by: str | None,
        rerank: Rerank | None,
        rerank_k: int,
        same_index: bool = False,
    ) -> None:
        self._same_index = same_index
        page = (unwrapped(k), unwrapped(offset), unwrapped(min_score))
        self._k, self._offset, self._min_score = check_page(*page)
        self._least = None if min_relevance is None else check_relevance(unwrapped(min_relevance))
        self._group_by = group_by
        self._reranking = None if rerank is None else RerankPage(rerank, rerank_k, *page)

    def depth(self, candidates: int) -> int:
        """Hits that each searcher returns."""
        if not self._k:
            return 0
        wanted = self._k + self._offset if self._reranking is None else self._reranking.depth
        return max(candidates, wanted)

    def hits(self, fusion: Fusion, query: str, results: Sequence[Sequence[Hit]]) -> RankedHits:
        """Fuse the results of one query and keep the requested part."""
        rows: Sequence[Row] = fusion.rows(results, self._same_index)
        if self._group_by is not None:
            rows = _best_of_groups(rows, self._group_by)
        if self._least is not None:
            rows = _relevant(rows, self._least, results)
        query_cut, shards = any(map(is_cut, results)), fewest_shards(results)
        if self._reranking is not None:
            first = RankedHits(rows[: self._reranking.depth], query_cut=query_cut, shards=shards)
            return self._reranking.hits(query, first)
        tau = max((hits.tau for hits in results if isinstance(hits, Hits)), default=0.0)
        if self._min_score is not None:
            rows = [row for row in rows if row.score >= self._min_score]
        page = rows[self._offset : self._offset + self._k]
        return RankedHits(page, self._offset, query_cut, tau, shards)


def prepared(searcher: Searcher, queries: Sequence[str]) -> Sequence[PreparedQuery | None]:
    """The queries prepared for a searcher; None for one that has no words for it."""
    try:
        return searcher.prepare(queries)
    except EmptyQueryError:
        if len(queries) == 1:
            return [None]
        return [part for query in queries for part in prepared(searcher, [query])]


def require_words(query: HybridQuery) -> HybridQuery:
    """Raise EmptyQueryError if no searcher has words of the query."""
    if not any(query.parts):
        raise empty_query(query.text)
    return query


def _best_of_groups(rows: Sequence[Row], field: str) -> list[Row]:
    """The first row of each value of a metadata field; searchers may differ in a group's best document."""
    metadata = (fields[3] for fields in RankedHits(rows).fields(0, len(rows), 0))
    best: dict[Any, Row] = {}
    for row, values in zip(rows, metadata, strict=True):
        value = values.get(field)
        key = ("id", row.id) if value is None else (isinstance(value, bool), value)
        best.setdefault(key, row)
    return list(best.values())


def _relevant(rows: Sequence[Row], least: float, results: Sequence[Sequence[Hit]]) -> list[Row]:
    """The rows with at least this relevance. One without is not among a model's candidates."""
    if any(results) and not any(row.relevance is not None for row in rows):
        raise UsageError(
            "min_relevance needs a searcher with semantic vectors and a model with a calibration.json: "
            "leave it out, or use min_score"
        )
    return [row for row in rows if row.relevance is not None and row.relevance >= least]


def _names(searchers: Iterable[Searcher]) -> list[str]:
    """Names of models, or of routers; repeated ones are numbered."""
    names: list[str] = []
    for searcher in searchers:
        name = searcher.settings.model or searcher.settings.router
        others = sum(known == name or known.startswith(f"{name} ") for known in names)
        names.append(f"{name} {others + 1}" if others else name)
    return names
