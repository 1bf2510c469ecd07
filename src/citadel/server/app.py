"""The application: routes, what they share, and the gate before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from citadel import __version__
from citadel.errors import CitadelError
from citadel.server.config import Limits, ServerConfig
from citadel.server.errors import on_citadel_error, on_http_exception, on_validation_error
from citadel.server.json_route import JsonRoute, Parts
from citadel.server.metrics import Metrics
from citadel.server.middleware import Gate
from citadel.server.pool import Pool
from citadel.server.routes import documents, explain, search, status
from citadel.server.service import Service
from citadel.server.static_files import page_files, page_routes
from citadel.server.tokens import permission

_ABOUT = "Multi-vector retrieval with dynamic lexical routing. docs/reference/http.md tells more."
# Which limit is the `maximum`, `maxLength` or `maxItems` of which field.
_LIMITED = (
    ("SearchRequest", "k", "maximum", "k"),
    ("BatchRequest", "k", "maximum", "k"),
    ("BatchRequest", "queries", "maxItems", "batch"),
    ("AddRequest", "documents", "maxItems", "documents"),
    ("DeleteRequest", "ids", "maxItems", "documents"),
    ("ExplainRequest", "query", "maxLength", "query_characters"),
    ("TextRequest", "text", "maxLength", "text_characters"),
)


def create_app(service: Service) -> Gate:
    """An ASGI application over an index, which it closes at its end."""
    metrics, config, location = Metrics(), service.config, service.location
    pool = Pool(config.searches_at_once, config.limits.queue, metrics.taken)
    app = _routes(_Lifespan(service, pool, config))
    app.state.parts, app.state.location = Parts(service, pool, metrics, config), location
    _gauges(metrics, service, pool)
    schema = described(app, config.limits)
    paths = frozenset(("/openapi.json", *schema["paths"], *page_files()))
    app.state.gate = gate = Gate(app, config, metrics, paths, location)
    gate.admit = pool.admit
    gate.direct |= {("POST", route.path): route.get_route_handler() for route in json_routes()}
    app.openapi = lambda: schema  # type: ignore[method-assign]
    return gate


def json_routes() -> list[JsonRoute]:
    """The routes that read a body."""
    routes = [route for part in (search, explain, documents) for route in part.router.routes]
    return [route for route in routes if isinstance(route, JsonRoute) and route.body_field is not None]


def _routes(lifespan: _Lifespan) -> FastAPI:
    app = FastAPI(
        title="citadel",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    for part in (search, explain, documents, status):
        app.include_router(part.router)
    app.router.routes += page_routes()
    app.add_exception_handler(CitadelError, on_citadel_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_citadel_error)
    return app


class _Lifespan:
    """Starts the workers and the look-out for new generations with the server, and ends them with it."""

    def __init__(self, service: Service, pool: Pool, config: ServerConfig) -> None:
        self._service, self._pool, self._seconds = service, pool, config.reload_seconds

    @contextlib.asynccontextmanager
    async def __call__(self, _: FastAPI) -> AsyncIterator[None]:
        self._pool.start()
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            self._pool.stop()
            self._service.close()

    async def _look(self) -> None:
        while self._seconds:
            await asyncio.sleep(self._seconds)
            with contextlib.suppress(CitadelError):  # the writer is busy: the next look comes soon
                await self._service.reload()


def _gauges(metrics: Metrics, service: Service, pool: Pool) -> None:
    metrics.gauge("citadel_queue_length", "Requests that wait for a worker", lambda: pool.waiting)
    metrics.gauge("citadel_index_generation", "The commit that is served", lambda: service.generation)
    metrics.gauge("citadel_index_documents", "Documents that are served", lambda: len(service.searcher))
    metrics.gauge("citadel_changes_waiting", "Changes that wait for a commit", lambda: service.waiting)
    metrics.gauge("citadel_commits", "Commits made by this server", lambda: service.commits)
    metrics.gauge("citadel_reloads", "Generations of other processes taken over", lambda: service.reloads)
    metrics.gauge("citadel_reload_failures", "Looks at a generation that is broken", lambda: service.reload_failures)


def described(app: FastAPI, limits: Limits) -> dict[str, Any]:
    """The OpenAPI document, with this server's limits and tokens in it."""
    schema: dict[str, Any] = app.openapi()
    schemas, bounds = schema["components"]["schemas"], asdict(limits)
    for model, field, word, limit in _LIMITED:
        schemas[model]["properties"][field][word] = bounds[limit]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            if permission(method.upper(), path) is not None:
                route["security"] = [{"bearer": []}]
    return schema
