"""Objects that all routes of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from citadel.errors import ServerError
from citadel.server.config import ServerConfig
from citadel.server.metrics import Metrics
from citadel.server.pool import Pool, PoolJob
from citadel.server.service import Service

_PREFIX = "/v1/indexes/"


@dataclass(slots=True)
class ServerContext:
    """One index with its configuration, and the worker pool and metrics that all indexes share."""

    service: Service
    pool: Pool
    metrics: Metrics
    config: ServerConfig
    name: str | None = None  # of the index in the request's URL
    draining: bool = False  # set when shutdown begins
    indexes: dict[str, ServerContext] = field(default_factory=dict)  # of the server, by name

    async def answer(self, job: PoolJob, request: Request, deadline_ms: int | None = None) -> Any:
        """Run an admitted job within the server's deadline, or a shorter one from the request."""
        limit = self.config.limits.deadline_ms
        return await self.pool.answer(job, min(limit, deadline_ms or limit) / 1000, request.receive)

    @property
    def services(self) -> list[Service]:
        """The services of all indexes of the server."""
        return [context.service for context in self.indexes.values()]

    def resolve(self, path: str) -> tuple[ServerContext, str]:
        """The index of a URL path, and the path of the route: `/v1/indexes/NAME/search` is `/v1/search`.

        Paths without a name are those of the only index; a server of several has none to choose.
        """
        if not path.startswith(_PREFIX):
            if len(self.indexes) > 1 and path.startswith("/v1/") and path != "/v1/indexes":
                raise ServerError(
                    404, "index", f"this server has several indexes: send it to {_PREFIX}NAME{path[3:]}"
                )
            return self, path
        name, _, route = path.removeprefix(_PREFIX).partition("/")
        if name not in self.indexes:
            raise ServerError(404, "index", "no index has this name: GET /v1/indexes lists them")
        if route in ("indexes", "") or route.startswith("indexes/"):
            raise ServerError(404, "not_found", "no such route: GET /openapi.json lists all routes")
        return self.indexes[name], f"/v1/{route}"


def server_context(request: Request) -> ServerContext:
    """Return the context of the index that a request is for."""
    context: ServerContext = request.scope.get("context") or request.app.state.context
    return context
