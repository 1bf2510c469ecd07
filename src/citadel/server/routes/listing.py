"""`POST /v1/count`, `/v1/facets` and `/v1/list`: the documents that match a filter, without a query."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from citadel.errors import Cancelled
from citadel.filter.parse import given_filter
from citadel.index.documents import Fields
from citadel.index.listing import count_fields, list_numbers
from citadel.index.snapshot import Snapshot
from citadel.server.config import Limits
from citadel.server.context import server_context
from citadel.server.errors import JsonBytes
from citadel.server.filter_schema import facet_rows
from citadel.server.json_route import ERRORS, JsonRoute, check_limit
from citadel.server.kept_generations import KeptGenerations, cursor_of
from citadel.server.listing_schema import (
    CountRequest,
    CountResponse,
    FacetsRequest,
    FacetsResponse,
    ListRequest,
    ListResponse,
)
from citadel.server.pool import PoolJob, Run
from citadel.server.routes.search import documents_per_read

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["documents"])
_EVERYTHING = CountRequest()
_FIRST_PAGE = ListRequest(limit=100, cursor=None, documents=True)


@router.post("/v1/count", response_model=CountResponse)
async def count(request: Request, body: CountRequest = _EVERYTHING) -> Response:
    """Count the documents that match a filter. The body is optional."""

    def run(job: PoolJob, _: list[Any]) -> bytes:
        number = job.searcher.count(given_filter(body.filter), cancel=job.cancel)
        return to_json({"count": number, "generation": job.searcher.snapshot.manifest.generation})

    return await _answer(request, run)


@router.post("/v1/facets", response_model=FacetsResponse)
async def facets(body: FacetsRequest, request: Request) -> Response:
    """Count the values of metadata fields over the documents that match a filter."""

    def run(job: PoolJob, _: list[Any]) -> bytes:
        filter, snapshot = given_filter(body.filter), job.searcher.snapshot
        counts = count_fields(snapshot, body.fields, filter, body.limit, job.cancel)
        matching = job.searcher.count(filter, cancel=job.cancel)
        generation = snapshot.manifest.generation
        return to_json({"facets": facet_rows(counts), "matching": matching, "generation": generation})

    return await _answer(request, run)


@router.post("/v1/list", response_model=ListResponse, response_model_exclude_none=True)
async def list_documents(request: Request, body: ListRequest = _FIRST_PAGE) -> Response:
    """List documents in commit order, page by page. The body is optional."""
    context = server_context(request)
    check_limit(context.config.limits, "listed", body.limit, "documents in one page")
    return await _answer(request, ListTask(body, context.config.limits, context.service.kept).run)


async def _answer(request: Request, run: Run) -> Response:
    context = server_context(request)
    return JsonBytes(await context.answer(PoolJob(context.service.searcher, run), request))


class ListTask:
    """One page of a listing in a worker thread; its generation is kept for the next page."""

    def __init__(self, request: ListRequest, limits: Limits, kept: KeptGenerations) -> None:
        self._request, self._limits, self._kept = request, limits, kept

    def run(self, job: PoolJob, _: list[Any]) -> bytes:
        """Return the response body."""
        request, snapshot, start = self._request, job.searcher.snapshot, 0
        filter = given_filter(request.filter)
        if request.cursor is not None:
            snapshot, start = self._kept.open(request.cursor, snapshot)
        numbers = list_numbers(snapshot, filter, start, request.limit + 1, job.cancel)
        page = numbers[: request.limit]
        if request.documents:
            rows = self._documents(snapshot, page, job)
            answer: dict[str, Any] = {"documents": rows}
            end = len(rows)
        else:
            answer, end = {"ids": self._ids(snapshot, page)}, len(page)
        cursor = None
        if end < len(numbers):
            self._kept.keep(snapshot)
            cursor = cursor_of(snapshot, int(numbers[end]))
        return to_json(answer | {"cursor": cursor, "generation": snapshot.manifest.generation})

    def _ids(self, snapshot: Snapshot, numbers: Any) -> list[str]:
        with snapshot.whole():
            return snapshot.ids(numbers)

    def _documents(self, snapshot: Snapshot, numbers: Any, job: PoolJob) -> list[dict[str, Any]]:
        """As many documents as fit one response, at least one."""
        rows: list[dict[str, Any]] = []
        remaining, step = self._limits.answer_characters, documents_per_read(snapshot)
        while len(rows) < len(numbers) and remaining > 0:
            if job.cancel.is_set():
                raise Cancelled("the listing was cancelled")
            for fields in snapshot.fields(
                numbers[len(rows) : len(rows) + step], self._limits.hit_characters + 1
            ):
                rows.append(_document(fields, self._limits.hit_characters))
                remaining -= len(rows[-1]["title"]) + len(rows[-1]["text"])
        return rows


def _document(fields: Fields, limit: int) -> dict[str, Any]:
    """A document as JSON, its title and text cut at the limit.

    >>> _document(("d1", "", "abc", {"year": 1905}), 2)
    {'id': 'd1', 'title': '', 'text': 'ab', 'metadata': {'year': 1905}, 'text_cut': True}
    """
    id, title, text, metadata = fields
    row = {"id": id, "title": title[:limit], "text": text[:limit], "metadata": metadata}
    return row | {"text_cut": True} if max(len(title), len(text)) > limit else row
