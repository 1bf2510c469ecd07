"""Tokenise texts once, before training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.encode.tokenizer import token_count, vocabulary_fits
from citadel.errors import InputError
from citadel.progress import Meter, silent
from citadel.train.ragged import Ragged, RaggedBuilder, Rows
from citadel.train.texts import TextStore

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenIds = NDArray[np.int64]
CHARACTERS = 1 << 19  # per call of the tokenizer, whose output is fifty times as large
PAD_TO = 16  # tokens: keeps the number of shapes low and suits tensor cores
_SPELLINGS = (("[CLS]", "[SEP]", "[PAD]", "[MASK]"), ("<s>", "</s>", "<pad>", "<mask>"))


class Special(NamedTuple):
    """Ids of the special tokens.

    >>> Special(cls=101, sep=102, pad=0, mask=103).pad
    0
    """

    cls: int
    sep: int
    pad: int
    mask: int


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a model folder: tokenizer.json, or a WordPiece vocab.txt."""
    from tokenizers import Tokenizer
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    whole, words = Path(folder, "tokenizer.json"), Path(folder, "vocab.txt")
    try:
        if whole.is_file():
            return Tokenizer.from_file(str(whole))
        if words.is_file():
            tokenizer: Tokenizer = BertWordPieceTokenizer(str(words), lowercase=True)._tokenizer
            return tokenizer
    except Exception as error:  # tokenizers raises bare Exceptions
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"the tokenizer cannot be read ({reason}): download it again", str(folder)) from None
    raise InputError("there is no tokenizer: put tokenizer.json or vocab.txt beside the weights", str(folder))


def special_tokens(tokenizer: Tokenizer, where: str = "") -> Special:
    """Find the special tokens of a tokenizer, in BERT's or RoBERTa's spelling."""
    known = tokenizer.get_vocab()
    return Special(*(known[token] for token in _spelling(known, where)))


def _spelling(known: Mapping[str, int], where: str = "") -> tuple[str, ...]:
    for spelling in _SPELLINGS:
        if all(token in known for token in spelling):
            return spelling
    raise InputError("the tokenizer has no [CLS], [SEP], [PAD] or [MASK]: use a BERT-like one", where)


def check_vocabulary(tokenizer: Tokenizer, vocabulary: int, where: str = "") -> None:
    """Raise if tokenizer and model do not fit, before training instead of at export."""
    tokens = token_count(tokenizer.get_vocab())
    if not vocabulary_fits(tokens, vocabulary):
        reason = (
            f"the vocabulary does not match: the tokenizer has {tokens:,} tokens, the model {vocabulary:,}"
        )
        raise InputError(f"{reason}: use the tokenizer the model was made with", where)


def tokenize(
    texts: TextStore | Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    meter: Meter = silent,
    noun: str = "texts",
) -> Ragged:
    """Tokenise texts into a table on disk, with special tokens, truncated to `length`."""
    prepare(tokenizer, length)
    kind: Any = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.int32
    table = RaggedBuilder(kind)
    with meter("Tokenising", noun, len(texts)) as progress:
        done = 0
        for chunk in _chunks(texts):
            encoded = [each.ids for each in tokenizer.encode_batch_fast(chunk)]
            table.extend(np.fromiter((id for ids in encoded for id in ids), kind), map(len, encoded))
            done += len(chunk)
            progress(done)
    return table.done()


def prepare(tokenizer: Tokenizer, length: int) -> None:
    """Set up a tokenizer for [CLS] text [SEP], truncated to `length` and not padded."""
    _wrap_texts(tokenizer)
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is plain text
    tokenizer.enable_truncation(length)


def _chunks(texts: TextStore | Sequence[str]) -> Iterator[list[str]]:
    """Split texts into chunks of bounded size."""
    chunk, size = [], 0
    for row in range(len(texts)):
        chunk.append(texts[row])
        size += len(chunk[-1])
        if size >= CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _wrap_texts(tokenizer: Tokenizer) -> None:
    """Wrap texts as [CLS] text [SEP], as search does (encode/tokenizer), whatever the file says."""
    from tokenizers.processors import TemplateProcessing

    known = tokenizer.get_vocab()
    cls, sep, *_ = _spelling(known)
    wrapper: Any = TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(cls, known[cls]), (sep, known[sep])]
    )
    tokenizer.post_processor = wrapper


def pad(rows: Sequence[NDArray[Any]], filler: int, length: int = 0) -> tuple[TokenIds, TokenIds]:
    """Pad rows to the longest, rounded up to PAD_TO, or to `length`; return ids and mask.

    >>> ids, mask = pad([np.array([1, 2]), np.array([3])], filler=0, length=3)
    >>> ids.tolist(), mask.tolist()
    ([[1, 2, 0], [3, 0, 0]], [[1, 1, 0], [1, 0, 0]])
    """
    sizes = np.array([len(row) for row in rows])  # [n]
    width = length or -(-max(int(sizes.max(initial=1)), 1) // PAD_TO) * PAD_TO
    mask = np.arange(width)[None, :] < sizes[:, None]  # [n, T]
    ids = np.full((len(rows), width), filler, np.int64)
    ids[mask] = np.concatenate(rows) if len(rows) else 0
    return ids, mask.astype(np.int64)


def twins(table: Ragged) -> Rows:
    """Return for each row the first row with the same tokens.

    >>> twins(Ragged.of([[1, 2], [3], [1, 2], [2, 1]])).tolist()
    [0, 1, 0, 3]
    """
    hashes = np.empty(len(table), np.uint64)
    factors = np.random.default_rng(0).integers(
        1, 1 << 63, max(int(table.lengths.max(initial=1)), 1), np.uint64
    )
    done = 0
    for part in table.parts():
        hashes[done : done + len(part)] = _hashes(part, factors)
        done += len(part)
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return np.asarray(first[which], np.int64)


def _hashes(table: Ragged, factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each row: the sum of token times factor, modulo 2⁶⁴."""
    position = np.arange(int(table.offsets[-1])) - np.repeat(table.offsets[:-1], table.lengths)
    products = (table.values[:].astype(np.uint64) + np.uint64(1)) * factors[position]
    # The sums wrap around, and so do the differences.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(products)])
    return np.asarray(np.diff(sums[table.offsets]), np.uint64)
