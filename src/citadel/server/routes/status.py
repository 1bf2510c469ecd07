"""`/v1/stats`, `/v1/indexes`, `/v1/fields`, `/health/` and `/metrics`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from citadel import __version__, _native
from citadel.errors import ServerError
from citadel.index.listing import list_fields
from citadel.server.context import ServerContext, server_context
from citadel.server.errors import json_response
from citadel.server.index_stats import model_bytes, resident_bytes
from citadel.server.json_route import ERRORS
from citadel.server.metrics import CONTENT_TYPE
from citadel.server.pool import PoolJob
from citadel.server.status_schema import FieldsResponse, HealthResponse, IndexesResponse, StatsResponse

router = APIRouter(responses=ERRORS, tags=["server"])


@router.get("/v1/stats", response_model=StatsResponse)
async def stats(request: Request) -> Response:
    """Return statistics of the index, the model, memory and limits."""
    context = server_context(request)
    await context.pool.admit()

    searcher = context.service.searcher

    def run(_job: PoolJob, _encoded: list[Any]) -> dict[str, Any]:
        return context.service.index_stats.of(searcher)

    index_stats = await context.answer(PoolJob(searcher, run), request)
    memory = {
        "resident_bytes": resident_bytes(),
        "index_bytes": index_stats["index"]["bytes"],
        "model_bytes": model_bytes(searcher),
    }
    return json_response(index_stats | {"memory": memory, "server": _server_stats(context)})


def _server_stats(context: ServerContext) -> dict[str, Any]:
    service = context.service
    return {
        "version": __version__,
        "uptime_seconds": round(time.monotonic() - service.started, 1),
        "instruction_set": _native.instruction_set(),
        "read_only": context.config.read_only,
        "waiting": service.waiting,
        "workers": context.pool.workers,
        "queued": context.pool.waiting,
        "reload_error": service.reload_error,
        "limits": asdict(context.config.limits),
    }


@router.get("/v1/indexes", response_model=IndexesResponse)
async def indexes(request: Request) -> Response:
    """List the indexes that this request's token may read."""
    every = request.app.state.context.indexes
    return json_response({"indexes": [_about(name, every[name]) for name in request.scope["readable"]]})


def _about(name: str, context: ServerContext) -> dict[str, Any]:
    service = context.service
    return {
        "name": name,
        "documents": len(service.searcher),
        "generation": service.generation,
        "router": service.searcher.settings.router,
        "read_only": context.config.read_only,
    }


@router.get("/v1/fields", response_model=FieldsResponse)
async def fields(request: Request) -> Response:
    """Return the metadata fields of the index and what they hold."""
    context = server_context(request)
    await context.pool.admit()

    def run(job: PoolJob, _: list[Any]) -> dict[str, Any]:
        snapshot = job.searcher.snapshot
        rows = [{"name": name, "kind": kind} for name, kind in list_fields(snapshot, job.cancel).items()]
        return {"fields": rows, "generation": snapshot.manifest.generation}

    return json_response(await context.answer(PoolJob(context.service.searcher, run), request))


@router.get("/health/live", response_model=HealthResponse)
async def live() -> Response:
    """Report that the process runs."""
    return json_response({"status": "live"})


@router.get("/health/ready", response_model=HealthResponse)
async def ready(request: Request) -> Response:
    """Report whether the server accepts requests; 503 while it stops."""
    context = server_context(request)
    if context.draining:
        raise ServerError(503, "stopping", "this server is stopping: use another one", 1)
    if len(context.indexes) > 1:  # each has its own generation
        return json_response({"status": "ready"})
    return json_response({"status": "ready", "generation": context.service.generation})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Return metrics in the Prometheus text format."""
    return Response(server_context(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE})
