"""Draw batches as a pure function of seed and step, so that a resumed run sees the same batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.train.config import TrainConfig
from citadel.train.crops import crop
from citadel.train.data import Data
from citadel.train.ragged import Ragged, Rows
from citadel.train.tokens import TokenIds, pad

AHEAD = 4  # batches prepared in advance
_ORDER, _DRAW = 0, 1  # random streams of the seed


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """B queries with G passages each; passage b·G is the positive of query b."""

    query_ids: TokenIds  # [B, Tq]
    query_mask: TokenIds  # [B, Tq]
    passage_ids: TokenIds  # [B·G, Tp]
    passage_mask: TokenIds  # [B·G, Tp]
    allowed: NDArray[np.bool_]  # [B, B·G]: False for known positives and false negatives
    teacher: NDArray[np.float32] | None  # [B, G]; NaN if the teacher gave no score


class QueryGroup(NamedTuple):
    """A query with its group of passages."""

    query: NDArray[Any]  # tokens
    rows: Rows  # [G] of Data.passages
    texts: list[NDArray[Any]]  # [G], their tokens
    scores: NDArray[np.float32]  # [G], the teacher's


class Batches:
    """Draws batches; process `rank` of `world` gets its share of each."""

    def __init__(
        self, data: Data, config: TrainConfig, rank: int = 0, world: int = 1, fixed: bool = False
    ) -> None:
        self.data, self._part, self._seed = data, config.data, config.seed
        if config.optimizer.batch % world:
            reason = f"optimizer.batch {config.optimizer.batch} cannot be shared by {world} processes"
            raise InputError(f"{reason}: choose a multiple of {world}")
        self._batch, self._share, self._rank = config.optimizer.batch, config.optimizer.batch // world, rank
        self._fixed = fixed
        self.epoch_size = max(1, round(float(data.examples.weight.sum())))
        self._order = lru_cache(maxsize=2)(self._new_order)

    def batch(self, step: int) -> TrainingBatch:
        """Return the batch of a forward pass; passes are counted from 0."""
        positions = self._positions(step)
        drawn = [self._draw(position) for position in positions]
        chosen = np.array([self.example(position) for position in positions])
        passages = np.concatenate([each.rows for each in drawn])  # [B·G]
        query_ids, query_mask = self._pad([each.query for each in drawn], self._part.query_length)
        texts = [text for each in drawn for text in each.texts]
        passage_ids, passage_mask = self._pad(texts, self._part.passage_length)
        teacher = np.stack([each.scores for each in drawn]) if self.data.teacher else None  # [B, G]
        return TrainingBatch(
            query_ids, query_mask, passage_ids, passage_mask, self._allowed(chosen, passages), teacher
        )

    def _positions(self, step: int) -> range:
        """Positions in the stream of examples of this process's share of a batch."""
        start = step * self._batch + self._rank * self._share
        return range(start, start + self._share)

    def _pad(self, rows: list[NDArray[Any]], length: int) -> tuple[TokenIds, TokenIds]:
        return pad(rows, self.data.special.pad, length if self._fixed else 0)

    def iterate(self, start: int = 0) -> Generator[TrainingBatch, None, None]:
        """Yield batches without end from a step on, prepared by a thread."""
        ready: queue.Queue[TrainingBatch | BaseException] = queue.Queue(AHEAD)
        stop = threading.Event()
        worker = threading.Thread(target=self._fill, args=(ready, stop, start), daemon=True)
        worker.start()
        try:
            while True:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            while not ready.empty():
                ready.get_nowait()
            worker.join()

    def _fill(
        self, ready: queue.Queue[TrainingBatch | BaseException], stop: threading.Event, step: int
    ) -> None:
        while not stop.is_set():
            try:
                item: TrainingBatch | BaseException = self.batch(step)
            except BaseException as error:
                item = error
            while not stop.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            step += 1

    # Order of the examples

    def example(self, position: int) -> int:
        """Return the example at a position of the endless stream of epochs."""
        epoch, within = divmod(position, self.epoch_size)
        return int(self._order(epoch)[within])

    def _new_order(self, epoch: int) -> Rows:
        """Shuffle one epoch; an example occurs as often as its weight, rounded up or down."""
        rng = np.random.default_rng((self._seed, _ORDER, epoch))
        shuffled = rng.permutation(len(self.data.examples))
        ends = np.cumsum(self.data.examples.weight[shuffled])
        # Systematic sampling: an example of weight 1 is drawn exactly once.
        points = (np.arange(self.epoch_size) + rng.random()) * (ends[-1] / self.epoch_size)
        chosen = np.minimum(np.searchsorted(ends, points, side="right"), len(ends) - 1)
        return np.asarray(rng.permutation(shuffled[chosen]), np.int64)

    # Passages of a query

    def _draw(self, position: int) -> QueryGroup:
        """Draw the query at a position of the stream and its group of passages."""
        data, part = self.data, self._part
        rng = np.random.default_rng((self._seed, _DRAW, position))
        example = self.example(position)
        query, positive = int(data.examples.query[example]), int(data.examples.positive[example])
        rows, scores = self._group(example, query, positive, rng)
        drawn = QueryGroup(data.queries[query], rows, [data.passages[row] for row in rows.tolist()], scores)
        if part.crops and rng.random() < part.crops:
            cropped = crop(drawn.texts[0], data.sentence_ends, part.query_length, rng)
            if cropped is not None:
                return drawn._replace(query=cropped, scores=_unknown(part.group))
        return drawn

    def _group(self, example: int, query: int, positive: int, rng: np.random.Generator) -> tuple[Rows, Any]:
        """Draw a group: the positive, hard negatives, and random passages if those are too few."""
        pool, scores, own = self._pool(int(self.data.examples.pair[example]))
        chosen = rng.permutation(len(pool))[: self._part.group - 1]
        missing = self._part.group - 1 - len(chosen)
        others = self._random(missing, self.data.known[query], rng)
        rows = np.concatenate([[positive], pool[chosen], others]).astype(np.int64)  # [G]
        teacher = np.concatenate([[own], scores[chosen], np.full(missing, np.nan)]).astype(np.float32)  # [G]
        return rows, teacher

    def _pool(self, pair: int) -> tuple[NDArray[Any], NDArray[Any], float]:
        """Hard negatives of a pair, their teacher scores and the positive's score; NaN if not scored."""
        teacher = self.data.teacher
        if teacher is not None and len(teacher.passages[pair]):
            scores = teacher.scores[pair]
            return teacher.passages[pair][1:], scores[1:], float(scores[0])
        pool = self.data.negatives[pair] if self.data.negatives is not None else np.empty(0, np.int32)
        return pool, np.full(len(pool), np.nan), float("nan")

    def _random(self, count: int, known: NDArray[Any], rng: np.random.Generator) -> Rows:
        """Draw random passages, preferring those not known to answer the query."""
        if not count:
            return np.empty(0, np.int64)
        drawn = rng.integers(len(self.data.passages), size=4 * count + 4)
        unknown = drawn[~np.isin(self.data.twin[drawn], known)]
        return np.asarray(np.concatenate([unknown, drawn])[:count], np.int64)  # `allowed` masks the rest

    # Mask of negatives

    def _allowed(self, chosen: Rows, passages: Rows) -> NDArray[np.bool_]:
        """Mask known positives and false negatives of each query; its own positive stays."""
        data, size = self.data, len(chosen)
        columns = data.twin[passages]  # [B·G]
        order = np.argsort(columns, kind="stable")
        queries, excluded = _lists(data.known, data.examples.query[chosen])
        if data.dropped is not None:
            more, dropped = _lists(data.dropped, data.examples.pair[chosen])
            queries = np.concatenate([queries, more])
            excluded = np.concatenate([excluded, data.twin[dropped]])
        allowed = np.ones((size, len(passages)), bool)
        low = np.searchsorted(columns[order], excluded, side="left")
        high = np.searchsorted(columns[order], excluded, side="right")
        for position in np.flatnonzero(high > low).tolist():
            allowed[queries[position], order[low[position] : high[position]]] = False
        allowed[np.arange(size), np.arange(size) * self._part.group] = True
        return allowed


def _unknown(group: int) -> NDArray[np.float32]:
    """Missing scores: the teacher scored another query."""
    return np.full(group, np.nan, np.float32)  # [G]


def _lists(table: Ragged, rows: Rows) -> tuple[Rows, Rows]:
    """The lists of some rows as pairs (index of the row, value)."""
    parts = [table[row] for row in rows.tolist()]
    positions = np.repeat(np.arange(len(rows)), [len(part) for part in parts])
    return positions, np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
