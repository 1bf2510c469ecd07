"""The part of a searcher that explanations use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from citadel.index.snapshot import Snapshot
from citadel.search.plan import Options, Plan, TermStatistics
from citadel.settings import Settings
from citadel.text.analyser import Analyser

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.encode.encoder import Encoder


class SearchContext(Protocol):
    """A snapshot with the model or analyser of its index; a `Searcher` is one."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def statistics(self) -> TermStatistics | None:
        """None unless the index is bm25."""
        ...

    @property
    def encoder(self) -> Encoder:
        """The model for queries."""
        ...

    @property
    def document_encoder(self) -> Encoder: ...
    @property
    def analyser(self) -> Analyser: ...
    def best_passage(self, plan: Plan, passages: range, options: Options, cancel: Cancel | None) -> int:
        """The passage with the highest score among those of one document."""
        ...
