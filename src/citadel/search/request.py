"""What a search returns: how many documents, from which rank and score on, and of which documents."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from citadel.errors import UsageError
from citadel.filter.parse import GivenFilter, given_filter
from citadel.filter.tree import Filter
from citadel.index.snapshot import Snapshot
from citadel.search.engine import Engine
from citadel.search.plan import Options, plan_options, resolve_auto
from citadel.types import Scored

if TYPE_CHECKING:
    from citadel._native import Cancel

_MAX_CACHED_OPTIONS = 64
_MAX_CACHED_FILTERS = 8


class Request(NamedTuple):
    """A search as the engine runs it, and which part of its result is returned."""

    options: Options
    offset: int = 0
    min_score: float | None = None
    allowed: Any = None  # the engine's form of a filter
    cancel: Cancel | None = None

    def without_semantic(self) -> Request:
        """The same search by tokens alone."""
        return self._replace(options=self.options._replace(semantic="off"))

    def page(self, scored: Scored) -> Scored:
        """The part of a result that was requested."""
        if self.min_score is not None:
            kept = np.flatnonzero(scored.scores >= self.min_score)
            scored = scored._replace(numbers=scored.numbers[kept], scores=scored.scores[kept])
        if not self.offset:
            return scored
        return scored._replace(numbers=scored.numbers[self.offset :], scores=scored.scores[self.offset :])


class Requests:
    """Checks and resolves the options of searches over one snapshot; recent options and filters are kept."""

    def __init__(self, snapshot: Snapshot, engine: Engine[Any]) -> None:
        self._snapshot, self._engine = snapshot, engine
        self._options: dict[Any, Options] = {}
        self._filters: dict[Filter, Any] = {}
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
        ef: int | None = None,
    ) -> Request:
        """Check the arguments of a search."""
        if offset or min_score is not None:
            _check_page(k, offset, min_score)
            k += offset
        if filter is None:
            return Request(self._plan(k, semantic_mode, tau, ef), offset, min_score, None, cancel)
        allowed = self.allowed(filter)
        if semantic_mode == "auto":
            semantic_mode = resolve_auto(self._snapshot, len(allowed))
        return Request(self._plan(k, semantic_mode, tau, ef), offset, min_score, allowed, cancel)

    def allowed(self, filter: GivenFilter) -> Any:
        """The engine's form of a filter."""
        parsed = given_filter(filter)
        assert parsed is not None
        with self._lock:
            if parsed in self._filters:
                self._filters[parsed] = self._filters.pop(parsed)  # now the most recent one
                return self._filters[parsed]
        with self._snapshot.whole():
            allowed = self._engine.prepare_filter(self._snapshot.allowed(parsed))
        with self._lock:
            while len(self._filters) >= _MAX_CACHED_FILTERS:
                del self._filters[next(iter(self._filters))]
            self._filters[parsed] = allowed
        return allowed

    def _plan(self, k: int, semantic_mode: str, tau: float | None, ef: int | None) -> Options:
        """Cached: planning takes a twentieth of a short query."""
        key = (k.__class__, k, semantic_mode, tau, ef.__class__, ef)  # the class tells True from 1
        try:
            return self._options[key]
        except (KeyError, TypeError):  # new, or unhashable
            options = plan_options(self._snapshot, k, semantic_mode, tau, ef)
        if len(self._options) < _MAX_CACHED_OPTIONS:
            self._options[key] = options
        return options


def _check_page(k: int, offset: int, min_score: float | None) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise UsageError(f"k must be a whole number of 0 or more, not {k!r}")
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise UsageError(f"offset must be a whole number of 0 or more, not {offset!r}")
    if min_score is None:
        return
    if isinstance(min_score, bool) or not isinstance(min_score, int | float) or min_score != min_score:
        raise UsageError(f"min_score must be a number, not {min_score!r}")
