"""The index in numbers for `GET /v1/stats`: its lists by size, the longest by word, its model, memory."""

from __future__ import annotations

import os
from typing import Any

from citadel.encode.session import ONNX_FILE
from citadel.index.stats import largest_lists, list_lengths, list_sizes, statistics
from citadel.search.searcher import Searcher

_LARGEST = 50
_NAMED_BY_VOCABULARY = ("dynamic", "sparse", "static")
_UNTOLD = ("index", "largest_lists")  # an id for programs only; told with words instead


class IndexFigures:
    """The figures of an index, counted once a generation."""

    def __init__(self) -> None:
        self._known: tuple[int, dict[str, Any]] = (-1, {})  # not the searcher: it would be kept open

    def of(self, searcher: Searcher) -> dict[str, Any]:
        """The figures of what this searcher sees."""
        known, figures = self._known
        generation = searcher.snapshot.manifest.generation
        if known != generation:
            figures = _count(searcher)
            self._known = (generation, figures)
        return figures


def _count(searcher: Searcher) -> dict[str, Any]:
    lengths, settings = list_lengths(searcher.snapshot), searcher.settings
    figures = {name: value for name, value in statistics(searcher.snapshot).items() if name not in _UNTOLD}
    return {
        "index": figures,
        "list_sizes": list_sizes(lengths),
        "largest_keys": [_named(searcher, name, size) for name, size in largest_lists(lengths, _LARGEST)],
        "model": {
            "router": settings.router,
            "fingerprint": settings.fingerprint,
            "has_text": settings.has_text_queries,
            "token_dimension": settings.lexical.dimension if settings.lexical else 0,
            "semantic_dimension": settings.semantic.dimension if settings.semantic else 0,
        },
    }


def _named(searcher: Searcher, name: Any, size: int) -> dict[str, Any]:
    """A list with its key and its word, as far as it has them."""
    if isinstance(name, str):
        return {"key": None, "word": name, "postings": size}
    return {"key": name, "word": _word(searcher, name), "postings": size}


def _word(searcher: Searcher, key: int) -> str | None:
    settings = searcher.settings
    if settings.model is None or settings.router not in _NAMED_BY_VOCABULARY:
        return None
    return searcher.encoder.tokenizer.token(key) or None


def model_bytes(searcher: Searcher) -> int:
    """The size of the index's model; 0 where it has none."""
    if searcher.settings.model is None:
        return 0
    return os.path.getsize(os.path.join(searcher.encoder.folder, ONNX_FILE))


def resident_bytes() -> int:
    """The memory this process holds; 0 where the system does not tell.

    >>> resident_bytes() >= 0
    True
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
