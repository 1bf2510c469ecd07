"""CITADEL: multi-vector retrieval with dynamic lexical routing. One formula, one index, one engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from citadel._native import Cancel as CancelFlag
    from citadel.api import Index
    from citadel.errors import (
        Cancelled,
        ChangesLostError,
        CitadelError,
        CitadelWarning,
        CorruptIndexError,
        DocumentTooLargeError,
        EmptyQueryError,
        FilterError,
        FingerprintError,
        IndexNotFoundError,
        InputError,
        LockHeldError,
        OwnershipError,
        RepairLossError,
        RerankError,
        ResourceError,
        ServerError,
        TruncatedDocumentsWarning,
        UncommittedChangesWarning,
        UnknownFormatError,
        UnknownQueryError,
        UsageError,
    )
    from citadel.explain.hybrid import HybridExplanation
    from citadel.explain.result import Explanation
    from citadel.explain.text import TextExplanation
    from citadel.search.fusion import fuse
    from citadel.search.hits import Hits
    from citadel.search.hybrid import Hybrid
    from citadel.search.index_hybrid import IndexHybrid
    from citadel.search.searcher import Searcher
    from citadel.server.async_client import AsyncClient
    from citadel.server.client import Client
    from citadel.settings import Field, LongDocuments, Settings
    from citadel.types import AddedCount, Document, Hit, Passage, Ranking, ScorePart

__version__ = "0.1.0"

__all__ = [
    "AddedCount",
    "AsyncClient",
    "CancelFlag",
    "Cancelled",
    "ChangesLostError",
    "CitadelError",
    "CitadelWarning",
    "Client",
    "CorruptIndexError",
    "Document",
    "DocumentTooLargeError",
    "EmptyQueryError",
    "Explanation",
    "Field",
    "FilterError",
    "FingerprintError",
    "Hit",
    "Hits",
    "Hybrid",
    "HybridExplanation",
    "Index",
    "IndexHybrid",
    "IndexNotFoundError",
    "InputError",
    "LockHeldError",
    "LongDocuments",
    "OwnershipError",
    "Passage",
    "Ranking",
    "RepairLossError",
    "RerankError",
    "ResourceError",
    "ScorePart",
    "Searcher",
    "ServerError",
    "Settings",
    "TextExplanation",
    "TruncatedDocumentsWarning",
    "UncommittedChangesWarning",
    "UnknownFormatError",
    "UnknownQueryError",
    "UsageError",
    "fuse",
]

# Imported at first use: `citadel --help` must not wait for numpy and the engine.
_LAZY = {
    "AddedCount": "citadel.types",
    "AsyncClient": "citadel.server.async_client",
    "CancelFlag": "citadel._native",
    "Client": "citadel.server.client",
    "Document": "citadel.types",
    "Explanation": "citadel.explain.result",
    "Field": "citadel.settings",
    "Hit": "citadel.types",
    "Hits": "citadel.search.hits",
    "Hybrid": "citadel.search.hybrid",
    "HybridExplanation": "citadel.explain.hybrid",
    "Index": "citadel.api",
    "IndexHybrid": "citadel.search.index_hybrid",
    "LongDocuments": "citadel.settings",
    "Passage": "citadel.types",
    "Ranking": "citadel.types",
    "ScorePart": "citadel.types",
    "Searcher": "citadel.search.searcher",
    "Settings": "citadel.settings",
    "TextExplanation": "citadel.explain.text",
    "fuse": "citadel.search.fusion",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'citadel' has no attribute {name!r}")
    module = importlib.import_module(_LAZY.get(name, "citadel.errors"))
    value = getattr(module, "Cancel" if name == "CancelFlag" else name)
    globals()[name] = value  # __getattr__ is not called again
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
