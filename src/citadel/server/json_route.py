"""How a route of this server reads its body, and what all routes share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from citadel.errors import ServerError
from citadel.server.config import Limits, ServerConfig
from citadel.server.errors import fields_error
from citadel.server.metrics import Metrics
from citadel.server.pool import Job, Pool, Receive
from citadel.server.schema import ErrorAnswer
from citadel.server.service import Service
from citadel.text.parse import parse_object

_STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 421, 422, 431, 500, 503, 504, 507)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": "an error, in the one shape of all"} for status in _STATUSES
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server is made of; routes find it in `request.app.state.parts`."""

    service: Service
    pool: Pool
    metrics: Metrics
    config: ServerConfig

    async def answer(self, job: Job, request: Request, deadline_ms: int | None = None) -> Any:
        """A job's result, within the server's deadline or a shorter one of the request."""
        most = self.config.limits.deadline_ms
        return await self.pool.answer(job, min(most, deadline_ms or most) / 1000, request.receive)


def parts(request: Request) -> Parts:
    """What the server that got this request is made of."""
    found: Parts = request.app.state.parts
    return found


class JsonRoute(APIRoute):
    """Reads the body straight into its model: strict JSON, one pass, and nothing between it and the function.

    FastAPI describes the route all the same, from the function's signature `(body, request)`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()
        endpoint, model = self.endpoint, get_type_hints(self.endpoint)["body"]
        flags = [parameter.alias for parameter in self.dependant.query_params]

        async def handle(request: Request) -> Response:
            given = {name: flag(request, name) for name in flags}
            body = read(model, await whole_body(request.receive))
            response: Response = await endpoint(body=body, request=request, **given)
            return response

        return handle


def flag(request: Request, name: str) -> bool:
    """A parameter of the URL that is true or false; false when left out."""
    given = request.query_params.getlist(name)
    if given not in ([], ["true"], ["false"]):
        raise ServerError(422, "fields", f"{name} in the URL is true or false: write ?{name}=true once")
    return given == ["true"]


async def whole_body(receive: Receive) -> bytes:
    """What a client sends, to its end."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ServerError(499, "left", "the client has left")
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


def read(model: type[BaseModel], body: bytes) -> BaseModel:
    """A body as its model; none at all is an empty object."""
    try:
        value = model.model_validate_json(body or b"{}")
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise fields_error(problems) from None
    if body.count(b":") > num_keys(value):  # a colon in a string, a free object, or a key that stands twice
        parse_object(body.decode())
    return value


def num_keys(value: object) -> int:
    """The keys of a model and of the models in it; those of free objects are not counted.

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


def within(limits: Limits, name: str, value: int, what: str) -> None:
    """Refuse what is beyond a limit.

    >>> within(Limits(), "k", 1000, "hits")
    """
    most = getattr(limits, name)
    if value > most:
        raise ServerError(
            422, "limit", f"{value:,} {what} are asked for, and this server allows {most:,}: ask for fewer"
        )
