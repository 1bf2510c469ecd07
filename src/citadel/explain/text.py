"""Explain a text: every token with its keys, their weights, and whether τ keeps them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from citadel.encode.pruning import best_of_keys
from citadel.errors import UsageError
from citadel.explain.context import SearchContext
from citadel.explain.postings import find_terms, list_lengths
from citadel.explain.result import FORMAT
from citadel.explain.tokens import key_name, model_tokens, row_positions, term_tokens
from citadel.text.snippet import MAX_ANALYSED

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder
    from citadel.types import RoutedTokens

SIDES = ("document", "query")
_LARGEST_TAU = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class TextKey:
    """A key of a token: `kept` if its weight is above τ, `repeated` if better postings of the key are kept.

    >>> TextKey(7, "relativity", 1.5, True).kept
    True
    """

    key: int | None
    name: str
    weight: float
    kept: bool
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token with its keys, best first: `routed` if it may have keys, `pruned` if none is kept.

    >>> TextToken(1, "##ity", "text", 5, 8, True, (TextKey(7, "relativity", 0.5, False),)).pruned
    True
    """

    position: int
    token: str | None
    field: str | None
    start: int | None
    end: int | None
    routed: bool
    keys: tuple[TextKey, ...]

    @property
    def pruned(self) -> bool:
        return not any(key.kept for key in self.keys)


@dataclass(frozen=True, slots=True)
class TextExplanation:
    """A text as an index would store it, at most its first 100,000 characters.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp())
    >>> index.add([{"id": "d1", "text": "Einstein proposed relativity"}])
    1
    >>> explanation = index.commit().searcher().explain_text("the theory of relativity")
    >>> [(token.keys[0].name, explanation.text[token.start : token.end]) for token in explanation.tokens]
    [('theori', 'theory'), ('rel', 'relativity')]
    """

    text: str
    side: str
    router: str
    tau: float
    cut: bool
    tokens: tuple[TextToken, ...]
    keys: tuple[TextKey, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        value = {"format": FORMAT, **asdict(self)}
        for token, row in zip(self.tokens, value["tokens"], strict=True):
            row["pruned"] = token.pruned
        return value


def explain_text(
    encoder: Encoder, text: str, *, tau: float | None = None, side: str = "document"
) -> TextExplanation:
    """Explain a text with a model; `tau` defaults to the encoder's."""
    _check(text, side)
    tau = _tau(encoder, tau, side)
    whole_text, text = text, text[:MAX_ANALYSED]
    config, tokenizer = encoder.config, encoder.tokenizer
    if side == "document":
        [encoded] = tokenizer.documents([text])
        [routed] = encoder.route([encoded], config.document_keys, 0.0)
    else:
        [encoded] = tokenizer.queries([text])
        [routed] = encoder.route_queries([encoded], config.backbone.vocabulary)
    keys = _keys(encoder, routed, tau, side)
    by_position: dict[int, list[TextKey]] = {}
    for key, positions in zip(keys, row_positions(encoded, routed), strict=True):
        for position in positions:
            by_position.setdefault(position, []).append(key)
    tokens = tuple(
        TextToken(
            token.position,
            token.token,
            token.field,
            token.start,
            token.end,
            bool(is_routed),
            tuple(by_position.get(token.position, ())),
        )
        for token, is_routed in zip(model_tokens(encoder, encoded), encoded.routed, strict=True)
    )
    whole = tuple(sorted(keys, key=lambda key: -key.weight)) if config.router == "sparse" else ()
    cut = encoded.cut or len(text) < len(whole_text)
    return TextExplanation(text, side, config.router, tau, cut, tokens, whole)


def _keys(encoder: Encoder, routed: RoutedTokens, tau: float, side: str) -> list[TextKey]:
    """One key per row. A query token keeps its best K keys, a document token those above τ."""
    limit, repeated = encoder.config.key_postings, np.zeros(len(routed), np.bool_)
    if side == "document" and limit:
        repeated = ~best_of_keys(routed, limit)
    kept = (routed.weights > np.float32(min(tau, _LARGEST_TAU))) & ~repeated
    if side == "query" and encoder.config.router == "dynamic" and routed.tokens is not None:
        ranks = np.arange(len(routed)) - np.searchsorted(routed.tokens, routed.tokens)
        kept = ranks < encoder.config.query_keys
    rows = zip(*(part.tolist() for part in (routed.keys, routed.weights, kept, repeated)), strict=True)
    return [TextKey(key, key_name(encoder, key), *rest) for key, *rest in rows]


def explain_terms(
    context: SearchContext, text: str, *, tau: float | None = None, side: str = "document"
) -> TextExplanation:
    """Explain a text with the analyser of a bm25 index; weights are idf, stop words are dropped."""
    _check(text, side)
    if tau is not None:
        raise UsageError("τ prunes the weights of a dynamic router; bm25 has none: omit tau")
    assert context.statistics is not None
    cut, text = len(text) > MAX_ANALYSED, text[:MAX_ANALYSED]
    analysed = context.analyser.tokens(text)
    terms = sorted({term.encode() for term in analysed.texts})
    lists = [find_terms(segment, terms) for segment in context.snapshot.segments]
    lengths = [list_lengths(*pair) for pair in zip(context.snapshot.segments, lists, strict=True)]
    frequencies = context.statistics.frequencies(np.array(lists), np.array(lengths))
    weights = context.statistics.weights(frequencies, [1] * len(terms)).tolist()
    keys = {
        term.decode(): TextKey(None, term.decode(), idf, True)
        for term, idf in zip(terms, weights, strict=True)
    }
    tokens = tuple(
        TextToken(
            token.position, token.token, token.field, token.start, token.end, True, (keys[token.token or ""],)
        )
        for token in term_tokens(analysed)
    )
    return TextExplanation(text, side, "bm25", 0.0, cut, tokens)


def _check(text: object, side: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"the text to explain must be a str, not {type(text).__name__}")
    if side not in SIDES:
        raise UsageError(f"unknown side {side!r}: choose one of {', '.join(SIDES)}")


def _tau(encoder: Encoder, tau: float | None, side: str) -> float:
    """The τ to use; only documents of the dynamic router are pruned."""
    if encoder.config.router != "dynamic" or side == "query":
        if tau:
            raise UsageError(
                f"τ prunes documents of a dynamic router; this is a {side} of {encoder.config.router}"
            )
        return 0.0
    used = encoder.tau if tau is None else tau
    if isinstance(used, bool) or not isinstance(used, int | float) or not 0 <= used < math.inf:
        raise UsageError(f"τ must be a finite number of 0 or more, not {used!r}")
    return float(used)
