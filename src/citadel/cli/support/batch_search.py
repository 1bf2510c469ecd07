"""Search many queries in parts, so that a long file shows progress and prints early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from citadel.cli.support.output import say
from citadel.progress import Progress
from citadel.types import Ranking, check_trec_ids

if TYPE_CHECKING:
    from citadel.cli.support.vectors import VectorQuery
    from citadel.filter.tree import Filter
    from citadel.search.index_hybrid import IndexHybrid
    from citadel.search.searcher import Searcher
    from citadel.types import Hit

_PART = 256  # queries


class QueryHits(NamedTuple):
    """One query with its hits; `query` is None where it was given as vectors."""

    query_id: str
    query: str | None
    hits: Sequence[Hit]


class SearchOptions(TypedDict, total=False):
    """Options that every method of `Searcher` takes."""

    semantic_mode: str
    tau: float | None
    filter: Filter | None
    offset: int
    min_score: float | None
    group_by: str | None
    ef: int | None
    effort: float | None


def search_texts(
    searcher: Searcher | IndexHybrid,
    queries: Sequence[tuple[str, str]],
    k: int,
    min_relevance: float | None = None,
    **options: Unpack[SearchOptions],
) -> Iterator[QueryHits]:
    """Search (id, text) queries, in order."""
    if len(queries) == 1:  # all threads for the one query
        [(id, text)] = queries
        yield QueryHits(id, text, searcher.search(text, k, min_relevance=min_relevance, **options))
        return
    with Progress("Searching", "queries", len(queries)) as progress:
        for start in range(0, len(queries), _PART):
            part = queries[start : start + _PART]
            ranking = searcher.search_batch(part, k, min_relevance=min_relevance, **options)
            progress(start + len(part))
            yield from (
                QueryHits(id, text, hits) for (id, text), hits in zip(part, ranking.hits, strict=True)
            )


def is_cut(hits: Sequence[Hit]) -> bool:
    """Whether the query of these hits was longer than the model reads."""
    return bool(getattr(hits, "query_cut", False))


def warn_of_cuts(results: Iterator[QueryHits], searcher: Searcher | IndexHybrid) -> Iterator[QueryHits]:
    """Yield the results and print a warning for each query that was cut."""
    for result in results:
        if is_cut(result.hits):
            limit = searcher.encoder.config.query_length
            say(f"query {result.query_id}: cut at the {limit} tokens that the model reads: shorten it")
        yield result


def search_vectors(
    searcher: Searcher, queries: Sequence[tuple[str, VectorQuery]], k: int, **options: Unpack[SearchOptions]
) -> Iterator[QueryHits]:
    """Search queries given as vectors, in order."""
    with Progress("Searching", "queries", len(queries)) as progress:
        for number, (id, arrays) in enumerate(queries, 1):
            hits = searcher.search_vectors(**arrays, k=k, **options)
            progress(number)
            yield QueryHits(id, None, hits)


def check_trec_run(searcher: Searcher | IndexHybrid, query_ids: Iterable[str]) -> None:
    """Raise if a query or a document of the index has an id that a TREC run cannot hold."""
    check_trec_ids(query_ids)
    check_trec_ids(searcher.snapshot.ids_with_white_space())


def to_ranking(results: Iterable[QueryHits]) -> Ranking:
    """Join the hits of all queries."""
    rows = list(results)
    return Ranking(tuple(row.query_id for row in rows), tuple(row.hits for row in rows))
