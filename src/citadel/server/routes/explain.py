"""`POST /v1/explain` and `/v1/explain/text`: explanations as JSON, computed in a worker thread."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from citadel.errors import Cancelled, ServerError
from citadel.filter.parse import given_filter
from citadel.search.index_hybrid import IndexHybrid
from citadel.server.context import server_context
from citadel.server.errors import JsonBytes
from citadel.server.json_route import ERRORS, JsonRoute, check_limit
from citadel.server.pool import PoolJob
from citadel.server.schema import ExplainRequest, ExplainResponse, SearchRequest, TextRequest

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["explain"])


@router.post("/v1/explain", response_model=ExplainResponse)
async def explain(body: ExplainRequest, request: Request) -> Response:
    """Explain a score: query token, key, document token and share."""
    limits = server_context(request).config.limits
    check_limit(limits, "query_characters", len(body.query), "characters in the query")

    def run(job: PoolJob, _: list[Any]) -> bytes:
        return _response_json(job, explain_document(job, body))

    context = server_context(request)
    searcher = context.service.searcher_of(body.mode, body.fusion, body.weights)
    return JsonBytes(await context.answer(PoolJob(searcher, run), request))


@router.post("/v1/explain/text", response_model=ExplainResponse)
async def explain_text(body: TextRequest, request: Request) -> Response:
    """List every token of a text with its keys and weights, at any τ."""
    limits = server_context(request).config.limits
    check_limit(limits, "text_characters", len(body.text), "characters in the text")

    def run(job: PoolJob, _: list[Any]) -> bytes:
        explanation = job.searcher.explain_text(body.text, tau=body.tau, side=body.side)
        return _response_json(job, explanation.to_json())

    context = server_context(request)
    return JsonBytes(await context.answer(PoolJob(context.service.searcher, run), request))


def _response_json(job: PoolJob, explanation: dict[str, Any]) -> bytes:
    total = round((time.perf_counter() - job.created) * 1000, 3)
    generation = job.searcher.snapshot.manifest.generation
    return to_json({"explanation": explanation, "generation": generation, "timings": {"total_ms": total}})


def explain_hits(job: PoolJob, request: SearchRequest, rows: list[dict[str, Any]]) -> None:
    """Add an explanation to each hit; each encodes a document, so cancellation is checked in between."""
    for row in rows:
        if job.cancel.is_set():
            raise Cancelled("the search was cancelled")
        row["explanation"] = _explain(job, request, request.query or "", row["id"])


def explain_document(job: PoolJob, request: ExplainRequest) -> dict[str, Any]:
    """Explain the score of one document; 404 if it does not exist."""
    if not job.searcher.snapshot.locate([request.id]):
        raise ServerError(404, "not_found", "no document has this id: use one from a search response")
    return _explain(job, request, request.query, request.id)


def _explain(job: PoolJob, request: SearchRequest | ExplainRequest, query: str, id: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "semantic_mode": request.semantic_mode,
        "tau": request.tau,
        "cancel": job.cancel,
    }
    if isinstance(job.searcher, IndexHybrid) and isinstance(request, SearchRequest):
        options["filter"] = given_filter(request.filter)  # it decides which documents are candidates
    return job.searcher.explain(query, id, **options).to_json()
