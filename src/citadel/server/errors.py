"""Errors as answers: one JSON shape for all, with a sentence for a reader and a word for a program."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Sequence
from itertools import count
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from citadel.errors import (
    Cancelled,
    CitadelError,
    CorruptIndexError,
    InputError,
    LockHeldError,
    ResourceError,
    ServerError,
    UsageError,
)

_JSON = (b"content-type", b"application/json")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_PROCESS, _NUMBER = secrets.token_hex(4), count(1)  # a random id per request would release the GIL each time
BUSY_SECONDS = 1  # what Retry-After says
_KINDS: tuple[tuple[type[CitadelError], int, str], ...] = (
    (UsageError, 400, "usage"),
    (InputError, 422, "fields"),
    (LockHeldError, 409, "locked"),
    (ResourceError, 507, "resources"),
    (CorruptIndexError, 500, "corrupt"),
    (Cancelled, 504, "deadline"),
)
_WORDS = {404: "not_found", 405: "method", 400: "json"}
_SENTENCES = {
    404: "there is no such route: GET /openapi.json lists them all",
    405: "this route has another method: GET /openapi.json lists them all",
}
_INTERNAL = "the server met a fault of its own: look for this request's id in its log and report it"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Any JSON value as an answer.

    >>> json_response({"generation": 7}).body
    b'{"generation":7}'
    """
    return Response(to_json(value), status, headers, "application/json")


class JsonBytes(Response):
    """JSON that is bytes already, as an answer; ten times as quick as what can be told of any Response.

    >>> JsonBytes(b"{}").headers["content-length"]
    '2'
    """

    def __init__(self, body: bytes) -> None:
        self.body, self.status_code, self.background = body, 200, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _JSON]


def error_body(code: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """The one shape of an error.

    >>> error_body("busy", "too many requests wait")["error"]["code"]
    'busy'
    """
    return {"error": {"code": code, "message": message, "request_id": request_id}}


def as_server_error(error: BaseException, location: str = "") -> ServerError:
    """What an error means to a client; `location`, the index's folder, is none of its business.

    >>> as_server_error(UsageError("/srv/idx: τ is out of range"), "/srv/idx").status
    400
    >>> str(as_server_error(UsageError("/srv/idx: τ is out of range"), "/srv/idx"))
    'the index: τ is out of range'
    """
    if isinstance(error, ServerError):
        return error
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return ServerError(status, code, without_location(str(error), location))
    if isinstance(error, asyncio.CancelledError):
        return ServerError(503, "stopping", "this server is stopping: ask another", BUSY_SECONDS)
    if isinstance(error, MemoryError):
        return ServerError(507, "resources", "out of memory; what was committed before is intact: ask for less")
    logging.getLogger("citadel.server").error("unexpected error", exc_info=error)
    return ServerError(500, "internal", _INTERNAL)


def without_location(message: str, location: str) -> str:
    """A message without the index's folder: at its start as it was given, elsewhere as an absolute path.

    >>> without_location("t: no space left on the device", "t")
    'the index: no space left on the device'
    >>> without_location("cannot read /srv/t/LOCK", "/srv/t")
    'cannot read the index/LOCK'
    """
    if not location:
        return message
    if message.startswith((f"{location}:", f"{location}{os.sep}")):
        message = f"the index{message.removeprefix(location)}"
    return re.sub(rf"(?<![\w.{os.sep}-]){re.escape(os.path.abspath(location))}(?![\w.-])", "the index", message)


def request_id(given: bytes = b"") -> str:
    """The id of a request: the client's own where it gave a valid one.

    >>> request_id(b"mine-1")
    'mine-1'
    """
    return given.decode() if _REQUEST_ID.fullmatch(given) else f"{_PROCESS}-{next(_NUMBER):x}"


def error_response(error: ServerError, request_id: str | None = None) -> Response:
    """An error as an answer."""
    headers = {"Cache-Control": "no-store"}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="citadel"'
    return json_response(error_body(error.code, str(error), request_id), error.status, headers)


def busy(what: str = "too many requests wait") -> ServerError:
    """What the excess is told.

    >>> busy().retry_after
    1
    """
    return ServerError(503, "busy", f"{what}: ask again in {BUSY_SECONDS} second", BUSY_SECONDS)


def fields_error(problems: Sequence[Any]) -> ServerError:
    """What pydantic found, as one sentence.

    >>> str(fields_error([{"loc": ("k",), "msg": "Input should be a valid integer", "type": "int_type"}]))
    'k: input should be a valid integer; GET /openapi.json says what a request holds'
    """
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    message = str(first["msg"])
    if first["type"] == "json_invalid":
        return ServerError(
            400, "json", f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}; send an object"
        )
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    sentence = f"{where}: {message[:1].lower()}{message[1:]}{more}; GET /openapi.json says what a request holds"
    return ServerError(422, "fields", sentence)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """A route or method that is not there."""
    assert isinstance(error, HTTPException)
    message = _SENTENCES.get(error.status_code, str(error.detail))
    answer = ServerError(error.status_code, _WORDS.get(error.status_code, "request"), message)
    response = error_response(answer, request.scope.get("request_id"))
    response.headers.update(error.headers or {})  # 405 names what is allowed
    return response


async def on_validation_error(request: Request, error: Exception) -> Response:
    """A parameter of the URL that is missing or wrong."""
    assert isinstance(error, RequestValidationError)
    return error_response(fields_error(error.errors()), request.scope.get("request_id"))


async def on_citadel_error(request: Request, error: Exception) -> Response:
    """Every error that has a sentence of its own."""
    location = getattr(request.app.state, "location", "")
    return error_response(as_server_error(error, location), request.scope.get("request_id"))
