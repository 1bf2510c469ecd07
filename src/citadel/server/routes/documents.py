"""Documents over HTTP: get one, add, delete, commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from citadel.errors import ServerError
from citadel.server.errors import json_response
from citadel.server.json_route import ERRORS, JsonRoute, parts, within
from citadel.server.pool import Job
from citadel.server.schema import (
    Added,
    AddRequest,
    CommitRequest,
    Committed,
    Deleted,
    DeleteRequest,
    StoredDocument,
)
from citadel.text.parse import MAX_ID
from citadel.types import Document

_STREAMED = 1 << 20  # characters of a document that is sent in pieces
_PIECE = 1 << 18  # characters

router = APIRouter(route_class=JsonRoute, responses=ERRORS, tags=["documents"])
_NOTHING = CommitRequest(changes=None)
Commit = Annotated[bool, Query(description="commit in the same request, as the body's `commit`")]
Id = Annotated[str, Query(min_length=1, max_length=MAX_ID, description="of the document", examples=["d1"])]


@router.get("/v1/documents", response_model=StoredDocument)
async def get_document(id: Id, request: Request) -> Response:
    """One document, as it was given."""
    server = parts(request)

    def run(job: Job, _: list[Any]) -> Any:
        return job.searcher.snapshot.get(id)

    found = await server.answer(Job(server.service.searcher, run), request)
    if found is None:
        raise ServerError(404, "not_found", "no document has this id: it may wait for a commit, or be deleted")
    if len(found.title) + len(found.text) > _STREAMED:
        return StreamingResponse(document_pieces(found), media_type="application/json")
    fields = {"id": found.id, "title": found.title, "text": found.text, "metadata": dict(found.metadata)}
    return json_response(fields)


async def document_pieces(document: Document) -> AsyncIterator[bytes]:
    """The JSON of a document in pieces, so that a long text is not copied as a whole."""
    yield b'{"id":%s,"metadata":%s' % (to_json(document.id), to_json(dict(document.metadata)))
    for name, text in ((b"title", document.title), (b"text", document.text)):
        yield b',"%s":"' % name
        for start in range(0, len(text), _PIECE):
            yield to_json(text[start : start + _PIECE])[1:-1]
        yield b'"'
    yield b"}"


@router.post("/v1/documents", response_model=Added)
async def add(body: AddRequest, request: Request, commit: Commit = False) -> Response:
    """Add documents, all or none; an id that is there is replaced."""
    server = parts(request)
    within(server.config.limits, "documents", len(body.documents), "documents in one request")
    return json_response(await server.service.add(body.documents, commit or body.commit, body.changes))


@router.post("/v1/delete", response_model=Deleted)
async def delete(body: DeleteRequest, request: Request, commit: Commit = False) -> Response:
    """Delete documents by id; unknown ids are passed over."""
    server = parts(request)
    within(server.config.limits, "documents", len(body.ids), "ids in one request")
    return json_response(await server.service.delete(body.ids, commit or body.commit, body.changes))


@router.post("/v1/commit", response_model=Committed)
async def commit(request: Request, body: CommitRequest = _NOTHING) -> Response:
    """Make all changes durable and visible. The body may be left out."""
    return json_response(await parts(request).service.commit(body.tokens))
