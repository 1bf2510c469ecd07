"""What the server tells of itself: stats, health, metrics."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from citadel import __version__, _native
from citadel.errors import ServerError
from citadel.server.errors import json_response
from citadel.server.index_stats import model_bytes, resident_bytes
from citadel.server.json_route import ERRORS, Parts, parts
from citadel.server.metrics import CONTENT_TYPE
from citadel.server.pool import Job
from citadel.server.schema import Health, StatsAnswer

router = APIRouter(responses=ERRORS, tags=["server"])


@router.get("/v1/stats", response_model=StatsAnswer)
async def stats(request: Request) -> Response:
    """What the index holds, its list sizes and longest lists, memory, limits."""
    server = parts(request)

    def run(job: Job, _: list[Any]) -> dict[str, Any]:
        return server.service.figures.of(job.searcher)

    searcher = server.service.searcher
    figures = await server.answer(Job(searcher, run), request)
    memory = {
        "resident_bytes": resident_bytes(),
        "index_bytes": figures["index"]["bytes"],
        "model_bytes": model_bytes(searcher),
    }
    return json_response(figures | {"memory": memory, "server": _server_figures(server)})


def _server_figures(server: Parts) -> dict[str, Any]:
    service = server.service
    return {
        "version": __version__,
        "uptime_seconds": round(time.monotonic() - service.started, 1),
        "instruction_set": _native.instruction_set(),
        "read_only": server.config.read_only,
        "waiting": service.waiting,
        "workers": server.pool.workers,
        "queued": server.pool.waiting,
        "reload_error": service.reload_error,
        "limits": asdict(server.config.limits),
    }


@router.get("/health/live", response_model=Health)
async def live() -> Response:
    """Whether the process runs."""
    return json_response({"status": "live"})


@router.get("/health/ready", response_model=Health)
async def ready(request: Request) -> Response:
    """Whether requests should be sent here."""
    if request.app.state.gate.draining:
        raise ServerError(503, "stopping", "this server is stopping: ask another", 1)
    return json_response({"status": "ready", "generation": parts(request).service.generation})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Figures in Prometheus' text format."""
    return Response(parts(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE})
