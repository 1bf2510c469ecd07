"""What a search returns: how many documents, from which rank and score on, and of which documents."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.errors import UsageError
from citadel.filter.parse import GivenFilter, filter_key, given_filter
from citadel.filter.tree import Filter
from citadel.index.snapshot import Snapshot
from citadel.search.engine import Engine
from citadel.search.grouping import ByDocument, ByField, Groups
from citadel.search.plan import EXACT_ALLOWED, Options, plan_options, resolve_auto
from citadel.text.values import unwrapped
from citadel.types import Scored

if TYPE_CHECKING:
    from citadel._native import Cancel

_MAX_CACHED_OPTIONS = 64
_MAX_CACHED_FILTERS = 8
_PASSAGES_PER_GROUP = 2  # that the first search asks for, per group


class Request(NamedTuple):
    """A search as the engine runs it, and which part of its result is returned."""

    options: Options
    offset: int = 0
    min_score: float | None = None
    allowed: Any = None  # the engine's form of a filter
    cancel: Cancel | None = None
    k: int = 0  # documents or groups, those before the offset included
    filter: Filter | None = None
    groups: Groups | None = None  # None: each passage is a hit
    min_relevance: float | None = None

    def without_semantic(self) -> Request:
        """The same search by tokens alone."""
        return self._replace(options=self.options._replace(semantic="off"))

    def page(self, scored: Scored) -> Scored:
        """The part of a result that was requested."""
        if self.min_score is not None:
            kept = np.flatnonzero(scored.scores >= np.float64(self.min_score))  # as `hit.score` compares
            scored = scored._replace(numbers=scored.numbers[kept], scores=scored.scores[kept])
        if not self.offset:
            return scored
        return scored._replace(numbers=scored.numbers[self.offset :], scores=scored.scores[self.offset :])


class Requests:
    """Checks and resolves the options of searches over one snapshot; recent options and filters are kept."""

    def __init__(self, snapshot: Snapshot, engine: Engine[Any]) -> None:
        self._snapshot, self._engine = snapshot, engine
        self._documents = ByDocument(snapshot) if snapshot.has_long_documents else None
        # The engine weighs a scan of few allowed documents itself.
        self._is_sublinear = snapshot.settings.router == "centroid" or resolve_auto(snapshot) == "auto"
        self._options: dict[Any, Options] = {}
        self._filters: dict[Hashable, tuple[Filter, Any]] = {}
        self._lock = threading.Lock()

    def make(
        self,
        k: int,
        semantic_mode: str,
        tau: float | None,
        cancel: Cancel | None = None,
        filter: GivenFilter | None = None,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        ef: int | None = None,
        min_relevance: float | None = None,
        effort: float | None = None,
    ) -> Request:
        """Check the arguments of a search."""
        if offset.__class__ is not int or offset or min_score is not None:
            k, offset, min_score = check_page(unwrapped(k), unwrapped(offset), unwrapped(min_score))
            k += offset
        parsed, allowed = None, None
        if filter is not None:
            parsed, allowed = self._prepared(filter, cancel)
            if semantic_mode == "auto" and not self._is_sublinear and len(allowed) < EXACT_ALLOWED:
                semantic_mode = "exact"
        groups = self._documents if group_by is None else ByField(self._snapshot, group_by)
        options = self._plan(k, semantic_mode, tau, ef, effort)
        if groups is not None:
            options = self._plan(_PASSAGES_PER_GROUP * int(k), semantic_mode, tau, ef, effort)
        least = None if min_relevance is None else check_relevance(unwrapped(min_relevance))
        return Request(options, offset, min_score, allowed, cancel, k, parsed, groups, least)

    def more(self, request: Request, k: int, masks: Sequence[NDArray[np.bool_]]) -> tuple[Options, Any]:
        """The engine's options and filter to search on for k passages of those in the masks."""
        if request.filter is not None:
            allowed = self._snapshot.allowed_passages(request.filter, request.cancel)
            masks = [mask & own for mask, own in zip(masks, allowed, strict=True)]
        options = self._plan(k, request.options.semantic, None, request.options.ef or None)
        return options._replace(weight_floor=request.options.weight_floor), self._engine.prepare_filter(masks)

    def allowed(self, parsed: Filter, cancel: Cancel | None = None) -> Any:
        """The engine's form of a filter; its `len` is the number of passages of live documents that match."""
        return self._prepared(parsed, cancel)[1]

    def _prepared(self, given: GivenFilter, cancel: Cancel | None) -> tuple[Filter, Any]:
        """A filter parsed, and the engine's form of it. Cached: parsing takes longer than a short search."""
        key = filter_key(given)
        with self._lock:
            if key is not None and (known := self._filters.pop(key, None)):
                self._filters[key] = known  # now the most recent one
                return known
        parsed = given_filter(given)
        assert parsed is not None
        with self._snapshot.whole():
            allowed = self._engine.prepare_filter(self._snapshot.allowed_passages(parsed, cancel))
        if key is not None:
            with self._lock:
                while len(self._filters) >= _MAX_CACHED_FILTERS:
                    del self._filters[next(iter(self._filters))]
                self._filters[key] = parsed, allowed
        return parsed, allowed

    def _plan(
        self, k: int, semantic_mode: str, tau: float | None, ef: int | None, effort: float | None = None
    ) -> Options:
        """Cached: planning takes a twentieth of a short query."""
        classes = (k.__class__, ef.__class__, effort.__class__)  # tell True from 1
        key = (classes, k, semantic_mode, tau, ef, effort)
        try:
            return self._options[key]
        except (KeyError, TypeError):  # new, or unhashable
            options = plan_options(self._snapshot, k, semantic_mode, tau, ef, effort)
        if len(self._options) < _MAX_CACHED_OPTIONS:
            self._options[key] = options
        return options


def check_relevance(least: float) -> float:
    """Check the smallest relevance of a hit and return it."""
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
        raise UsageError(f"min_relevance must be a number from 0 to 1, not {least!r}")
    return float(least)


def check_page(k: int, offset: int, min_score: float | None) -> tuple[int, int, float | None]:
    """Check the arguments of a page of hits and return them."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise UsageError(f"k must be a whole number of 0 or more, not {k!r}")
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise UsageError(f"offset must be a whole number of 0 or more, not {offset!r}")
    if min_score is None:
        return k, offset, None
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or min_score != min_score:
        raise UsageError(f"min_score must be a number, not {min_score!r}")
    try:
        return k, offset, float(min_score)
    except OverflowError:
        raise UsageError("min_score must be a number in the range of a float") from None
