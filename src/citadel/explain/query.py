"""A query for one explanation: its tokens, its plan, and which tokens each row of the plan stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.explain.postings import find_keys, find_terms, list_lengths
from citadel.explain.result import Token
from citadel.explain.tokens import Places, key_name, model_tokens, row_places, term_tokens
from citadel.index.segment import Segment
from citadel.search.plan import NO_KEYS, Plan, count_terms, plan_vectors, row_order
from citadel.types import RoutedTokens

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder
    from citadel.search.searcher import Searcher


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a plan: the query tokens it stands for, its key, and the name under which the document has it."""

    tokens: Places
    key: int | None
    name: str | None

    @property
    def called(self) -> int | str | None:
        """What a document's postings are found under: a key's number, or a term."""
        return self.name if self.key is None else self.key


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as it meets one segment; rows, plan and lists stand in the plan's order."""

    text: str | None
    tokens: tuple[Token, ...]
    rows: tuple[Row, ...]
    plan: Plan
    lists: NDArray[np.int64]  # [n]
    others: Asked | None = None  # the keys that were not taken, as a query of their own


def asked_terms(searcher: Searcher, query: str, segment: Segment) -> Asked:
    """A bm25 query."""
    assert searcher.statistics is not None
    found = searcher.analyser.tokens(query)
    terms, repeats = count_terms(found.texts)
    segments = searcher.snapshot.segments
    lists = np.stack([find_terms(part, terms) for part in segments])  # [segments, n]
    lengths = np.stack([list_lengths(part, row) for part, row in zip(segments, lists, strict=True)])
    weights = searcher.statistics.weights(searcher.statistics.frequencies(lists, lengths), repeats)
    names = [term.decode() for term in terms]
    rows = [Row(tuple(p for p, term in enumerate(found.texts) if term == name), None, name) for name in names]
    tokens = tuple(term_tokens(found, "query"))
    return Asked(query, tokens, tuple(rows), Plan(NO_KEYS, weights), lists[segments.index(segment)])


def asked_model(searcher: Searcher, query: str, segment: Segment) -> Asked:
    """A query through the index's model."""
    encoder = searcher.encoder
    [text] = encoder.tokenizer.queries([query])
    [routed] = encoder.route([text], encoder.config.backbone.vocabulary, 0.0)
    places = row_places(text, routed)
    taken = _taken(routed, encoder.config.query_keys if encoder.config.router == "dynamic" else len(routed))
    tokens = tuple(replace(token, field=token.field and "query") for token in model_tokens(encoder, text))
    used, left = (_of_rows(searcher, routed, places, kept, segment, encoder) for kept in (taken, ~taken))
    return replace(used, text=query, tokens=tokens, others=left)


def _taken(routed: RoutedTokens, most: int) -> NDArray[np.bool_]:
    """Which rows are among the best `most` of their token [P]; they stand in token order, best first."""
    if routed.tokens is None:
        return np.ones(len(routed), np.bool_)
    return np.arange(len(routed)) - np.searchsorted(routed.tokens, routed.tokens) < most


def _of_rows(
    searcher: Searcher,
    routed: RoutedTokens,
    places: list[Places],
    kept: NDArray[np.bool_],
    segment: Segment,
    encoder: Encoder,
) -> Asked:
    keys, weights = routed.keys[kept], routed.weights[kept]
    vectors = None if routed.vectors is None else routed.vectors[kept]
    plan = plan_vectors(searcher.settings, keys, weights, vectors, routed.semantic)
    numbers = np.flatnonzero(kept)[row_order(keys, weights)].tolist()
    rows = [Row(places[n], int(routed.keys[n]), key_name(encoder, int(routed.keys[n]))) for n in numbers]
    return Asked(None, (), tuple(rows), plan, find_keys(segment, plan.keys))


def asked_vectors(searcher: Searcher, given: dict[str, Any], segment: Segment) -> Asked:
    """A query given as vectors; its tokens are its rows, and have no names."""
    plan = plan_vectors(searcher.settings, *(given.get(name) for name in ("keys", "weights", "vectors", "semantic")))
    keys, weights, vectors = (given.get(name) for name in ("keys", "weights", "vectors"))
    count = len(keys) if keys is not None else len(vectors) if vectors is not None else 0
    named = np.zeros(count, np.uint32) if keys is None else np.asarray(keys).astype(np.uint32)
    weighted = np.ones(count, np.float32) if weights is None else np.asarray(weights, np.float32)
    order = row_order(named, weighted).tolist()
    rows = tuple(Row((place,), int(named[place]), None) for place in order)
    tokens = tuple(Token(place, None) for place in range(count))
    return Asked(None, tokens, rows, plan, find_keys(segment, plan.keys))
