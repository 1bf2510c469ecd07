"""Hybrid search in one index that has BM25 lists beside those of its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from citadel.errors import UsageError
from citadel.filter.parse import GivenFilter
from citadel.index.snapshot import Snapshot
from citadel.search.hybrid import Hybrid, HybridQuery, prepared, require_words
from citadel.search.searcher import QueryEncoder, Searcher
from citadel.settings import Settings
from citadel.types import RoutedTokens

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.encode.encoder import Encoder
    from citadel.explain.text import TextExplanation

MODES = ("model", "bm25", "hybrid")
DEFAULT_METHOD = "linear"
DEFAULT_WEIGHTS = (0.85, 0.15)  # of model and BM25, chosen on held-out pairs
CANDIDATES = 100  # hits of each that are fused


class IndexHybrid(Hybrid):
    """Searches the model's lists and the BM25 lists of one generation; from `Index.searcher(mode="hybrid")`.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp(), model="default", hybrid=True)
    >>> added = index.add([{"id": "d1", "text": "a theory of relativity"}, {"id": "d2", "text": "Rome"}])
    >>> hit = index.commit().searcher(mode="hybrid").search("relativity theory", k=1)[0]
    >>> hit.id, [(part.name, part.rank) for part in hit.parts]
    ('d1', [('model', 1), ('bm25', 1)])
    """

    same_index = True

    def __init__(
        self,
        model: Searcher,
        bm25: Searcher,
        method: str = DEFAULT_METHOD,
        weights: Sequence[float] | None = DEFAULT_WEIGHTS,
        candidates: int = CANDIDATES,
    ) -> None:
        super().__init__([model, bm25], method, weights, candidates=candidates, names=("model", "bm25"))

    @property
    def model(self) -> Searcher:
        """The searcher of the model's lists."""
        model: Searcher = self.searchers[0]
        return model

    @property
    def bm25(self) -> Searcher:
        """The searcher of the BM25 lists."""
        bm25: Searcher = self.searchers[1]
        return bm25

    @property
    def snapshot(self) -> Snapshot:
        """The generation that is searched."""
        return self.model.snapshot

    @property
    def settings(self) -> Settings:
        """The settings of the index."""
        return self.model.settings

    @property
    def text_encoder(self) -> QueryEncoder:
        """What encodes queries for the model's lists."""
        return self.model.text_encoder

    @property
    def encoder(self) -> Encoder:
        """The model of the index, loaded on first use."""
        return self.model.encoder

    def __len__(self) -> int:
        return len(self.model)

    def count(self, filter: GivenFilter | None = None, *, cancel: Cancel | None = None) -> int:
        """The number of documents whose metadata match a filter."""
        return self.model.count(filter, cancel=cancel)

    def prepare_routed(self, query: str, routed: RoutedTokens) -> HybridQuery:
        """Prepare a text that `text_encoder` has encoded."""
        model_weight, bm25_weight = self.fusion.weights
        model = self.model.prepare_routed(query, routed) if model_weight and not routed.is_blank else None
        [bm25] = prepared(self.bm25, [query]) if bm25_weight else [None]
        return require_words(HybridQuery(query, (model, bm25)))

    def prepare_vectors(self, *vectors: Any) -> NoReturn:
        """Raise UsageError: BM25 needs the query's text."""
        raise UsageError("vectors are searched in the model's lists alone: use the mode model")

    def explain_text(self, text: str, *, tau: float | None = None, side: str = "document") -> TextExplanation:
        """Every token of a text with its keys and weights in the model's lists."""
        return self.model.explain_text(text, tau=tau, side=side)
