"""Queries to answers, a part at a time, so that a long file of queries shows progress and prints early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from citadel.progress import Progress

if TYPE_CHECKING:
    from citadel.cli.support.vectors import VectorQuery
    from citadel.search.searcher import Searcher
    from citadel.types import Hit

_PART = 256  # queries


class Answer(NamedTuple):
    """One query with its hits; `query` is None where it was given as vectors."""

    query_id: str
    query: str | None
    hits: Sequence[Hit]


def answer_texts(
    searcher: Searcher, queries: Sequence[tuple[str, str]], k: int, semantic: str = "auto", tau: float | None = None
) -> Iterator[Answer]:
    """The answers to queries of text, in order."""
    if len(queries) == 1:  # all threads for the one query
        [(id, text)] = queries
        yield Answer(id, text, searcher.search(text, k, semantic_mode=semantic, tau=tau))
        return
    with Progress("Searching", "queries", len(queries)) as progress:
        for start in range(0, len(queries), _PART):
            part = queries[start : start + _PART]
            ranking = searcher.search_batch(part, k, semantic_mode=semantic, tau=tau)
            progress(start + len(part))
            yield from (Answer(id, text, hits) for (id, text), hits in zip(part, ranking.hits, strict=True))


def answer_vectors(
    searcher: Searcher,
    queries: Sequence[tuple[str, VectorQuery]],
    k: int,
    semantic: str = "auto",
    tau: float | None = None,
) -> Iterator[Answer]:
    """The answers to queries given as vectors, in order."""
    with Progress("Searching", "queries", len(queries)) as progress:
        for number, (id, arrays) in enumerate(queries, 1):
            hits = searcher.search_vectors(**arrays, k=k, semantic_mode=semantic, tau=tau)
            progress(number)
            yield Answer(id, None, hits)
