"""Tokenise text to ids, truncated to the model's length, with offsets and the mask of routed tokens."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.model_files import MAX_TOKENIZER, read_model_file
from citadel.encode.token_table import TokenTable
from citadel.encode.tokenizer_check import check_tokenizer
from citadel.errors import InputError, ResourceError
from citadel.forks import no_fork

TOKENIZER_FILE = "tokenizer.json"
_SPARE_ROWS = 64  # embeddings are often padded to a multiple of this
_LETTERS_PER_TOKEN = 16  # English has five
_MARKS = ("##", "Ġ", "▁")  # prefixes of tokens that continue or begin a word


# The library's threads do not survive a fork. Without this it warns on stderr and continues with one thread.
os.register_at_fork(after_in_child=lambda: os.environ.setdefault("TOKENIZERS_PARALLELISM", "false"))


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tokenised text.

    >>> text = Encoding(np.array([101, 7, 102]), ((0, 0), (0, 4), (0, 0)), np.array([False, True, True]))
    >>> len(text), text.cut
    (3, False)
    """

    ids: NDArray[np.int64]  # [T]
    offsets: tuple[tuple[int, int], ...]  # [T], in characters; (0, 0) for a special token
    routed: NDArray[np.bool_]  # [T]
    cut: bool = False  # the text was longer than the model reads

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_blank(self) -> bool:
        """Whether the text has only special tokens."""
        return all(end == 0 for _, end in self.offsets)


class TokenOffsets(NamedTuple):
    """The tokens of a text: their characters, and whether they begin a word."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    begins_word: NDArray[np.bool_]


class _Tokenised(NamedTuple):
    """The tokens of a text that a model reads, without special ones."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    cut: bool


class Tokenizer:
    """The tokenizer of a model folder.

    Special tokens are added here and never parsed from a text: "[SEP]" in a document is plain text.
    """

    def __init__(self, folder: str | os.PathLike[str], config: ModelConfig) -> None:
        from tokenizers import Tokenizer as Library

        path = os.path.join(folder, TOKENIZER_FILE)
        if not os.path.lexists(path):
            raise InputError("the model has no tokenizer: export it again", path)
        contents = read_model_file(path, MAX_TOKENIZER)
        check_tokenizer(contents, path)
        try:
            self._library = Library.from_buffer(contents)
        except MemoryError:
            raise ResourceError(
                f"{path}: out of memory while the model is loaded; close other programs"
            ) from None
        except Exception as error:  # the library raises nothing narrower
            raise InputError(
                f"cannot be read as a tokenizer ({error}): export the model again", path
            ) from None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._config = config
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        _check_vocabulary(vocabulary, config, path)
        self._is_unrouted = self._unrouted(vocabulary)  # in queries
        self._is_skipped = self._is_unrouted.copy()  # in documents
        self._is_skipped[list(config.skipped_tokens)] = True
        self._is_unrouted[list(config.unrouted_query_tokens)] = True

    @property
    def window(self) -> int:
        """Tokens of a document that the model reads, without special tokens."""
        return self._config.document_length - 2 - len(self._config.document_prompt)

    def documents(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokenise documents, truncated to `document_length`."""
        with no_fork:
            encoded = self._encoded(texts, self.window)
        return [self._wrap(text, self._config.document_prompt, 0, self._is_skipped) for text in encoded]

    def document_table(self, texts: Sequence[str]) -> TokenTable:
        """The same tokens as `documents`, in flat arrays, without offsets; much faster for many texts."""
        config, limit = self._config, self.window
        enough = limit * _LETTERS_PER_TOKEN
        with no_fork:
            encoded = self._library.encode_batch_fast(
                [whole[:enough] for whole in texts], add_special_tokens=False
            )
            for position, whole in enumerate(texts):
                if len(whole) > enough and not _settled(encoded[position], limit):
                    encoded[position] = self._library.encode(whole, add_special_tokens=False)
        cut = np.fromiter((len(text) > limit for text in encoded), np.bool_, len(encoded))
        for position in np.flatnonzero(cut).tolist():
            encoded[position].truncate(limit)
        before = (config.cls_id, *config.document_prompt)
        return TokenTable.of([text.ids for text in encoded], cut, before, (config.sep_id,))

    def queries(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokenise queries, truncated to `query_length` and padded with [MASK] if the model needs it."""
        config = self._config
        with no_fork:
            encoded = self._encoded(texts, config.query_length - 2 - len(config.query_prompt))
        return [
            self._wrap(text, config.query_prompt, config.query_padding, self._is_unrouted) for text in encoded
        ]

    @property
    def skipped(self) -> NDArray[np.bool_]:
        """Mask [V] of the ids that have no keys in documents."""
        return self._is_skipped

    def offsets(self, text: str) -> TokenOffsets:
        """The tokens of a whole text, however long, without special tokens."""
        with no_fork:
            encoded = self._library.encode(text, add_special_tokens=False)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        words = np.array([-1 if word is None else word for word in encoded.word_ids], np.int64)
        return TokenOffsets(offsets[:, 0], offsets[:, 1], np.diff(words, prepend=-2) != 0)

    def unrouted(self, query: bool) -> list[int]:
        """Ids that have no keys and are not scored, in queries or in documents."""
        return np.flatnonzero(self._is_unrouted if query else self._is_skipped).tolist()

    def token(self, id: int) -> str:
        """The token of an id, as in the vocabulary."""
        return str(self._library.id_to_token(id) or "")

    def _encoded(self, texts: Sequence[str], limit: int) -> list[_Tokenised]:
        """The first `limit` tokens of each text."""
        enough = limit * _LETTERS_PER_TOKEN
        encoded = self._tokenise([whole[:enough] for whole in texts])
        for position, whole in enumerate(texts):
            if len(whole) > enough and not _settled(encoded[position], limit):
                encoded[position] = self._library.encode(whole, add_special_tokens=False)
        cuts = [len(text) > limit for text in encoded]
        for text in encoded:
            text.truncate(limit)  # first: the lists of a book would take hundreds of megabytes
        return [_Tokenised(text.ids, text.offsets, cut) for text, cut in zip(encoded, cuts, strict=True)]

    def _tokenise(self, texts: list[str]) -> list[Any]:
        if len(texts) == 1:  # on this thread: waking the library's threads takes a sixth longer
            return [self._library.encode(texts[0], add_special_tokens=False)]
        encoded: list[Any] = self._library.encode_batch(texts, add_special_tokens=False)
        return encoded

    def _wrap(
        self, text: _Tokenised, prompt: tuple[int, ...], padding: int, unrouted: NDArray[np.bool_]
    ) -> Encoding:
        """Add special tokens: [CLS] prompt text [SEP] [MASK]…"""
        config, before = self._config, (self._config.cls_id, *prompt)
        masks = max(padding - len(before) - len(text.ids) - 1, 0)
        whole = np.array([*before, *text.ids, config.sep_id, *[config.mask_id] * masks], np.int64)
        offsets = (*[(0, 0)] * len(before), *text.offsets, *[(0, 0)] * (masks + 1))
        return Encoding(whole, offsets, ~unrouted[whole], text.cut)

    def _unrouted(self, vocabulary: dict[str, int]) -> NDArray[np.bool_]:
        """Mask [V] of the ids that have no keys."""
        config = self._config
        unrouted = np.zeros(config.backbone.vocabulary, np.bool_)
        if not config.route_punctuation:
            unrouted[[id for token, id in vocabulary.items() if is_punctuation(token)]] = True
        unrouted[config.sep_id] = not config.route_separator
        unrouted[config.cls_id] = not config.route_cls
        return unrouted


def attended_tokens(config: ModelConfig, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the tokens that others attend to: all of them, or all but the [MASK] tokens of a query.

    >>> attended_tokens(ModelConfig("dynamic"), np.array([101, 103])).tolist()
    [True, True]
    """
    return np.ones(ids.shape, np.bool_) if config.attend_padding else ids != config.mask_id


def _settled(beginning: Any, limit: int) -> bool:
    """Whether the beginning of a text determines its first `limit` tokens.

    The beginning may end within a word, so the tokens of its last word do not count. This saves tokenising
    whole books.
    """
    return len(beginning) > limit and beginning.word_ids[limit - 1] != beginning.word_ids[-1]


def is_punctuation(token: str) -> bool:
    """Whether a token consists of punctuation only.

    >>> is_punctuation("##!"), is_punctuation("Ġ,"), is_punctuation("e.g"), is_punctuation("##")
    (True, True, False, True)
    """
    for mark in _MARKS:
        token = token.removeprefix(mark) or token
    return all(letter in "$+<=>^`|~" or unicodedata.category(letter).startswith("P") for letter in token)


def token_count(vocabulary: Mapping[str, int]) -> int:
    """Number of ids of a vocabulary, including unused ones.

    >>> token_count({"a": 0, "b": 7})
    8
    """
    return max(vocabulary.values(), default=-1) + 1


def vocabulary_fits(tokens: int, rows: int) -> bool:
    """Whether a number of embedding rows matches a tokenizer; a few spare rows are allowed.

    >>> vocabulary_fits(30522, 30528), vocabulary_fits(30522, 50265), vocabulary_fits(30523, 30522)
    (True, False, False)
    """
    return 0 <= rows - tokens < _SPARE_ROWS


def _check_vocabulary(vocabulary: dict[str, int], config: ModelConfig, path: str) -> None:
    tokens, rows = token_count(vocabulary), config.backbone.vocabulary
    special = (config.cls_id, config.sep_id, config.mask_id if config.query_padding else config.cls_id)
    if not vocabulary_fits(tokens, rows) or max(special) >= tokens:
        raise InputError(
            f"the vocabulary does not match: the tokenizer has {tokens:,} tokens, the model {rows:,}; "
            "take both from one checkpoint",
            path,
        )
