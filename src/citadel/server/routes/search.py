"""`POST /v1/search` and `/v1/search/batch`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from citadel.errors import Cancelled, ServerError
from citadel.filter.parse import given_filter
from citadel.filter.tree import Filter, comparisons
from citadel.index.listing import count_fields, unknown_fields
from citadel.index.snapshot import Snapshot
from citadel.search.hits import Hits
from citadel.server.config import Limits
from citadel.server.context import ServerContext, server_context
from citadel.server.errors import JsonBytes
from citadel.server.filter_schema import FACET_VALUES, facet_rows
from citadel.server.json_route import ERRORS, JsonRoute, check_limit
from citadel.server.pool import PoolJob
from citadel.server.routes.explain import explain_hits
from citadel.server.schema import (
    BatchQuery,
    BatchRequest,
    BatchResponse,
    QueryVectors,
    SearchOptions,
    SearchRequest,
    SearchResponse,
)

_READ_DOCUMENTS = 50  # read at a time; fewer where documents are long on average
_READ_BYTES = 8 << 20

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["search"])


@router.post("/v1/search", response_model=SearchResponse, response_model_exclude_none=True)
async def search(body: SearchRequest, request: Request) -> Response:
    """Return the best k documents for a text or for vectors."""
    context = server_context(request)
    _check(context, body, [body])
    if body.explain:
        check_limit(context.config.limits, "explained", body.k, "hits to explain")
        if body.query is None:
            raise ServerError(422, "fields", "only a text query can be explained: leave explain out")
    return await _answer(context, body, [body], request)


@router.post("/v1/search/batch", response_model=BatchResponse, response_model_exclude_none=True)
async def search_batch(body: BatchRequest, request: Request) -> Response:
    """Return the best k documents for each of several queries."""
    context = server_context(request)
    check_limit(context.config.limits, "batch", len(body.queries), "queries in one request")
    check_limit(context.config.limits, "hits", len(body.queries) * body.k, "hits (k × queries)")
    _check(context, body, body.queries)
    return await _answer(context, body, body.queries, request)


def _check(
    context: ServerContext, options: SearchOptions, queries: Sequence[SearchRequest | BatchQuery]
) -> None:
    limits = context.config.limits
    check_limit(limits, "k", options.k, "hits")
    if options.offset:
        check_limit(limits, "depth", options.offset + options.k, "hits (offset + k)")
    for query in queries:
        check_limit(limits, "query_characters", len(query.query or ""), "characters in the query")
        if query.vectors is not None:
            check_limit(limits, "tokens", query.vectors.num_tokens, "tokens in the query")


async def _answer(
    context: ServerContext,
    body: SearchRequest | BatchRequest,
    queries: Sequence[SearchRequest | BatchQuery],
    request: Request,
) -> Response:
    texts = [query.query for query in queries if query.query is not None]
    if body.mode != "model" and len(texts) < len(queries):
        raise ServerError(422, "fields", f"the mode {body.mode} needs the text of each query, not vectors")
    searcher = context.service.searcher_of(body.mode, body.fusion, body.weights)
    job = PoolJob(searcher, SearchTask(body, queries, context).run, texts)
    return JsonBytes(await context.answer(job, request, body.deadline_ms))


class SearchTask:
    """One search request in a worker thread: scan, read the documents, write the JSON."""

    def __init__(
        self,
        request: SearchRequest | BatchRequest,
        queries: Sequence[SearchRequest | BatchQuery],
        context: ServerContext,
    ) -> None:
        self._request, self._queries, self._metrics = request, queries, context.metrics
        self._reader = HitReader(context.config.limits)

    def run(self, job: PoolJob, encoded: list[Any]) -> bytes:
        """Return the response body."""
        seconds = {"queue": job.queue_seconds, "encode": job.encode_seconds}
        stopwatch = _Stopwatch(seconds)
        filter = given_filter(self._request.filter)
        results = self._scan(job, encoded, filter)
        matching = {"matching": job.searcher.count(filter, cancel=job.cancel)}
        matching |= self._facets(job, filter) | self._unknown_fields(job, filter)
        stopwatch.lap("scan")
        rows = [self._rows(hits, job) for hits in results]
        stopwatch.lap("documents")
        if isinstance(self._request, SearchRequest) and self._request.explain:
            explain_hits(job, self._request, rows[0])
        stopwatch.lap("explain")
        for stage in ("encode", "scan", "documents", "explain"):
            self._metrics.stage(stage, seconds[stage])
        return to_json(self._response(results, rows) | matching | self._summary(job, results, seconds))

    def _facets(self, job: PoolJob, filter: Filter | None) -> dict[str, Any]:
        names = self._request.facets if isinstance(self._request, SearchRequest) else []
        if not names:
            return {}
        facets = count_fields(job.searcher.snapshot, names, filter, FACET_VALUES, job.cancel)
        return {"facets": facet_rows(facets)}

    def _unknown_fields(self, job: PoolJob, filter: Filter | None) -> dict[str, Any]:
        """Fields of the request that no document has; the index must not be empty."""
        names = list(self._request.facets) if isinstance(self._request, SearchRequest) else []
        names += [self._request.group_by] if self._request.group_by is not None else []
        if filter is not None:
            names += [part.field for part in comparisons(filter) if not part.tests_presence]
        if not names or not len(job.searcher):
            return {}
        unknown = unknown_fields(job.searcher.snapshot, names, job.cancel)
        return {"unknown_fields": unknown} if unknown else {}

    def _rows(self, hits: Hits, job: PoolJob) -> list[dict[str, Any]]:
        if not self._request.documents:
            rows = id_rows(hits)
            return self._reader.with_passages(rows, hits) if self._request.passages else rows
        return self._reader.rows(hits, job, self._request.passages)

    def _scan(self, job: PoolJob, encoded: list[Any], filter: Filter | None) -> list[Hits]:
        texts, request, results = iter(encoded), self._request, []
        for query in self._queries:
            mode: str = request.semantic_mode
            if query.vectors is None:
                prepared = next(texts)
            else:
                prepared, mode = (
                    job.searcher.prepare_vectors(*_arrays(query.vectors)),
                    _mode(query.vectors, mode),
                )
            hits = job.searcher.search_prepared(
                prepared,
                request.k,
                semantic_mode=mode,
                tau=request.tau,
                cancel=job.cancel,
                filter=filter,
                offset=request.offset,
                min_score=request.min_score,
                group_by=request.group_by,
                ef=request.ef,
                effort=request.effort,
                min_relevance=request.min_relevance,
            )
            if query.vectors is not None and not all(map(math.isfinite, hits.scores)):
                raise ServerError(422, "fields", "a score is infinite: scale the query's vectors down")
            results.append(hits)
        return results

    def _response(self, results: list[Hits], rows: list[list[dict[str, Any]]]) -> dict[str, Any]:
        answers = [
            {"query": query.query, "query_cut": result.query_cut, "hits": hits}
            for query, result, hits in zip(self._queries, results, rows, strict=True)
        ]
        if isinstance(self._request, SearchRequest):
            return answers[0]
        ids = [_query_id(number, query) for number, query in enumerate(self._queries, 1)]
        return {"results": [{"query_id": id} | answer for id, answer in zip(ids, answers, strict=True)]}

    def _summary(self, job: PoolJob, results: list[Hits], seconds: dict[str, float]) -> dict[str, Any]:
        timings = {f"{name}_ms": round(value * 1000, 3) for name, value in seconds.items()}
        timings["total_ms"] = round((time.perf_counter() - job.created) * 1000, 3)
        return {
            "generation": job.searcher.snapshot.manifest.generation,
            "tau": results[0].tau,
            "dot_products": sum(hits.dot_products for hits in results),
            "timings": timings,
        } | completeness(results)


def completeness(results: Sequence[Hits]) -> dict[str, Any]:
    """Whether all shards answered every query, for an index served on a cluster."""
    shards = [hits.shards for hits in results if hits.shards is not None]
    if not shards:
        return {}
    answered, total = min(shards)
    return {"complete": answered == total, "shards": f"{answered}/{total}"}


class _Stopwatch:
    """Records the seconds of each stage."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._last = seconds, time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage], self._last = now - self._last, now


def id_rows(hits: Hits) -> list[dict[str, Any]]:
    """Convert hits to JSON objects with rank, id and score."""
    pairs = zip(hits.ids, hits.scores, strict=True)
    rows = [
        {"rank": rank, "id": id, "score": score} for rank, (id, score) in enumerate(pairs, hits.offset + 1)
    ]
    return [row | _relevance_and_parts(hits, index) for index, row in enumerate(rows)]


def _relevance_and_parts(hits: Hits, index: int) -> dict[str, Any]:
    value, parts = hits.relevance(index), hits.parts(index)
    relevance = {} if value is None else {"relevance": value}
    return relevance | ({"parts": [asdict(part) for part in parts]} if parts else {})


class HitReader:
    """Reads title, text and metadata of hits, a few at a time and cut, to bound the memory."""

    def __init__(self, limits: Limits) -> None:
        self._max_characters, self._remaining = limits.hit_characters, limits.answer_characters
        self._too_long = (
            f"the hits hold more than {limits.answer_characters:,} characters: "
            "request fewer hits, or send documents: false"
        )

    def rows(self, hits: Hits, job: PoolJob, passages: bool = False) -> list[dict[str, Any]]:
        """Convert the hits of one query to JSON objects."""
        rows: list[dict[str, Any]] = []
        scores, step = hits.scores, documents_per_read(job.searcher.snapshot)
        limit = self._max_characters + 1  # one more, to see whether a text is cut
        while len(rows) < len(scores):
            if job.cancel.is_set():
                raise Cancelled("the search was cancelled")
            for id, title, text, metadata in hits.fields(len(rows), len(rows) + step, limit):
                rank = hits.offset + len(rows) + 1
                row = self._row(rank, id, scores[len(rows)], title, text) | {"metadata": metadata}
                row |= _relevance_and_parts(hits, len(rows))
                rows.append(row | self._passages(hits, len(rows), passages))
            if self._remaining < 0:
                raise ServerError(422, "limit", self._too_long)
        return rows

    def with_passages(self, rows: list[dict[str, Any]], hits: Hits) -> list[dict[str, Any]]:
        """Rows with the passages of long documents and without their texts."""
        complete = [row | self._passages(hits, index, others=True) for index, row in enumerate(rows)]
        if self._remaining < 0:
            raise ServerError(422, "limit", self._too_long)
        return complete

    def _passages(self, hits: Hits, index: int, others: bool) -> dict[str, Any]:
        """The best passage of a long document, and its other passages."""
        best = hits.best_passage(index)
        if best is None:
            return {}
        rest = [asdict(passage) for passage in (hits.other_passages(index) if others else ())]
        self._remaining -= len(best.text) + sum(len(passage["text"]) for passage in rest)
        return {"passage": asdict(best)} | ({"passages": rest} if others else {})

    def _row(self, rank: int, id: str, score: float, title: str, text: str) -> dict[str, Any]:
        row: dict[str, Any] = {"rank": rank, "id": id, "score": score, "title": title, "text": text}
        limit = self._max_characters
        if max(len(title), len(text)) > limit:
            row |= {"title": title[:limit], "text": text[:limit], "text_cut": True}
        self._remaining -= len(row["title"]) + len(row["text"])
        return row


def documents_per_read(snapshot: Snapshot) -> int:
    """Return how many documents of average size to read at a time."""
    stored = sum(segment.store.record.length for segment in snapshot.segments)
    documents = sum(segment.documents for segment in snapshot.segments)
    return max(1, min(_READ_DOCUMENTS, _READ_BYTES * documents // max(stored, 1)))


def _query_id(number: int, query: SearchRequest | BatchQuery) -> str:
    id = query.id if isinstance(query, BatchQuery) else None
    return str(number) if id is None else id


def _arrays(query: QueryVectors) -> tuple[Any, Any, Any, Any]:
    return query.keys, query.weights, query.vectors, query.semantic


def _mode(query: QueryVectors, mode: str) -> str:
    return "off" if query.semantic is None else mode
