"""Segments written by several threads, however small they are."""

from __future__ import annotations

from typing import Any

import pytest

from citadel.index import commit

_SETTINGS: dict[str, Any] = {
    "THREADED_DOCUMENTS": 0,
    "THREADED_MEMORY": 0,
    "available_threads": lambda: 3,
}


def write_with_threads(monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Write every segment with three threads, until the end of the test or of this process."""
    for name, value in _SETTINGS.items():
        if monkeypatch is None:
            setattr(commit, name, value)
        else:
            monkeypatch.setattr(commit, name, value)
