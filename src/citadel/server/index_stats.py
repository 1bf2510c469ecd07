"""Index statistics for `GET /v1/stats`: list sizes, largest keys, example queries, model and memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from citadel.encode.session import ONNX_FILE
from citadel.errors import CorruptIndexError
from citadel.index.snapshot import Snapshot
from citadel.index.stats import largest_lists, list_lengths, list_sizes, statistics
from citadel.search.searcher import Searcher

_NUM_LARGEST = 50
_NUM_EXAMPLES = 4
_EXAMPLE_CANDIDATES = 12  # documents read to find them
_EXAMPLE_WORDS, _EXAMPLE_CHARACTERS = 8, 60
_MAX_AVERAGE_BYTES = 1 << 17  # no example queries where documents are longer: reading them takes too long
_NAMED_BY_VOCABULARY = ("dynamic", "sparse", "static")
_OMITTED = ("index", "largest_lists")  # the internal id; `largest_keys` has the lists


class IndexStatsCache:
    """Statistics of an index, computed once per generation."""

    def __init__(self) -> None:
        self._cached: tuple[int, dict[str, Any]] = (-1, {})  # not the searcher, which would stay open

    def of(self, searcher: Searcher) -> dict[str, Any]:
        """Return the statistics of a searcher's generation."""
        cached_generation, stats = self._cached
        generation = searcher.snapshot.manifest.generation
        if cached_generation != generation:
            stats = _compute(searcher)
            self._cached = (generation, stats)
        return stats


def _compute(searcher: Searcher) -> dict[str, Any]:
    snapshot, settings = searcher.snapshot, searcher.settings
    lengths = list_lengths(snapshot)
    return {
        "index": {name: value for name, value in statistics(snapshot).items() if name not in _OMITTED},
        "list_sizes": list_sizes(lengths),
        "largest_keys": [
            _key_size(searcher, key, size) for key, size in largest_lists(lengths, _NUM_LARGEST)
        ],
        "example_queries": example_queries(snapshot) if settings.has_text_queries else [],
        "model": {
            "router": settings.router,
            "fingerprint": settings.fingerprint,
            "has_text": settings.has_text_queries,
            "token_dimension": settings.lexical.dimension if settings.lexical else 0,
            "semantic_dimension": settings.semantic.dimension if settings.semantic else 0,
        },
    }


def _key_size(searcher: Searcher, key: Any, size: int) -> dict[str, Any]:
    if isinstance(key, str):
        return {"key": None, "word": key, "postings": size}
    return {"key": key, "word": _word(searcher, key), "postings": size}


def _word(searcher: Searcher, key: int) -> str | None:
    settings = searcher.settings
    if settings.model is None or settings.router not in _NAMED_BY_VOCABULARY:
        return None
    return searcher.encoder.tokenizer.token(key) or None


def example_queries(snapshot: Snapshot) -> list[str]:
    """Return the titles, or first words, of some documents from all parts of the index."""
    stored = sum(segment.store.record.length for segment in snapshot.segments)
    if stored > _MAX_AVERAGE_BYTES * max(len(snapshot), 1):
        return []
    examples: list[str] = []
    for title, text in _sample(snapshot):
        example = shorten(title or text)
        if example and example not in examples:
            examples.append(example)
        if len(examples) == _NUM_EXAMPLES:
            break
    return examples


def _sample(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield title and text of live documents at even distances; damaged ones are skipped."""
    size = int(snapshot.bases[-1])
    for number in np.unique(
        np.linspace(0, max(size - 1, 0), min(size, _EXAMPLE_CANDIDATES)).astype(np.int64)
    ):
        owner = int(np.searchsorted(snapshot.bases, number, side="right")) - 1
        segment = snapshot.segments[owner]
        if number - snapshot.bases[owner] in snapshot.deleted(segment).documents:
            continue
        with contextlib.suppress(CorruptIndexError):  # a search that returns this document reports the damage
            for _, title, text, _ in snapshot.fields(np.array([number]), _EXAMPLE_CHARACTERS * 4):
                yield title, text


def shorten(text: str) -> str:
    """Cut a text after some words.

    >>> shorten("A shock wave is a thin region across which pressure and density jump.")
    'A shock wave is a thin region across'
    """
    words = text[: _EXAMPLE_CHARACTERS * 4].split()[:_EXAMPLE_WORDS]
    while len(words) > 1 and len(" ".join(words)) > _EXAMPLE_CHARACTERS:
        words.pop()
    return " ".join(words)[:_EXAMPLE_CHARACTERS]


def model_bytes(searcher: Searcher) -> int:
    """Return the size of the index's model; 0 without a model."""
    if searcher.settings.model is None:
        return 0
    return os.path.getsize(os.path.join(searcher.encoder.folder, ONNX_FILE))


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where /proc is missing.

    >>> resident_bytes() >= 0
    True
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
