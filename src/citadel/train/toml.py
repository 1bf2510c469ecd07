"""Writes what a config holds as TOML; Python reads TOML, but does not write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile("[A-Za-z0-9_-]+")


def to_toml(tables: Mapping[str, Any]) -> str:
    """Plain values first, then one table for each mapping; mappings inside are written on one line.

    >>> print(to_toml({"name": "demo", "data": {"group": 8, "kinds": {"term": 0.5}}}), end="")
    name = "demo"
    <BLANKLINE>
    [data]
    group = 8
    kinds = {term = 0.5}
    """
    plain = [f"{_key(name)} = {_value(value)}\n" for name, value in tables.items() if not isinstance(value, Mapping)]
    inner = [_table(name, table) for name, table in tables.items() if isinstance(table, Mapping)]
    return "".join(plain + inner)


def _table(name: str, table: Mapping[str, Any]) -> str:
    return f"\n[{_key(name)}]\n" + "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    return repr(value)


def _text(text: str) -> str:
    # A JSON string is a TOML string, except that TOML also wants DEL written out.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
