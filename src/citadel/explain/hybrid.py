"""Why a hybrid search ranks a document where it does: each part with its own explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from citadel.explain.result import Explanation


@dataclass(frozen=True, slots=True)
class HybridPart:
    """One searcher of a hybrid: its score and rank of the document, and what that adds to the sum.

    >>> HybridPart("bm25", 0.25, 7.5, 1, 0.25, None).gain
    0.25
    """

    name: str
    weight: float
    score: float | None  # None if the document is not among the candidates of this searcher
    rank: int | None
    gain: float
    explanation: Explanation | None  # None if this searcher does not have the document


@dataclass(frozen=True, slots=True)
class HybridExplanation:
    """Why a document has its score in a hybrid search: the gains of `parts` add up to `score`.

    >>> part = HybridPart("bm25", 1.0, 7.5, 1, 1.0, None)
    >>> HybridExplanation("relativity", "d1", "linear", 1.0, (part,)).to_json()["parts"][0]["rank"]
    1
    """

    query: str
    id: str
    method: str
    score: float
    parts: tuple[HybridPart, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types; each part has its explanation in its own format."""
        return {
            "query": self.query,
            "id": self.id,
            "method": self.method,
            "score": self.score,
            "parts": [_part(part) for part in self.parts],
        }


def _part(part: HybridPart) -> dict[str, Any]:
    explanation = None if part.explanation is None else part.explanation.to_json()
    numbers = {"name": part.name, "weight": part.weight, "score": part.score, "rank": part.rank}
    return numbers | {"gain": part.gain, "explanation": explanation}
