"""The query of an explanation: its tokens, its plan, and the tokens of each plan row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.explain.context import SearchContext
from citadel.explain.postings import find_keys, find_terms, list_lengths
from citadel.explain.result import Token
from citadel.explain.tokens import Positions, key_name, model_tokens, row_positions, term_tokens
from citadel.index.segment import Segment
from citadel.search.plan import NO_KEYS, Plan, count_terms, plan_vectors, row_order
from citadel.types import RoutedTokens

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder

_PARTS = ("keys", "weights", "vectors", "semantic")


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A row of a plan: positions of its query tokens, its key, and the key's name."""

    tokens: Positions
    key: int | None
    name: str | None

    @property
    def posting_key(self) -> int | str | None:
        """The key of its postings in a document: a number, or a term for bm25."""
        return self.name if self.key is None else self.key


@dataclass(frozen=True, slots=True)
class ExplainedQuery:
    """A query against one segment; rows and lists are in the order of the plan."""

    text: str | None
    tokens: tuple[Token, ...]
    rows: tuple[PlanRow, ...]
    plan: Plan
    lists: NDArray[np.int64]  # [n]
    unused: ExplainedQuery | None = None  # the keys that the query's tokens did not use, as a query


def term_query(context: SearchContext, query: str, segment: Segment) -> ExplainedQuery:
    """A bm25 query."""
    assert context.statistics is not None
    analysed = context.analyser.tokens(query)
    terms, repeats = count_terms(analysed.texts)
    segments = context.snapshot.segments
    lists = np.stack([find_terms(part, terms) for part in segments])  # [segments, n]
    lengths = np.stack([list_lengths(part, row) for part, row in zip(segments, lists, strict=True)])
    weights = context.statistics.weights(context.statistics.frequencies(lists, lengths), repeats)
    names = [term.decode() for term in terms]
    rows = [
        PlanRow(tuple(p for p, term in enumerate(analysed.texts) if term == name), None, name)
        for name in names
    ]
    tokens = tuple(term_tokens(analysed, "query"))
    return ExplainedQuery(query, tokens, tuple(rows), Plan(NO_KEYS, weights), lists[segments.index(segment)])


def model_query(context: SearchContext, query: str, segment: Segment) -> ExplainedQuery:
    """A query encoded by the index's model."""
    encoder = context.encoder
    [text] = encoder.tokenizer.queries([query])
    [routed] = encoder.route_queries([text], encoder.config.backbone.vocabulary)
    positions = row_positions(text, routed)
    is_used = _is_used(
        routed, encoder.config.query_keys if encoder.config.router == "dynamic" else len(routed)
    )
    tokens = tuple(replace(token, field=token.field and "query") for token in model_tokens(encoder, text))
    used, unused = (
        _rows_query(context, routed, positions, kept, segment, encoder) for kept in (is_used, ~is_used)
    )
    return replace(used, text=query, tokens=tokens, unused=unused)


def _is_used(routed: RoutedTokens, limit: int) -> NDArray[np.bool_]:
    """Which rows are among the best `limit` of their token [P]; rows are sorted by token, best first."""
    if routed.tokens is None:
        return np.ones(len(routed), np.bool_)
    return np.arange(len(routed)) - np.searchsorted(routed.tokens, routed.tokens) < limit


def _rows_query(
    context: SearchContext,
    routed: RoutedTokens,
    positions: list[Positions],
    kept: NDArray[np.bool_],
    segment: Segment,
    encoder: Encoder,
) -> ExplainedQuery:
    """The kept rows of a routed query, without its text and tokens."""
    keys, weights = routed.keys[kept], routed.weights[kept]
    vectors = None if routed.vectors is None else routed.vectors[kept]
    plan = plan_vectors(context.settings, keys, weights, vectors, routed.semantic)
    numbers = np.flatnonzero(kept)[row_order(keys, weights)].tolist()
    rows = [
        PlanRow(positions[n], int(routed.keys[n]), key_name(encoder, int(routed.keys[n]))) for n in numbers
    ]
    return ExplainedQuery(None, (), tuple(rows), plan, find_keys(segment, plan.keys))


def vector_query(context: SearchContext, parts: dict[str, Any], segment: Segment) -> ExplainedQuery:
    """A query of vectors; its tokens are its rows and have no names."""
    plan = plan_vectors(context.settings, *(parts.get(name) for name in _PARTS))
    keys, weights, vectors = (parts.get(name) for name in _PARTS[:3])
    count = len(keys) if keys is not None else len(vectors) if vectors is not None else 0
    all_keys = np.zeros(count, np.uint32) if keys is None else np.asarray(keys).astype(np.uint32)
    all_weights = np.ones(count, np.float32) if weights is None else np.asarray(weights, np.float32)
    order = row_order(all_keys, all_weights).tolist()
    rows = tuple(PlanRow((position,), int(all_keys[position]), None) for position in order)
    tokens = tuple(Token(position, None) for position in range(count))
    return ExplainedQuery(None, tokens, rows, plan, find_keys(segment, plan.keys))
