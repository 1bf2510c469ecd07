"""Training data ready for batches: token ids, who answers whom, hard negatives and teacher scores by row number."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.progress import Meter, silent
from citadel.train.config import TrainConfig, expand
from citadel.train.config_tables import DataPart
from citadel.train.data_files import checked
from citadel.train.mined import PairIndex, ScoredLists, read_mined, read_scored
from citadel.train.ragged import Ragged, Rows
from citadel.train.readers import read_source
from citadel.train.source import SourceData
from citadel.train.texts import TextStore
from citadel.train.token_cache import cached_tokens
from citadel.train.tokens import Special, special_tokens, twins

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HELD_OUT = 100  # one positive in so many is never trained on
_SENTENCE_ENDS = (".", "?", "!", "。")


@dataclass(frozen=True, slots=True)
class Examples:
    """Pairs to train on or to evaluate with."""

    query: Rows  # [E] rows of Data.queries
    positive: Rows  # [E] rows of Data.passages
    pair: Rows  # [E] rows of the lists by pair
    weight: NDArray[np.float64]  # [E]

    def __len__(self) -> int:
        return len(self.query)

    def some(self, chosen: NDArray[Any]) -> Examples:
        """These of them, by number or by mask."""
        return Examples(self.query[chosen], self.positive[chosen], self.pair[chosen], self.weight[chosen])


@dataclass(frozen=True, slots=True)
class Data:
    """All that batches and evaluation need."""

    passages: Ragged  # token ids
    queries: Ragged
    ids: TextStore  # of the passages
    examples: Examples
    held_out: Examples
    unseen: Mapping[str, Examples]  # by source that is never trained on: does what is learnt carry over to it?
    known: Ragged  # by query: every passage known to answer it, as twins
    twin: Rows  # [P]: the first passage with the same tokens
    special: Special
    sentence_ends: Rows
    negatives: Ragged | None = None  # by pair
    dropped: Ragged | None = None  # by pair: false negatives
    teacher: ScoredLists | None = None


def make_data(config: TrainConfig, tokenizer: Tokenizer, meter: Meter = silent) -> Data:
    """Read and tokenise what [data] names; `prepared.load_data` keeps it for the next run."""
    part = config.data
    files = {key: checked(expand(getattr(part, key)), f"data.{key}") for key in _lists_of(part)}
    source = read_source(part)
    index = PairIndex.of(source)
    mined = read_mined(files["negatives"], source, index, part.margin) if part.negatives else None
    teacher = read_scored(files["scores"], source, index) if part.scores else None
    kept = expand(part.cache)
    passages = cached_tokens(kept, source.passages.texts, tokenizer, part.passage_length, meter, "passages")
    queries = cached_tokens(kept, source.queries, tokenizer, part.query_length, meter, "queries")
    twin = twins(passages)
    examples, held_out = split(source, index, part)
    return Data(
        passages=passages,
        queries=queries,
        ids=source.passages.ids.texts,
        examples=examples,
        held_out=held_out,
        unseen=unseen_pairs(source, index, part),
        known=known_positives(source, twin),
        twin=twin,
        special=special_tokens(tokenizer),
        sentence_ends=sentence_ends(tokenizer),
        negatives=mined.negatives if mined else _own_negatives(source, index),
        dropped=mined.dropped if mined else None,
        teacher=teacher,
    )


def sentence_ends(tokenizer: Tokenizer) -> Rows:
    """The tokens a sentence may end with."""
    ends = [tokenizer.token_to_id(end) for end in _SENTENCE_ENDS]
    return np.array([id for id in ends if id is not None], np.int64)


def check_lengths(part: DataPart, longest: int) -> None:
    """Refuse texts longer than the backbone has positions for.

    >>> check_lengths(DataPart(passage_length=600), longest=512)
    Traceback (most recent call last):
    citadel.errors.InputError: data.passage_length is 600, but the backbone takes 512 tokens: choose a shorter one
    """
    for name in ("query_length", "passage_length"):
        if (length := getattr(part, name)) > longest:
            raise InputError(f"data.{name} is {length}, but the backbone takes {longest} tokens: choose a shorter one")


def split(source: SourceData, index: PairIndex, part: DataPart) -> tuple[Examples, Examples]:
    """Pairs to train on, weighted by kind and source, and those held out by the checksum of their positive's id."""
    weight = pair_weights(source, part)
    every = Examples(source.query, source.positive, index.row, weight)
    used = np.flatnonzero(weight > 0)
    if part.max_pairs:
        used = used[: part.max_pairs]
    held = is_held_out(source)[used]
    examples = every.some(used[~held] if part.held_out else used)
    if not len(examples):
        raise InputError("no pair is left to train on: check data.kinds, data.sources and data.max_pairs")
    return examples, every.some(used[held])


def unseen_pairs(source: SourceData, index: PairIndex, part: DataPart) -> dict[str, Examples]:
    """The pairs of each source whose weight is 0, to choose settings by what transfers to other texts."""
    by_kind = _table(part.kinds, source.kind_names, "data.kinds")
    by_source = _table(part.sources, source.passages.source_names, "data.sources")
    of, weight = source.passages.sources[source.positive], by_kind[source.kind]
    every = Examples(source.query, source.positive, index.row, weight)
    chosen = {number: (of == number) & (weight > 0) for number in np.flatnonzero(by_source == 0).tolist()}
    return {source.passages.source_names[number]: every.some(np.flatnonzero(rows)) for number, rows in chosen.items()}


def pair_weights(source: SourceData, part: DataPart) -> NDArray[np.float64]:
    """The weight of each pair: that of its kind times that of its positive's source."""
    by_kind = _table(part.kinds, source.kind_names, "data.kinds")
    by_source = _table(part.sources, source.passages.source_names, "data.sources")
    weights: NDArray[np.float64] = by_kind[source.kind] * by_source[source.passages.sources[source.positive]]
    return weights


def is_held_out(source: SourceData) -> NDArray[np.bool_]:
    """Whether the checksum of a pair's positive says that it is never trained on."""
    ids = source.passages.ids.texts
    return np.array([crc(ids[row]) % HELD_OUT == 0 for row in source.positive.tolist()], bool)


def crc(id: str) -> int:
    """The CRC-32 of an id.

    >>> crc("d1") % HELD_OUT
    2
    """
    return zlib.crc32(id.encode("utf-8"))


def known_positives(source: SourceData, twin: Rows) -> Ragged:
    """By query: its positives over all pairs, held out and unused ones too, each once."""
    both = np.unique(source.query * len(source.passages) + twin[source.positive])
    rows, values = np.divmod(both, len(source.passages))
    return Ragged.grouped(rows, values, len(source.queries))


def _own_negatives(source: SourceData, index: PairIndex) -> Ragged | None:
    """The format's own negatives, moved from the pairs of the source to unique pairs."""
    if source.negatives is None:
        return None
    rows = np.repeat(index.row, source.negatives.lengths)
    return Ragged.grouped(rows, source.negatives.values[:].astype(np.int32), len(index.keys))


def _table(weights: Mapping[str, float], names: tuple[str, ...], key: str) -> NDArray[np.float64]:
    if unknown := sorted(set(weights) - set(names)):
        raise InputError(f"{key} names {unknown[0]!r}, which the data has not: it has {', '.join(map(repr, names))}")
    return np.array([weights.get(name, 1.0) for name in names], np.float64)


def _lists_of(part: DataPart) -> list[str]:
    return [key for key in ("negatives", "scores") if getattr(part, key)]
