"""Training data by row number: token ids, pairs, hard negatives and teacher scores."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.progress import Meter, silent
from citadel.train.config import expand
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

HELD_OUT = 100  # one positive in this many is held out
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
        """Select by index or mask."""
        return Examples(self.query[chosen], self.positive[chosen], self.pair[chosen], self.weight[chosen])


@dataclass(frozen=True, slots=True)
class Data:
    """Training and evaluation data."""

    passages: Ragged  # token ids
    queries: Ragged
    ids: TextStore  # passage ids
    examples: Examples
    held_out: Examples
    unseen: Mapping[str, Examples]  # source with weight 0 → its pairs, to measure transfer
    known: Ragged  # by query: the `twin` of every passage known to answer it
    twin: Rows  # [P]: the first passage with the same tokens
    special: Special
    sentence_ends: Rows
    negatives: Ragged | None = None  # by pair
    dropped: Ragged | None = None  # by pair: false negatives
    teacher: ScoredLists | None = None


class HasData(Protocol):
    """A config with a table [data]."""

    @property
    def data(self) -> DataPart: ...


def make_data(config: HasData, tokenizer: Tokenizer, meter: Meter = silent) -> Data:
    """Read and tokenise the files of [data]; `data_cache.load_data` caches the result."""
    part = config.data
    files = {key: checked(expand(getattr(part, key)), f"data.{key}") for key in _lists_of(part)}
    source = read_source(part)
    index = PairIndex.of(source)
    mined = read_mined(files["negatives"], source, index, part.margin) if part.negatives else None
    teacher = read_scored(files["scores"], source, index) if part.scores else None
    cache = expand(part.cache)
    passages = cached_tokens(cache, source.passages.texts, tokenizer, part.passage_length, meter, "passages")
    queries = cached_tokens(cache, source.queries, tokenizer, part.query_length, meter, "queries")
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
    """Ids of the tokens that end a sentence."""
    ends = [tokenizer.token_to_id(end) for end in _SENTENCE_ENDS]
    return np.array([id for id in ends if id is not None], np.int64)


def check_lengths(part: DataPart, longest: int) -> None:
    """Raise if texts are longer than the positions of the backbone.

    >>> check_lengths(DataPart(passage_length=600), longest=512)
    Traceback (most recent call last):
    citadel.errors.InputError: data.passage_length is 600, but the backbone takes 512 tokens: choose a shorter
    one
    """
    for name in ("query_length", "passage_length"):
        if (length := getattr(part, name)) > longest:
            raise InputError(
                f"data.{name} is {length}, but the backbone takes {longest} tokens: choose a shorter one"
            )


def split(source: SourceData, index: PairIndex, part: DataPart) -> tuple[Examples, Examples]:
    """Split into weighted training pairs and pairs held out by the checksum of their positive's id."""
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
    """Pairs of each source with weight 0, to measure transfer to other texts."""
    by_kind = _table(part.kinds, source.kind_names, "data.kinds")
    by_source = _table(part.sources, source.passages.source_names, "data.sources")
    source_of, weight = source.passages.sources[source.positive], by_kind[source.kind]
    every = Examples(source.query, source.positive, index.row, weight)
    chosen = {
        number: (source_of == number) & (weight > 0) for number in np.flatnonzero(by_source == 0).tolist()
    }
    return {
        source.passages.source_names[number]: every.some(np.flatnonzero(rows))
        for number, rows in chosen.items()
    }


def pair_weights(source: SourceData, part: DataPart) -> NDArray[np.float64]:
    """Weight of each pair: weight of its kind times weight of its positive's source."""
    by_kind = _table(part.kinds, source.kind_names, "data.kinds")
    by_source = _table(part.sources, source.passages.source_names, "data.sources")
    weights: NDArray[np.float64] = by_kind[source.kind] * by_source[source.passages.sources[source.positive]]
    return weights


def is_held_out(source: SourceData) -> NDArray[np.bool_]:
    """Mask of held-out pairs, by the checksum of their positive's id."""
    ids = source.passages.ids.texts
    return np.array([crc(ids[row]) % HELD_OUT == 0 for row in source.positive.tolist()], bool)


def crc(id: str) -> int:
    """CRC-32 of an id.

    >>> crc("d1") % HELD_OUT
    2
    """
    return zlib.crc32(id.encode("utf-8"))


def known_positives(source: SourceData, twin: Rows) -> Ragged:
    """Distinct positives of each query over all pairs, including held-out and unused ones."""
    both = np.unique(source.query * len(source.passages) + twin[source.positive])
    rows, values = np.divmod(both, len(source.passages))
    return Ragged.grouped(rows, values, len(source.queries))


def _own_negatives(source: SourceData, index: PairIndex) -> Ragged | None:
    """The negatives of the input format, by unique pair."""
    if source.negatives is None:
        return None
    rows = np.repeat(index.row, source.negatives.lengths)
    return Ragged.grouped(rows, source.negatives.values[:].astype(np.int32), len(index.keys))


def _table(weights: Mapping[str, float], names: tuple[str, ...], key: str) -> NDArray[np.float64]:
    if unknown := sorted(set(weights) - set(names)):
        raise InputError(
            f"{key} names {unknown[0]!r}, which is not in the data: choose from {', '.join(map(repr, names))}"
        )
    return np.array([weights.get(name, 1.0) for name in names], np.float64)


def _lists_of(part: DataPart) -> list[str]:
    return [key for key in ("negatives", "scores") if getattr(part, key)]
