"""CITADEL: multi-vector retrieval with dynamic lexical routing. One formula, one index, one engine."""

from __future__ import annotations

from citadel.config import Field, Settings
from citadel.errors import (
    Cancelled,
    CitadelError,
    CorruptIndexError,
    FingerprintError,
    IndexNotFoundError,
    InputError,
    LockHeldError,
    ResourceError,
    UnknownFormatError,
    UsageError,
)
from citadel.library import Index
from citadel.search.searcher import Hits, Searcher
from citadel.types import Document, Hit, Ranking

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "CitadelError",
    "CorruptIndexError",
    "Document",
    "Field",
    "FingerprintError",
    "Hit",
    "Hits",
    "Index",
    "IndexNotFoundError",
    "InputError",
    "LockHeldError",
    "Ranking",
    "ResourceError",
    "Searcher",
    "Settings",
    "UnknownFormatError",
    "UsageError",
]
