"""Routes with a JSON body: admission, strict parsing, and limits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from citadel.errors import ServerError
from citadel.server.config import Limits
from citadel.server.context import server_context
from citadel.server.errors import fields_error
from citadel.server.pool import Receive
from citadel.server.status_schema import ErrorResponse
from citadel.server.tokens import READ, permission
from citadel.text.parse import parse_object

_STATUSES = (400, 401, 403, 404, 405, 408, 409, 410, 413, 414, 415, 421, 422, 431, 500, 503, 504, 507)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": "error with code, message and request id"}
    for status in _STATUSES
}


class JsonRoute(APIRoute):
    """A route that parses its body straight into the endpoint's model, in one strict pass.

    FastAPI still describes the route, from the endpoint's signature `(body, request)`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()
        endpoint, model = self.endpoint, get_type_hints(self.endpoint)["body"]
        flags = [parameter.alias for parameter in self.dependant.query_params]
        needs_worker = permission("POST", self.path) == READ  # changes go through the writer's thread

        async def handle(request: Request) -> Response:
            flag_values = {name: flag(request, name) for name in flags}
            payload = await read_body(request.receive)
            if needs_worker and (pool := server_context(request).pool).is_full:
                del payload  # a refusal is delayed: do not hold the body meanwhile
                await pool.refuse()
            body = parse_body(model, payload)
            response: Response = await endpoint(body=body, request=request, **flag_values)
            return response

        return handle


def flag(request: Request, name: str) -> bool:
    """Return a Boolean URL parameter; false by default."""
    values = request.query_params.getlist(name)
    if values not in ([], ["true"], ["false"]):
        raise ServerError(422, "fields", f"{name} in the URL must be true or false: write ?{name}=true once")
    return values == ["true"]


async def read_body(receive: Receive) -> bytes:
    """Receive a request body to its end."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ServerError(499, "left", "the client closed the connection")
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


def parse_body(model: type[BaseModel], body: bytes) -> BaseModel:
    """Parse a body into its model; an empty body is an empty object."""
    try:
        value = model.model_validate_json(body or b"{}")
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise fields_error(problems) from None
    if body.count(b":") > num_keys(value):  # a colon in a string, a free-form object, or a duplicate key
        parse_object(body.decode())
    return value


def num_keys(value: object) -> int:
    """Count the keys of a model and of nested models, without those of free-form objects.

    >>> from citadel.server.schema import SearchRequest
    >>> num_keys(SearchRequest.model_validate_json('{"vectors": {"keys": [7]}, "k": 3}'))
    3
    """
    if isinstance(value, BaseModel):
        names = value.model_fields_set
        return len(names) + sum(num_keys(getattr(value, name)) for name in names)
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return sum(map(num_keys, value))
    return 0


def check_limit(limits: Limits, name: str, value: int, noun: str) -> None:
    """Raise when a value exceeds a limit.

    >>> check_limit(Limits(), "k", 1000, "hits")
    """
    limit = getattr(limits, name)
    if value > limit:
        raise ServerError(
            422, "limit", f"{value:,} {noun}: this server allows {limit:,}; send or request fewer"
        )
