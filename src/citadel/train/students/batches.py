"""Batches of `citadel distill`, as a pure function of seed and step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citadel.train.data import Examples
from citadel.train.students.config import BatchPart
from citadel.train.students.spans import Corpus, Spans

_STEP = 8  # tokens: passages of one batch are cut to the same multiple
_GROUPS = 2  # by length, to reduce padding; more would leave a GPU waiting for its host
_CROP_WORDS = 16
_SEED = 21  # random stream, distinct from those of `citadel train`


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts of similar length, encoded together."""

    spans: Spans
    is_query: bool


@dataclass(frozen=True, slots=True)
class StudentBatch:
    """The texts of one step; `scored` compares all its queries with all its passages."""

    kind: str
    groups: list[TextGroup]
    scored: bool = False


@dataclass(frozen=True, slots=True)
class _Bucket:
    length: int
    rows: NDArray[np.int64]  # of passages at least as long
    size: int  # per batch


class StudentBatches:
    """Draws the batch of any step; a resumed run sees the same ones."""

    def __init__(
        self, corpus: Corpus, examples: Examples, part: BatchPart, seed: int, query_length: int, longest: int
    ) -> None:
        self._corpus, self._part, self._seed, self._query_length = corpus, part, seed, query_length
        self._examples, self._cut, self._longest = examples, min(part.cut, longest), longest
        self._weights = np.cumsum(examples.weight / examples.weight.sum())
        self._order = np.argsort(examples.positive, kind="stable")  # of the pairs, by their passages
        self._rank = np.argsort(self._order)
        lengths = corpus.passages.lengths
        self._short = self._buckets(np.minimum(lengths, self._cut), np.arange(len(lengths)))
        self._long = self._buckets(np.minimum(lengths, longest), np.flatnonzero(lengths > self._cut))

    def batch(self, step: int) -> StudentBatch:
        """The batch of a step, counted from 0."""
        rng = np.random.default_rng((self._seed, _SEED, step))
        kind = self._part.cycle[step % len(self._part.cycle)]
        if kind == "pairs":
            return self._pairs(rng)
        if kind == "passages":
            return StudentBatch(kind, [TextGroup(self._passages(rng), is_query=False)])
        return StudentBatch(kind, _grouped(self._queries(rng, self._part.queries), _GROUPS, True))

    def _buckets(self, lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> list[_Bucket]:
        """Group passages by length; nothing of a batch is padded, because its texts are cut alike."""
        rounded = np.maximum(lengths[rows] // _STEP, 1) * _STEP
        order = np.argsort(rounded, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(rounded[order])) + 1) if len(order) else []
        return [
            _Bucket(int(rounded[part[0]]), rows[part], max(1, self._part.tokens // int(rounded[part[0]])))
            for part in parts
        ]

    def _passages(self, rng: np.random.Generator) -> Spans:
        if rng.random() < self._part.joined:
            return self._joined(rng)
        buckets = self._long if self._long and rng.random() < self._part.long else self._short
        share = np.array([len(bucket.rows) / bucket.size for bucket in buckets])  # batches per epoch
        bucket = buckets[int(rng.choice(len(buckets), p=share / share.sum()))]
        chosen = bucket.rows[rng.integers(len(bucket.rows), size=bucket.size)]
        return self._corpus.passages.some(chosen).cut(bucket.length)

    def _joined(self, rng: np.random.Generator) -> Spans:
        """Texts longer than most passages, which run on into the next passages."""
        longest = min(self._longest, self._corpus.passages_end + 2)
        size = int(rng.integers(min(self._cut, longest), longest + 1)) // _STEP * _STEP or longest
        rows = rng.integers(len(self._corpus.passages), size=max(1, self._part.tokens // size))
        begins = np.minimum(self._corpus.passages.begins[rows], self._corpus.passages_end - size + 2)
        return Spans(begins, np.full(len(begins), size - 2))

    def _chosen(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Pairs, `near` at a time of neighbouring passages."""
        part = self._part
        first = np.searchsorted(self._weights, rng.random(-(-part.pairs // part.near)), side="right")
        rank = self._rank[np.minimum(first, len(self._weights) - 1)][:, None] + np.arange(part.near)
        chosen = self._order[np.minimum(rank, len(self._order) - 1)]
        return np.asarray(chosen.ravel()[: part.pairs], np.int64)

    def _pairs(self, rng: np.random.Generator) -> StudentBatch:
        """Real queries and their passages, with random short queries and extra texts on both sides."""
        part, corpus = self._part, self._corpus
        chosen = self._chosen(rng)
        queries = [corpus.queries.some(self._examples.query[chosen]).cut(self._query_length)]
        limit = self._longest if rng.random() < part.long else self._cut
        passages = [corpus.passages.some(np.unique(self._examples.positive[chosen])).cut(limit)]
        if short := round(part.pairs * part.words):
            queries.append(self._words(rng, short))
        if (extra := round(part.pairs * part.extra)) and len(corpus.extra):
            drawn = corpus.extra.some(rng.integers(len(corpus.extra), size=extra))
            passages.append(drawn.cut(self._cut))
        groups = _grouped(Spans.joined(queries), 1, True)
        groups += _grouped(Spans.joined(passages), _GROUPS, False)
        return StudentBatch("pairs", groups, scored=True)

    def _queries(self, rng: np.random.Generator, count: int) -> Spans:
        part, corpus = self._part, self._corpus
        shares = (part.words, part.crops, part.sentences, part.extra)
        words, crops, sentences, extra = (round(count * share) for share in shares)
        extra = extra if len(corpus.extra) else 0
        sentences = sentences if len(corpus.sentences) else 0
        real = max(0, count - words - crops - sentences - extra)
        drawn = [corpus.queries.some(rng.integers(len(corpus.queries), size=real))]
        drawn += [self._words(rng, words), self._crops(rng, crops)]
        if sentences:
            drawn.append(corpus.sentences.some(rng.integers(len(corpus.sentences), size=sentences)))
        if extra:
            drawn.append(corpus.extra.some(rng.integers(len(corpus.extra), size=extra)))
        return Spans.joined(drawn).cut(self._query_length)

    def _words(self, rng: np.random.Generator, count: int) -> Spans:
        """One word or two adjacent words of a random passage."""
        return self._strings(rng, rng.integers(1, 3, size=count))

    def _crops(self, rng: np.random.Generator, count: int) -> Spans:
        """Some adjacent words of a random passage."""
        return self._strings(rng, rng.integers(3, _CROP_WORDS + 1, size=count))

    def _strings(self, rng: np.random.Generator, words: NDArray[np.int64]) -> Spans:
        starts = self._corpus.word_starts
        words = words if len(starts) else words[:0]
        first = rng.integers(max(len(starts) - _CROP_WORDS - 1, 1), size=len(words))
        last = np.minimum(first + words, len(starts) - 1)
        begins = starts[first].astype(np.int64)
        # The last words of a passage: the next word is in the next passage.
        return Spans(begins, self._corpus.within_text(begins, np.maximum(starts[last] - begins, 1)))


def _grouped(spans: Spans, groups: int, is_query: bool) -> list[TextGroup]:
    """Split into groups of similar length."""
    order = np.argsort(spans.lengths, kind="stable")
    parts = np.array_split(order, min(groups, len(order)))
    return [TextGroup(spans.some(part), is_query) for part in parts if len(part)]
