"""The ASGI application: routes, OpenAPI document, lifespan and middleware."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from citadel import __version__
from citadel.errors import CitadelError
from citadel.server.config import Limits
from citadel.server.context import ServerContext
from citadel.server.errors import on_citadel_error, on_http_exception, on_validation_error
from citadel.server.index_paths import name_indexes
from citadel.server.json_route import JsonRoute
from citadel.server.metrics import Metrics
from citadel.server.middleware import RequestMiddleware
from citadel.server.pool import Pool
from citadel.server.routes import documents, explain, listing, search, status
from citadel.server.service import Service
from citadel.server.static_files import page_files, page_routes
from citadel.server.tokens import permission

_DESCRIPTION = "Multi-vector retrieval with dynamic lexical routing. The guide is docs/reference/http.md."
# (model, field, JSON Schema keyword, name of the limit)
_SCHEMA_LIMITS = (
    ("SearchRequest", "k", "maximum", "k"),
    ("SearchRequest", "offset", "maximum", "depth"),
    ("BatchRequest", "k", "maximum", "k"),
    ("BatchRequest", "offset", "maximum", "depth"),
    ("BatchRequest", "queries", "maxItems", "batch"),
    ("AddRequest", "documents", "maxItems", "documents"),
    ("DeleteRequest", "ids", "maxItems", "documents"),
    ("MetadataRequest", "ids", "maxItems", "documents"),
    ("ListRequest", "limit", "maximum", "listed"),
    ("ExplainRequest", "query", "maxLength", "query_characters"),
    ("TextRequest", "text", "maxLength", "text_characters"),
)


def create_context(services: Service | Mapping[str, Service]) -> ServerContext:
    """Return services, by the names of their indexes, with one worker pool and metrics for all."""
    named = {"index": services} if isinstance(services, Service) else dict(services)
    first = next(iter(named.values()))
    metrics, config = Metrics(), first.config
    pool = Pool(config.num_workers, config.limits.queue, metrics.batch_taken)
    _add_gauges(metrics, named, pool)
    context = ServerContext(first, pool, metrics, config)
    for name, service in named.items():
        context.indexes[name] = ServerContext(service, pool, metrics, service.config, name)
    return context


def create_app(context: ServerContext) -> RequestMiddleware:
    """Return the ASGI application; it closes the service when the server stops."""
    app = _fastapi(context)
    described = schema = describe(app, context.config.limits)
    if len(context.indexes) > 1:
        open_names = [name for name, each in context.indexes.items() if each.config.read_token is None]
        schema = name_indexes(described, open_names)
    app.openapi = lambda: schema  # type: ignore[method-assign]
    paths = frozenset(("/openapi.json", *described["paths"], *page_files()))
    handlers = {("POST", route.path): route.get_route_handler() for route in json_routes()}
    return RequestMiddleware(app, context, paths, handlers)


def json_routes() -> list[JsonRoute]:
    """Return the routes that read a body."""
    routes = [route for module in (search, explain, documents, listing) for route in module.router.routes]
    return [route for route in routes if isinstance(route, JsonRoute) and route.body_field is not None]


def _fastapi(context: ServerContext) -> FastAPI:
    app = FastAPI(
        title="citadel",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_Lifespan(context),
        redirect_slashes=False,
    )
    app.state.context = context
    for module in (search, explain, documents, listing, status):
        app.include_router(module.router)
    app.router.routes += page_routes()
    app.add_exception_handler(CitadelError, on_citadel_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_citadel_error)
    return app


class _Lifespan:
    """Start and stop the worker pool and the reload poller with the server."""

    def __init__(self, context: ServerContext) -> None:
        self._services, self._pool = context.services, context.pool
        self._seconds = context.config.reload_seconds

    @contextlib.asynccontextmanager
    async def __call__(self, _: FastAPI) -> AsyncIterator[None]:
        self._pool.start()
        poller = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            poller.cancel()
            self._pool.stop()
            for service in self._services:
                service.close()

    async def _poll(self) -> None:
        while self._seconds:
            await asyncio.sleep(self._seconds)
            for service in self._services:
                with contextlib.suppress(CitadelError):  # the writer is busy: retry at the next poll
                    await service.reload()


def _add_gauges(metrics: Metrics, services: Mapping[str, Service], pool: Pool) -> None:
    def add(name: str, help: str, value: Callable[[Service], float]) -> None:
        metrics.gauges(name, help, {index: partial(value, service) for index, service in services.items()})

    metrics.gauge("citadel_queue_length", "Requests waiting for a worker", lambda: pool.waiting)
    add("citadel_index_generation", "Generation being served", lambda service: service.generation)
    add("citadel_index_documents", "Documents being served", lambda service: len(service.searcher))
    add("citadel_changes_waiting", "Uncommitted changes", lambda service: service.waiting)
    add("citadel_commits", "Commits made by this server", lambda service: service.commits)
    add("citadel_reloads", "Generations of other processes loaded", lambda service: service.reloads)
    add(
        "citadel_reload_failures",
        "Failed attempts to load a new generation",
        lambda service: service.reload_failures,
    )


def describe(app: FastAPI, limits: Limits) -> dict[str, Any]:
    """Return the OpenAPI document with this server's limits and bearer tokens."""
    schema: dict[str, Any] = app.openapi()
    schemas, limit_values = schema["components"]["schemas"], asdict(limits)
    for model, field, keyword, limit in _SCHEMA_LIMITS:
        schemas[model]["properties"][field][keyword] = limit_values[limit]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            if permission(method.upper(), path) is not None:
                route["security"] = [{"bearer": []}]
    return schema
