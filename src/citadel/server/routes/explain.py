"""`POST /v1/explain` and `/v1/explain/text`: the JSON of `citadel.explain`, made in a worker's thread."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from citadel.errors import Cancelled, ServerError
from citadel.search.searcher import Searcher
from citadel.server.errors import JsonBytes
from citadel.server.json_route import ERRORS, JsonRoute, parts, within
from citadel.server.pool import Job
from citadel.server.schema import ExplainAnswer, ExplainRequest, SearchRequest, TextRequest

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["explain"])


@router.post("/v1/explain", response_model=ExplainAnswer)
async def explain(body: ExplainRequest, request: Request) -> Response:
    """Which query token met which document token under which key, and its share of the score."""
    server = parts(request)
    within(server.config.limits, "query_characters", len(body.query), "characters of a query")

    def run(job: Job, _: list[Any]) -> bytes:
        return _told(job, explain_document(job, body))

    return await _answer(request, run)


@router.post("/v1/explain/text", response_model=ExplainAnswer)
async def explain_text(body: TextRequest, request: Request) -> Response:
    """Every token of a text with its keys and weights, at any τ."""
    server = parts(request)
    within(server.config.limits, "text_characters", len(body.text), "characters of a text")

    def run(job: Job, _: list[Any]) -> bytes:
        return _told(job, explain_any_text(job.searcher, body))

    return await _answer(request, run)


async def _answer(request: Request, run: Any) -> Response:
    server = parts(request)
    job = Job(server.service.searcher, run)
    return JsonBytes(await server.answer(job, request))


def _told(job: Job, explanation: dict[str, Any]) -> bytes:
    total = round((time.perf_counter() - job.created) * 1000, 3)
    generation = job.searcher.snapshot.manifest.generation
    return to_json({"explanation": explanation, "generation": generation, "timings": {"total_ms": total}})


def explain_hits(job: Job, asked: SearchRequest, rows: list[dict[str, Any]]) -> None:
    """Put an explanation into each hit; each encodes a document again, so it looks whether anybody still waits."""
    for row in rows:
        if job.cancel.is_set():
            raise Cancelled("the search was cancelled")
        row["explanation"] = _explain(job, asked.query or "", row["id"], asked.semantic_mode, asked.tau)


def explain_document(job: Job, asked: ExplainRequest) -> dict[str, Any]:
    """Why this document."""
    if not job.searcher.snapshot.locate([asked.id]):
        raise ServerError(404, "not_found", "no document has this id: take one that a search has given")
    return _explain(job, asked.query, asked.id, asked.semantic_mode, asked.tau)


def explain_any_text(searcher: Searcher, asked: TextRequest) -> dict[str, Any]:
    """What a text is to this index."""
    return searcher.explain_text(asked.text, tau=asked.tau, side=asked.side).to_json()


def _explain(job: Job, query: str, id: str, mode: str, tau: float | None) -> dict[str, Any]:
    return job.searcher.explain(query, id, semantic_mode=mode, tau=tau, cancel=job.cancel).to_json()
