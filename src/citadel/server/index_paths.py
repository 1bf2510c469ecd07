"""The OpenAPI document of a server whose routes name an index."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from citadel.server.names import NAME_PATTERN


def name_indexes(schema: dict[str, Any], names: Sequence[str], only_named: bool) -> dict[str, Any]:
    """Add `/v1/indexes/{name}/…` for each route `/v1/…`; the latter are left out if `only_named`.

    `names` are listed in the document, which is public, so they are those that anyone may read.
    """
    name: dict[str, Any] = {"type": "string", "pattern": NAME_PATTERN}
    if names:
        name = {"type": "string", "enum": list(names)}
    parameter = {"name": "name", "in": "path", "required": True, "schema": name}
    paths: dict[str, Any] = {}
    for path, methods in schema["paths"].items():
        is_of_index = path.startswith("/v1/") and path != "/v1/indexes"
        if not (only_named and is_of_index):
            paths[path] = methods
        if is_of_index:
            paths[f"/v1/indexes/{{name}}{path[3:]}"] = {
                method: _named(route, parameter) for method, route in methods.items()
            }
    return schema | {"paths": paths}


def _named(route: dict[str, Any], parameter: dict[str, Any]) -> dict[str, Any]:
    named = copy.deepcopy(route)
    named["operationId"] = f"{route['operationId']}_of_index"
    named["parameters"] = [parameter, *named.get("parameters", [])]
    return named
