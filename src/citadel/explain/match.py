"""For a query and a document: each query token, what it met under its key, and its share of the score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from citadel.errors import Cancelled, InputError, UsageError
from citadel.explain.postings import Met, StoredDocument
from citadel.explain.query import Asked, Row, asked_model, asked_terms, asked_vectors
from citadel.explain.result import Alternative, Explanation, Match, Posting, Semantic, Token
from citadel.explain.tokens import Names, Part, first_part, model_names, term_names, term_part
from citadel.index.segment import Segment
from citadel.routing import get_router
from citadel.search.plan import Options, plan_options, tau_used
from citadel.types import Document

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.search.searcher import Searcher


def explain_match(
    searcher: Searcher,
    query: str,
    id: str,
    *,
    semantic_mode: str = "auto",
    tau: float | None = None,
    cancel: Cancel | None = None,
) -> Explanation:
    """Why the document `id` has the score it has for a text."""
    if not isinstance(query, str):
        raise UsageError(f"a query is a text, not {type(query).__name__}")
    ask = asked_terms if searcher.statistics else asked_model
    return _explain(searcher, lambda segment: ask(searcher, query, segment), id, semantic_mode, tau, cancel)


def explain_vectors(
    searcher: Searcher,
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
    """The same for a query given as vectors: keys [n], weights [n], vectors [n, d], semantic [s]."""
    given = {"keys": keys, "weights": weights, "vectors": vectors, "semantic": semantic}
    return _explain(searcher, lambda segment: asked_vectors(searcher, given, segment), id, semantic_mode, tau, cancel)


def _explain(
    searcher: Searcher,
    ask: Callable[[Segment], Asked],
    id: str,
    semantic_mode: str,
    tau: float | None,
    cancel: Cancel | None,
) -> Explanation:
    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled("the explanation was cancelled")

    options = plan_options(searcher.snapshot, 1, semantic_mode, tau)
    segment, number = _locate(searcher, id)
    asked = ask(segment)
    check()
    part = _part(searcher, segment.store.get([number])[0], asked, check)
    check()
    norm = searcher.statistics.norm if searcher.statistics else (0.0, 0.0)
    stored = StoredDocument(searcher.snapshot, segment, number, norm)
    if asked.plan.semantic is None:
        options = options._replace(semantic="off")
    return _assemble(searcher, part, asked, stored, options)


def _locate(searcher: Searcher, id: str) -> tuple[Segment, int]:
    if not isinstance(id, str):
        raise UsageError(f"a document's id is a text, not {type(id).__name__}")
    found = searcher.snapshot.locate([id]) if id.isascii() or id.encode(errors="ignore").decode() == id else {}
    if id not in found:
        raise InputError(f"there is no document {id!r} in this index: take an id that a search has given")
    return found[id]


def _part(searcher: Searcher, document: Document, asked: Asked, check: Callable[[], None]) -> Part:
    """What of the document is analysed; the cost of an explanation does not grow with a long text."""
    if searcher.statistics:
        return term_part(document, [row.name for row in asked.rows if row.name], searcher.analyser, check)
    return first_part(document, 0 if asked.text is None else searcher.encoder.config.document_length)


def _assemble(searcher: Searcher, part: Part, asked: Asked, stored: StoredDocument, options: Options) -> Explanation:
    document = part.document
    settings, names = searcher.settings, _names(searcher, document, asked)
    met = stored.meet(asked.plan, asked.lists, options.weight_floor)
    gains = _gains(met, get_router(settings.router).floor)
    semantic = (
        stored.semantic(asked.plan.semantic) if options.semantic != "off" and asked.plan.semantic is not None else None
    )
    score = _score(gains, semantic)
    matches = [_match(*part, score, names) for part in zip(asked.rows, asked.plan.weights, met, gains, strict=True)]
    used = {place for match in matches for posting in match.postings for place in posting.document_tokens}
    return Explanation(
        query=asked.text,
        id=document.id,
        title=document.title,
        text=document.text,
        router=settings.router,
        codec=stored.segment.meta.codec if stored.segment.meta.kind == "vectors" else None,
        tau=tau_used(settings, options),
        semantic_mode=options.semantic,
        score=None if score is None else float(score),
        semantic=None if semantic is None else Semantic(float(semantic), _share(semantic, score)),
        cut=names.cut,
        query_tokens=_with_alternatives(asked, stored, options),
        document_tokens=tuple(token for token in names.tokens if token.place in used),
        matches=tuple(sorted(matches, key=lambda match: match.query_tokens or (len(asked.tokens),))),
        text_start=part.text_start,
        text_cut=part.cut,
    )


def _names(searcher: Searcher, document: Document, asked: Asked) -> Names:
    """The document's own tokens; a query given as vectors needs no model, so none is loaded to name them."""
    if searcher.statistics:
        return term_names(document, searcher.analyser.tokens(document.encoded_text))
    return Names() if asked.text is None else model_names(searcher.encoder, document)


def _gains(met: Sequence[Met], floor: bool) -> list[np.float32 | None]:
    """What each query token adds (Eq. 5); None where it met nothing."""
    best = [part.products[part.alive].max() if part.alive.any() else None for part in met]
    return [np.maximum(value, np.float32(0)) if floor and value is not None else value for value in best]


def _score(gains: Sequence[np.float32 | None], semantic: np.float32 | None) -> np.float32 | None:
    """The engine's sum: fp32, in the plan's order, the semantic part last."""
    total = np.float32(0)
    for gain in gains:
        total = total if gain is None else total + gain
    if semantic is not None:
        return total + semantic
    return total if any(gain is not None for gain in gains) else None


def _share(gain: np.float32, score: np.float32 | None) -> float | None:
    return float(gain) / float(score) if score else None


def _match(row: Row, weight: float, met: Met, gain: np.float32 | None, score: np.float32 | None, names: Names) -> Match:
    places = names.postings(row.called, len(met.products))
    rows = zip(places, met.weights.tolist(), met.counts.tolist(), met.products.tolist(), strict=True)
    postings = [Posting(*row) for row, alive in zip(rows, met.alive.tolist(), strict=True) if alive]
    gain = np.float32(0) if gain is None else gain
    best_first = tuple(sorted(postings, key=lambda posting: -posting.product))
    return Match(row.tokens, row.key, row.name, float(weight), float(gain), _share(gain, score), best_first)


def _with_alternatives(asked: Asked, stored: StoredDocument, options: Options) -> tuple[Token, ...]:
    """The query's tokens with the keys they did not take."""
    if asked.others is None:
        return asked.tokens
    found: dict[int, list[Alternative]] = {}
    met = stored.meet(asked.others.plan, asked.others.lists, options.weight_floor)
    for row, weight, part in zip(asked.others.rows, asked.others.plan.weights.tolist(), met, strict=True):
        product = float(part.products[part.alive].max()) if part.alive.any() else None
        assert row.key is not None
        for place in row.tokens:
            found.setdefault(place, []).append(Alternative(row.key, row.name, weight, product))
    best_first = {place: sorted(keys, key=lambda one: -one.weight) for place, keys in found.items()}
    return tuple(replace(token, alternatives=tuple(best_first.get(token.place, ()))) for token in asked.tokens)
