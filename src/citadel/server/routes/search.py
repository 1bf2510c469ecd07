"""`POST /v1/search` and `/v1/search/batch`: what is asked, within the limits, and what a worker does with it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from citadel.errors import Cancelled, ServerError
from citadel.index.snapshot import Snapshot
from citadel.search.hits import Hits
from citadel.server.config import Limits
from citadel.server.errors import JsonBytes
from citadel.server.json_route import ERRORS, JsonRoute, Parts, parts, within
from citadel.server.pool import Job
from citadel.server.routes.explain import explain_hits
from citadel.server.schema import (
    Asked,
    BatchAnswer,
    BatchQuery,
    BatchRequest,
    QueryVectors,
    SearchAnswer,
    SearchRequest,
)

_READ_TOGETHER = 50  # documents at most, fewer where they are long on average
_READ_BYTES = 8 << 20

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["search"])


@router.post("/v1/search", response_model=SearchAnswer, response_model_exclude_none=True)
async def search(body: SearchRequest, request: Request) -> Response:
    """The best k documents for a text, or for given vectors."""
    server = parts(request)
    _check(server, body, [body])
    if body.explain:
        within(server.config.limits, "explained", body.k, "explained hits")
        if body.query is None:
            raise ServerError(422, "fields", "only a text query can be explained: leave explain out")
    return await _answer(server, body, [body], request)


@router.post("/v1/search/batch", response_model=BatchAnswer, response_model_exclude_none=True)
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """The best k documents for each of several queries."""
    server = parts(request)
    within(server.config.limits, "batch", len(body.queries), "queries")
    within(server.config.limits, "hits", len(body.queries) * body.k, "hits")
    _check(server, body, body.queries)
    return await _answer(server, body, body.queries, request)


def _check(server: Parts, asked: Asked, queries: Sequence[SearchRequest | BatchQuery]) -> None:
    limits = server.config.limits
    within(limits, "k", asked.k, "hits")
    for query in queries:
        within(limits, "query_characters", len(query.query or ""), "characters of a query")
        if query.vectors is not None:
            within(limits, "tokens", query.vectors.rows, "tokens of a query")


async def _answer(
    server: Parts, asked: SearchRequest | BatchRequest, queries: Sequence[SearchRequest | BatchQuery], request: Request
) -> Response:
    texts = [query.query for query in queries if query.query is not None]
    work = Search(asked, queries, server)
    job = Job(server.service.searcher, work.run, texts)
    return JsonBytes(await server.answer(job, request, asked.deadline_ms))


class Search:
    """The work of one request, done in a worker's thread: scan, read the documents, write the JSON."""

    def __init__(
        self, asked: SearchRequest | BatchRequest, queries: Sequence[SearchRequest | BatchQuery], server: Parts
    ) -> None:
        self._asked, self._queries, self._metrics = asked, queries, server.metrics
        self._reader = Reader(server.config.limits)

    def run(self, job: Job, prepared: list[Any]) -> bytes:
        """The body of the answer."""
        seconds = {"queue": job.queue_seconds, "encode": job.encode_seconds}
        clock = _Clock(seconds)
        found = self._scan(job, prepared)
        clock.lap("scan")
        rows = [self._reader.rows(hits, job) if self._asked.documents else bare_rows(hits) for hits in found]
        clock.lap("documents")
        if isinstance(self._asked, SearchRequest) and self._asked.explain:
            explain_hits(job, self._asked, rows[0])
        clock.lap("explain")
        for stage in ("encode", "scan", "documents", "explain"):
            self._metrics.stage(stage, seconds[stage])
        return to_json(self._told(job, found, rows, seconds))

    def _scan(self, job: Job, prepared: list[Any]) -> list[Hits]:
        waiting, asked, found = iter(prepared), self._asked, []
        for query in self._queries:
            mode: str = asked.semantic_mode
            if query.vectors is None:
                ready = next(waiting)
            else:
                ready, mode = job.searcher.prepare_vectors(*_arrays(query.vectors)), _mode(query.vectors, mode)
            hits = job.searcher.search_prepared(ready, asked.k, semantic_mode=mode, tau=asked.tau, cancel=job.cancel)
            if query.vectors is not None and not all(map(math.isfinite, hits.scores)):
                raise ServerError(
                    422, "fields", "the query's vectors are so large that a score is infinite: scale them"
                )
            found.append(hits)
        return found

    def _told(
        self, job: Job, found: list[Hits], rows: list[list[dict[str, Any]]], seconds: dict[str, float]
    ) -> dict[str, Any]:
        if isinstance(self._asked, SearchRequest):
            answer: dict[str, Any] = {
                "query": self._asked.query,
                "query_cut": found[0].query_cut,
                "hits": rows[0],
            }
        else:
            answered = zip(self._queries, rows, found, strict=True)
            answer = {"results": [_result(number, *parts) for number, parts in enumerate(answered, 1)]}
        timings = {f"{name}_ms": round(value * 1000, 3) for name, value in seconds.items()}
        timings["total_ms"] = round((time.perf_counter() - job.created) * 1000, 3)
        return answer | {
            "generation": job.searcher.snapshot.manifest.generation,
            "tau": found[0].tau,
            "dot_products": sum(hits.dot_products for hits in found),
            "timings": timings,
        }


class _Clock:
    """Writes down how long each stage took."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._last = seconds, time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage], self._last = now - self._last, now


def bare_rows(hits: Hits) -> list[dict[str, Any]]:
    """Hits as JSON objects, without what the documents say."""
    pairs = zip(hits.ids, hits.scores, strict=True)
    return [{"rank": rank, "id": id, "score": score} for rank, (id, score) in enumerate(pairs, 1)]


class Reader:
    """Hits with title, text and metadata; read a few at a time and cut, to bound the memory."""

    def __init__(self, limits: Limits) -> None:
        self._limit, self._left = limits.hit_characters, limits.answer_characters
        self._advice = (
            f"the hits hold more than {limits.answer_characters:,} characters: "
            "ask for fewer hits, or for documents: false"
        )

    def rows(self, hits: Hits, job: Job) -> list[dict[str, Any]]:
        """All hits of a query as JSON objects."""
        rows: list[dict[str, Any]] = []
        scores, together = hits.scores, read_together(job.searcher.snapshot)
        while len(rows) < len(scores):
            if job.cancel.is_set():
                raise Cancelled("the search was cancelled")
            for id, title, text, metadata in hits.fields(len(rows), len(rows) + together):
                rows.append(self._row(len(rows) + 1, id, scores[len(rows)], title, text) | {"metadata": metadata})
            if self._left < 0:
                raise ServerError(422, "limit", self._advice)
        return rows

    def _row(self, rank: int, id: str, score: float, title: str, text: str) -> dict[str, Any]:
        row: dict[str, Any] = {"rank": rank, "id": id, "score": score, "title": title, "text": text}
        if max(len(title), len(text)) > self._limit:
            row |= {"title": title[: self._limit], "text": text[: self._limit], "text_cut": True}
        self._left -= len(row["title"]) + len(row["text"])
        return row


def read_together(snapshot: Snapshot) -> int:
    """How many documents of average size are read at a time."""
    stored = sum(segment.store.record.length for segment in snapshot.segments)
    documents = sum(segment.documents for segment in snapshot.segments)
    return max(1, min(_READ_TOGETHER, _READ_BYTES * documents // max(stored, 1)))


def _result(place: int, query: SearchRequest | BatchQuery, rows: list[dict[str, Any]], hits: Hits) -> dict[str, Any]:
    given = query.id if isinstance(query, BatchQuery) else None
    id = str(place) if given is None else given
    return {"query_id": id, "query": query.query, "query_cut": hits.query_cut, "hits": rows}


def _arrays(given: QueryVectors) -> tuple[Any, Any, Any, Any]:
    return given.keys, given.weights, given.vectors, given.semantic


def _mode(given: QueryVectors, mode: str) -> str:
    return "off" if given.semantic is None else mode
