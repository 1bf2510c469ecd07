"""Error responses: one JSON shape with a code for programs and a message for readers."""

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

from citadel.errors import ServerError
from citadel.server.error_codes import ERROR_CODES

_JSON = (b"content-type", b"application/json")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_PROCESS, _NUMBER = secrets.token_hex(4), count(1)  # a random id per request would release the GIL
BUSY_SECONDS = 1  # value of Retry-After
_CODES = {404: "not_found", 405: "method", 400: "json"}
_MESSAGES = {
    404: "no such route: GET /openapi.json lists all routes",
    405: "this route does not accept the method: GET /openapi.json lists all routes",
}
_INTERNAL = "internal error: find this request's id in the server log and report it"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a JSON value.

    >>> json_response({"generation": 7}).body
    b'{"generation":7}'
    """
    return Response(to_json(value), status, headers, "application/json")


class JsonBytes(Response):
    """Pre-encoded JSON; skips Response overhead.

    >>> JsonBytes(b"{}").headers["content-length"]
    '2'
    """

    def __init__(self, body: bytes) -> None:
        self.body, self.status_code, self.background = body, 200, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _JSON]


def error_body(code: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """Return the JSON body of an error.

    >>> error_body("busy", "too many requests are waiting")["error"]["code"]
    'busy'
    """
    return {"error": {"code": code, "message": message, "request_id": request_id}}


def as_server_error(error: BaseException, location: str = "") -> ServerError:
    """Convert an exception to its response; `location`, the index folder, is removed from messages.

    >>> from citadel.errors import UsageError
    >>> as_server_error(UsageError("/srv/idx: τ is out of range"), "/srv/idx").status
    400
    >>> str(as_server_error(UsageError("/srv/idx: τ is out of range"), "/srv/idx"))
    'the index: τ is out of range'
    """
    if isinstance(error, ServerError):
        return error
    for kind, status, code in ERROR_CODES:
        if isinstance(error, kind):
            return ServerError(status, code, without_location(str(error), location))
    if isinstance(error, asyncio.CancelledError):
        return ServerError(503, "stopping", "this server is stopping: use another one", BUSY_SECONDS)
    if isinstance(error, MemoryError):
        return ServerError(507, "resources", "out of memory; committed changes are intact: request less")
    logging.getLogger("citadel.server").error("unexpected error", exc_info=error)
    return ServerError(500, "internal", _INTERNAL)


def without_location(message: str, location: str) -> str:
    """Remove the index folder from a message: as given at its start, as an absolute path elsewhere.

    >>> without_location("t: no space left on the device", "t")
    'the index: no space left on the device'
    >>> without_location("cannot read /srv/t/LOCK", "/srv/t")
    'cannot read the index/LOCK'
    """
    if not location:
        return message
    if message.startswith((f"{location}:", f"{location}{os.sep}")):
        message = f"the index{message.removeprefix(location)}"
    return re.sub(
        rf"(?<![\w.{os.sep}-]){re.escape(os.path.abspath(location))}(?![\w.-])", "the index", message
    )


def request_id(given: bytes = b"") -> str:
    """Return the client's request id if it is valid, else a new one.

    >>> request_id(b"mine-1")
    'mine-1'
    """
    return given.decode() if _REQUEST_ID.fullmatch(given) else f"{_PROCESS}-{next(_NUMBER):x}"


def error_response(error: ServerError, request_id: str | None = None) -> Response:
    """Return the response of an error."""
    headers = {"Cache-Control": "no-store"}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="citadel"'
    return json_response(error_body(error.code, str(error), request_id), error.status, headers)


def busy(reason: str = "too many requests are waiting") -> ServerError:
    """Return a 503 with Retry-After.

    >>> busy().retry_after
    1
    """
    return ServerError(503, "busy", f"{reason}: retry in {BUSY_SECONDS} second", BUSY_SECONDS)


def fields_error(problems: Sequence[Any]) -> ServerError:
    """Convert pydantic's errors to one message.

    >>> str(fields_error([{"loc": ("k",), "msg": "Input should be a valid integer", "type": "int_type"}]))
    'k: input should be a valid integer; GET /openapi.json describes the request'
    """
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid" and "recursion limit" in message:
        return ServerError(400, "json", "the body is nested too deeply: send fewer levels")
    if first["type"] == "json_invalid":
        return ServerError(
            400, "json", f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}; send an object"
        )
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    text = f"{where}: {message[:1].lower()}{message[1:]}{more}; GET /openapi.json describes the request"
    return ServerError(422, "fields", text)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handle an unknown route or method."""
    assert isinstance(error, HTTPException)
    message = _MESSAGES.get(error.status_code, str(error.detail))
    server_error = ServerError(error.status_code, _CODES.get(error.status_code, "request"), message)
    response = error_response(server_error, request.scope.get("request_id"))
    response.headers.update(error.headers or {})  # 405 lists the allowed methods
    return response


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Handle a missing or invalid URL parameter."""
    assert isinstance(error, RequestValidationError)
    return error_response(fields_error(error.errors()), request.scope.get("request_id"))


async def on_citadel_error(request: Request, error: Exception) -> Response:
    """Handle an exception raised by a route."""
    context = request.scope.get("context") or request.app.state.context
    location = context.service.location
    return error_response(as_server_error(error, location), request.scope.get("request_id"))
