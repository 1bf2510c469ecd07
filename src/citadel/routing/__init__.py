"""Routers map tokens to (key, weight) pairs, one file per router; `formula.py` is the score they share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from citadel.errors import UsageError
from citadel.routing.all_to_all import AllToAllRouter
from citadel.routing.base import ANY, Router
from citadel.routing.bm25 import Bm25Router, Collection, idf, length_norm, tf_part
from citadel.routing.centroid import CentroidRouter
from citadel.routing.dynamic import DynamicRouter
from citadel.routing.formula import imputed_score, rank, score
from citadel.routing.none import NoRouter
from citadel.routing.sparse import SparseRouter
from citadel.routing.static import StaticRouter

__all__ = [
    "ANY",
    "AllToAllRouter",
    "Bm25Router",
    "CentroidRouter",
    "Collection",
    "DynamicRouter",
    "NoRouter",
    "Router",
    "SparseRouter",
    "StaticRouter",
    "get_router",
    "idf",
    "imputed_score",
    "length_norm",
    "rank",
    "score",
    "tf_part",
]

CLASSES: tuple[type[Router], ...] = (
    AllToAllRouter,
    Bm25Router,
    CentroidRouter,
    DynamicRouter,
    NoRouter,
    SparseRouter,
    StaticRouter,
)
BY_NAME = {router.name: router for router in CLASSES}


def get_router(name: str, **options: Any) -> Router:
    """Make the router of this name; `options` are the fields of its class.

    >>> get_router("dynamic", document_keys=3, tau=0.9)
    DynamicRouter(semantic=True, query_keys=1, document_keys=3, tau=0.9)
    """
    if name not in BY_NAME:
        raise UsageError(f"unknown router {name!r}: choose one of {', '.join(sorted(BY_NAME))}")
    known = {option.name for option in fields(BY_NAME[name])}
    if unknown := sorted(set(options) - known):
        raise UsageError(
            f"the router {name!r} has no option {unknown[0]!r}: choose from {', '.join(sorted(known))}"
        )
    return BY_NAME[name](**options)
