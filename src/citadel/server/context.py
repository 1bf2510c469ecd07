"""Objects that all routes of one server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request

from citadel.server.config import ServerConfig
from citadel.server.metrics import Metrics
from citadel.server.pool import Pool, PoolJob
from citadel.server.service import Service


@dataclass(slots=True)
class ServerContext:
    """The service, worker pool, metrics and configuration of one server."""

    service: Service
    pool: Pool
    metrics: Metrics
    config: ServerConfig
    draining: bool = False  # set when shutdown begins

    async def answer(self, job: PoolJob, request: Request, deadline_ms: int | None = None) -> Any:
        """Run an admitted job within the server's deadline, or a shorter one from the request."""
        limit = self.config.limits.deadline_ms
        return await self.pool.answer(job, min(limit, deadline_ms or limit) / 1000, request.receive)


def server_context(request: Request) -> ServerContext:
    """Return the context of the server that received this request."""
    context: ServerContext = request.app.state.context
    return context
