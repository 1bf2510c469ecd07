"""`/v1/documents`, `/v1/delete`, `/v1/metadata` and `/v1/commit`: get, change and commit documents."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from citadel.errors import ServerError
from citadel.index.documents import DocumentStore
from citadel.server.context import server_context
from citadel.server.errors import json_response
from citadel.server.json_route import ERRORS, JsonRoute, check_limit
from citadel.server.listing_schema import MetadataRequest, MetadataResponse
from citadel.server.pool import PoolJob
from citadel.server.schema import (
    AddRequest,
    AddResponse,
    CommitRequest,
    CommitResponse,
    DeleteRequest,
    DeleteResponse,
    DocumentModel,
    EmptyRequest,
    RollbackResponse,
)
from citadel.text.parse import MAX_ID
from citadel.types import Document

_STREAM_FROM = 1 << 20  # characters; longer documents are sent in pieces

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["documents"])
_NOTHING = EmptyRequest()
_NO_TOKENS = CommitRequest(changes=None)
Commit = Annotated[bool, Query(description="commit in the same request, like `commit` in the body")]
Id = Annotated[str, Query(min_length=1, max_length=MAX_ID, description="id of the document", examples=["d1"])]


@router.get("/v1/documents", response_model=DocumentModel)
async def get_document(id: Id, request: Request) -> Response:
    """Return one document."""
    context = server_context(request)
    await context.pool.admit()

    def run(job: PoolJob, _: list[Any]) -> Response | None:
        located = job.searcher.snapshot.locate([id]).get(id)
        return None if located is None else document_response(located[0].store, located[1])

    response: Response | None = await context.answer(PoolJob(context.service.searcher, run), request)
    if response is None:
        raise ServerError(404, "not_found", "no document has this id: it may be uncommitted or deleted")
    return response


def document_response(store: DocumentStore, number: int) -> Response:
    """A document as JSON; a long one is checked first, then read again and sent in pieces."""
    document, length = store.part(number, 0, _STREAM_FROM + 1)
    if len(document.title) + length > _STREAM_FROM:
        return StreamingResponse(document_pieces(store, number, document), media_type="application/json")
    fields = {
        "id": document.id,
        "title": document.title,
        "text": document.text,
        "metadata": dict(document.metadata),
    }
    return json_response(fields)


def document_pieces(store: DocumentStore, number: int, document: Document) -> Iterator[bytes]:
    """Yield the JSON of a document in pieces; title and text are read from the store as they are sent."""
    yield b'{"id":%s,"metadata":%s' % (to_json(document.id), to_json(dict(document.metadata)))
    for column, pieces in itertools.groupby(store.pieces(number), key=lambda pair: pair[0]):
        if column in ("title", "text"):
            yield b',"%s":"' % column.encode()
            for _, piece in pieces:
                yield to_json(piece)[1:-1]
            yield b'"'
    yield b"}"


@router.post("/v1/documents", response_model=AddResponse)
async def add(body: AddRequest, request: Request, commit: Commit = False) -> Response:
    """Add documents, all or none; an existing id is replaced."""
    context = server_context(request)
    check_limit(context.config.limits, "documents", len(body.documents), "documents in one request")
    return json_response(await context.service.add(body.documents, commit or body.commit, body.changes))


@router.post("/v1/delete", response_model=DeleteResponse)
async def delete(body: DeleteRequest, request: Request, commit: Commit = False) -> Response:
    """Delete documents by id or by filter; unknown ids are ignored."""
    context = server_context(request)
    check_limit(context.config.limits, "documents", len(body.ids or ()), "ids in one request")
    change = context.service.delete(body.ids, body.filter, commit or body.commit, body.changes)
    return json_response(await change)


@router.post("/v1/metadata", response_model=MetadataResponse)
async def update_metadata(body: MetadataRequest, request: Request) -> Response:
    """Change metadata of documents by id or by filter, and commit. Texts are not encoded again."""
    context = server_context(request)
    check_limit(context.config.limits, "documents", len(body.ids or ()), "ids in one request")
    which: Any = body.ids if body.filter is None else body.filter
    return json_response(await context.service.update_metadata(which, body.values))


@router.post("/v1/commit", response_model=CommitResponse)
async def commit(request: Request, body: CommitRequest = _NO_TOKENS) -> Response:
    """Make all changes durable and visible. The body is optional."""
    return json_response(await server_context(request).service.commit(body.tokens))


@router.post("/v1/rollback", response_model=RollbackResponse)
async def rollback(request: Request, body: EmptyRequest = _NOTHING) -> Response:  # noqa: ARG001
    """Drop all uncommitted changes, those of other clients too. The body is optional."""
    return json_response(await server_context(request).service.rollback())


@router.post("/v1/merge", response_model=CommitResponse)
async def merge(request: Request, body: EmptyRequest = _NOTHING) -> Response:  # noqa: ARG001
    """Merge all segments into one, without deleted documents. The body is optional."""
    return json_response(await server_context(request).service.merge())
