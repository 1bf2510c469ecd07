"""Explain a match: each query token, the document tokens with its key, and its share of the score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from citadel.encode.passages import PassageSplitter
from citadel.errors import Cancelled, InputError, UsageError
from citadel.explain.centroid import centroid_matches
from citadel.explain.context import SearchContext
from citadel.explain.postings import DocumentPostings, MatchedPostings
from citadel.explain.query import ExplainedQuery, PlanRow, model_query, term_query, vector_query
from citadel.explain.result import Alternative, Explanation, Match, Posting, Semantic, Token
from citadel.explain.tokens import (
    AnalysedPart,
    DocumentTokens,
    first_part,
    model_document,
    passage_part,
    term_document,
    term_part,
)
from citadel.index.documents import DocumentStore
from citadel.index.segment import Segment
from citadel.routing import get_router
from citadel.search.plan import Options, plan_options, tau_used

if TYPE_CHECKING:
    from citadel._native import Cancel


def explain_match(
    context: SearchContext,
    query: str,
    id: str,
    *,
    semantic_mode: str = "auto",
    tau: float | None = None,
    cancel: Cancel | None = None,
) -> Explanation:
    """Explain the score of the document `id` for a text query."""
    if not isinstance(query, str):
        raise UsageError(f"a query must be a string, not {type(query).__name__}")
    make_query = term_query if context.statistics else model_query
    return _explain(
        context, lambda segment: make_query(context, query, segment), id, semantic_mode, tau, cancel
    )


def explain_vectors(
    context: SearchContext,
    keys: Any,
    weights: Any,
    vectors: Any,
    semantic: Any,
    id: str,
    *,
    semantic_mode: str = "auto",
    tau: float | None = None,
    cancel: Cancel | None = None,
) -> Explanation:
    """Explain the score for query vectors: keys [n], weights [n], vectors [n, d], semantic [s]."""
    parts = {"keys": keys, "weights": weights, "vectors": vectors, "semantic": semantic}
    return _explain(
        context, lambda segment: vector_query(context, parts, segment), id, semantic_mode, tau, cancel
    )


def _explain(
    context: SearchContext,
    make_query: Callable[[Segment], ExplainedQuery],
    id: str,
    semantic_mode: str,
    tau: float | None,
    cancel: Cancel | None,
) -> Explanation:
    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled("the explanation was cancelled")

    options = plan_options(context.snapshot, 1, semantic_mode, tau)
    if options.semantic == "auto":  # the score is the same with and without a graph
        options = options._replace(semantic="exact")
    segment, number = _locate(context, id)
    query = make_query(segment)
    if query.plan.semantic is None:
        options = options._replace(semantic="off")
    check()
    passage = _best_passage(context, segment, number, query, options, cancel)
    if (span := segment.span(passage)) is None:
        part = _part(context, segment.store, number, query, check)
    else:
        part = passage_part(segment.store, number, span)
    check()
    norm = context.statistics.norm if context.statistics else (0.0, 0.0)
    stored = DocumentPostings(context.snapshot, segment, passage, norm)
    return _assemble(context, part, query, stored, options)


def _best_passage(
    context: SearchContext,
    segment: Segment,
    number: int,
    query: ExplainedQuery,
    options: Options,
    cancel: Cancel | None,
) -> int:
    """The passage of a document that gives it its score, by its number in the segment."""
    own = segment.passages_of(number)
    if len(own) == 1:
        return own.start
    base = int(context.snapshot.passage_bases[context.snapshot.segments.index(segment)])
    passages = range(own.start + base, own.stop + base)
    return context.best_passage(query.plan, passages, options, cancel) - base


def _locate(context: SearchContext, id: str) -> tuple[Segment, int]:
    if not isinstance(id, str):
        raise UsageError(f"a document's id must be a string, not {type(id).__name__}")
    located = (
        context.snapshot.locate([id]) if id.isascii() or id.encode(errors="ignore").decode() == id else {}
    )
    if id not in located:
        raise InputError(f"no document {id!r} in this index: use an id from a search result")
    return located[id]


def _part(
    context: SearchContext,
    store: DocumentStore,
    number: int,
    query: ExplainedQuery,
    check: Callable[[], None],
) -> AnalysedPart:
    """The part of the document to analyse, bounded for long texts."""
    if context.statistics:
        terms = [row.name for row in query.rows if row.name]
        return term_part(store, number, terms, context.analyser, check)
    length = 0 if query.text is None else context.document_encoder.config.document_length
    return first_part(store, number, length)


def _assemble(
    context: SearchContext,
    part: AnalysedPart,
    query: ExplainedQuery,
    stored: DocumentPostings,
    options: Options,
) -> Explanation:
    document = part.document
    settings, tokens = context.settings, _document_tokens(context, part, query)
    semantic = None
    if stored.segment.meta.kind == "centroid":
        score, matches = centroid_matches(context.snapshot, stored.segment, stored.number, query, tokens)
    else:
        score, semantic, matches = _key_matches(context, query, stored, options, tokens)
    used = {
        position for match in matches for posting in match.postings for position in posting.document_tokens
    }
    return Explanation(
        query=query.text,
        id=document.id,
        title=document.title,
        text=document.text,
        router=settings.router,
        codec=stored.segment.meta.codec if stored.segment.meta.kind in ("vectors", "centroid") else None,
        tau=tau_used(settings, options),
        semantic_mode=options.semantic,
        score=None if score is None else float(score),
        semantic=None if semantic is None else Semantic(float(semantic), _share(semantic, score)),
        cut=tokens.cut,
        query_tokens=_with_alternatives(query, stored, options),
        document_tokens=tuple(token for token in tokens.tokens if token.position in used),
        matches=tuple(sorted(matches, key=lambda match: match.query_tokens or (len(query.tokens),))),
        text_start=part.text_start,
        text_cut=part.cut,
    )


def _key_matches(
    context: SearchContext,
    query: ExplainedQuery,
    stored: DocumentPostings,
    options: Options,
    tokens: DocumentTokens,
) -> tuple[np.float32 | None, np.float32 | None, list[Match]]:
    """The score, its semantic part, and a match per query token with the document's postings of its key."""
    matched = stored.match(query.plan, query.lists, options.weight_floor)
    gains = _gains(matched, get_router(context.settings.router).floor)
    pooled = query.plan.semantic if options.semantic != "off" else None
    semantic = None if pooled is None else stored.semantic(pooled)
    score = _score(gains, semantic)
    rows = zip(query.rows, query.plan.weights, matched, gains, strict=True)
    return score, semantic, [_match(*row, score, tokens) for row in rows]


def _document_tokens(context: SearchContext, part: AnalysedPart, query: ExplainedQuery) -> DocumentTokens:
    """The document's tokens; none for query vectors, so that no model is loaded."""
    document = part.document
    if context.statistics:
        return term_document(document, context.analyser.tokens(document.encoded_text))
    if query.text is None:
        return DocumentTokens()
    tokenizer, long = context.document_encoder.tokenizer, context.settings.long
    if part.is_passage or (
        long.mode == "chunk" and document.text.strip() and tokenizer.documents([document.encoded_text])[0].cut
    ):
        document = replace(document, title=PassageSplitter(tokenizer, long).title(document.title))
    return model_document(context.document_encoder, document)


def _gains(matched: Sequence[MatchedPostings], floor: bool) -> list[np.float32 | None]:
    """What each query token adds (Eq. 5); None without a match."""
    best = [part.products[part.kept].max() if part.kept.any() else None for part in matched]
    return [np.maximum(value, np.float32(0)) if floor and value is not None else value for value in best]


def _score(gains: Sequence[np.float32 | None], semantic: np.float32 | None) -> np.float32 | None:
    """Sum as the engine does: in fp32, in plan order, the semantic product last."""
    total = np.float32(0)
    for gain in gains:
        total = total if gain is None else total + gain
    if semantic is not None:
        return total + semantic
    return total if any(gain is not None for gain in gains) else None


def _share(gain: np.float32, score: np.float32 | None) -> float | None:
    return float(gain) / float(score) if score else None


def _match(
    row: PlanRow,
    weight: float,
    matched: MatchedPostings,
    gain: np.float32 | None,
    score: np.float32 | None,
    tokens: DocumentTokens,
) -> Match:
    positions = tokens.postings(row.posting_key, len(matched.products))
    rows = zip(
        positions, matched.weights.tolist(), matched.counts.tolist(), matched.products.tolist(), strict=True
    )
    postings = [Posting(*fields) for fields, kept in zip(rows, matched.kept.tolist(), strict=True) if kept]
    gain = np.float32(0) if gain is None else gain
    best_first = tuple(sorted(postings, key=lambda posting: -posting.product))
    return Match(row.tokens, row.key, row.name, float(weight), float(gain), _share(gain, score), best_first)


def _with_alternatives(
    query: ExplainedQuery, stored: DocumentPostings, options: Options
) -> tuple[Token, ...]:
    """The query's tokens with the keys they did not use."""
    if query.unused is None:
        return query.tokens
    alternatives: dict[int, list[Alternative]] = {}
    matched = stored.match(query.unused.plan, query.unused.lists, options.weight_floor)
    for row, weight, part in zip(query.unused.rows, query.unused.plan.weights.tolist(), matched, strict=True):
        product = float(part.products[part.kept].max()) if part.kept.any() else None
        assert row.key is not None
        for position in row.tokens:
            alternatives.setdefault(position, []).append(Alternative(row.key, row.name, weight, product))
    best_first = {
        position: sorted(keys, key=lambda one: -one.weight) for position, keys in alternatives.items()
    }
    return tuple(
        replace(token, alternatives=tuple(best_first.get(token.position, ()))) for token in query.tokens
    )
