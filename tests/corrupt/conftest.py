"""One index of each kind, built once; tests damage copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.corrupt import indexes


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The undamaged index of a kind."""
    built: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in built:
            built[kind] = indexes.build(tmp_path_factory.mktemp("whole") / kind, kind)
        return built[kind]

    return get


@pytest.fixture(scope="session")
def truth(whole: Callable[[str], Path]) -> Callable[[str], list[Any]]:
    """The answers of the undamaged index."""
    answers: dict[str, list[Any]] = {}

    def get(kind: str) -> list[Any]:
        if kind not in answers:
            answers[kind] = indexes.ask(whole(kind), kind)
        return answers[kind]

    return get
