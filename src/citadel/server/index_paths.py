"""The OpenAPI document of a server of several indexes: its routes name the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from citadel.server.names import NAME_PATTERN


def name_indexes(schema: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Replace each route `/v1/…` by `/v1/indexes/{name}/…`.

    `names` are listed in the document, which is public, so they are those that anyone may read.
    """
    name: dict[str, Any] = {"type": "string", "pattern": NAME_PATTERN}
    if names:
        name = {"type": "string", "enum": list(names)}
    parameter = {"name": "name", "in": "path", "required": True, "schema": name}
    paths: dict[str, Any] = {}
    for path, methods in schema["paths"].items():
        if path.startswith("/v1/") and path != "/v1/indexes":
            path = f"/v1/indexes/{{name}}{path[3:]}"
            methods = {method: _named(route, parameter) for method, route in methods.items()}
        paths[path] = methods
    return schema | {"paths": paths}


def _named(route: dict[str, Any], parameter: dict[str, Any]) -> dict[str, Any]:
    return route | {"parameters": [parameter, *route.get("parameters", [])]}
