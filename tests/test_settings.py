"""Settings are validated, and every default is defined once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.errors import UsageError
from citadel.routing import Bm25Router
from citadel.settings import DEFAULT_B, DEFAULT_K1, Settings, text_settings


@pytest.mark.parametrize(
    ("values", "name"),
    [({"k1": -1.0}, "k1"), ({"k1": float("nan")}, "k1"), ({"k1": float("inf")}, "k1"), ({"b": 1.5}, "b")],
)
def test_bm25_parameters_out_of_range_are_usage_errors(values: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} .* is out of range"):
        Settings("bm25", "english", analyser="english", **values)


def test_bm25_defaults_are_defined_once() -> None:
    settings, router = text_settings("english"), Bm25Router()
    assert (settings.k1, settings.b) == (router.k1, router.b) == (DEFAULT_K1, DEFAULT_B) == (0.9, 0.4)
    package = Path(citadel.__file__).parent
    default = re.compile(r"k1[^=\n]*[=:] ?0\.9", re.IGNORECASE)
    assert [path.name for path in package.rglob("*.py") if default.search(path.read_text())] == [
        "settings.py"
    ]
