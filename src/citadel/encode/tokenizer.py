"""Text → token ids: cut to the model's length, with offsets into the text and the mask of tokens that have keys."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig
from citadel.encode.model_files import MAX_TOKENIZER, read_model_file
from citadel.encode.tokenizer_check import check_tokenizer
from citadel.errors import InputError, ResourceError
from citadel.forks import no_fork

TOKENIZER_FILE = "tokenizer.json"
_SPARE_ROWS = 64  # embeddings are often padded to a multiple of this; more rows than that are another vocabulary
_LETTERS_PER_TOKEN = 16  # English has five
_MARKS = ("##", "Ġ", "▁")  # how vocabularies say that a token continues or begins a word


# The library's threads do not survive a fork; left to itself it says so on stderr and goes on with one.
os.register_at_fork(after_in_child=lambda: os.environ.setdefault("TOKENIZERS_PARALLELISM", "false"))


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text as the model reads it.

    >>> text = Encoding(np.array([101, 7, 102]), ((0, 0), (0, 4), (0, 0)), np.array([False, True, True]))
    >>> len(text), text.cut
    (3, False)
    """

    ids: NDArray[np.int64]  # [T]
    offsets: tuple[tuple[int, int], ...]  # [T], characters of the text; (0, 0) for a special token
    routed: NDArray[np.bool_]  # [T]
    cut: bool = False  # whether the text was longer than the model reads

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_blank(self) -> bool:
        """Whether the text has no tokens of its own."""
        return all(end == 0 for _, end in self.offsets)


class Tokenizer:
    """The tokenizer of a model folder.

    Special tokens are added here and never parsed from a text: "[SEP]" in a document is five characters.
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
            raise ResourceError(f"{path}: out of memory while the model is loaded; close other programs") from None
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"cannot be read as a tokenizer ({error}): export the model again", path) from None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._config = config
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        _check_vocabulary(vocabulary, config, path)
        self._never = self._unrouted(vocabulary)

    def documents(self, texts: Sequence[str]) -> list[Encoding]:
        """Documents, cut at `document_length`."""
        return self._encode(texts, self._config.document_length, 0)

    def queries(self, texts: Sequence[str]) -> list[Encoding]:
        """Queries, cut at `query_length` and padded with [MASK] where the model wants it."""
        return self._encode(texts, self._config.query_length, self._config.query_padding)

    def token(self, id: int) -> str:
        """The token of an id, as the vocabulary writes it."""
        return str(self._library.id_to_token(id) or "")

    def _encode(self, texts: Sequence[str], length: int, padding: int) -> list[Encoding]:
        with no_fork:
            return self._encoded(texts, length, padding)

    def _encoded(self, texts: Sequence[str], length: int, padding: int) -> list[Encoding]:
        limit = length - 2
        enough = limit * _LETTERS_PER_TOKEN
        encoded = self._tokenise([whole[:enough] for whole in texts])
        for position, whole in enumerate(texts):
            if len(whole) > enough and not _settled(encoded[position], limit):
                encoded[position] = self._library.encode(whole, add_special_tokens=False)
        cuts = [len(text) > limit for text in encoded]
        for text in encoded:
            text.truncate(limit)  # before its lists are made: of a book they would take hundreds of megabytes
        return [self._wrap(text.ids, text.offsets, padding, cut) for text, cut in zip(encoded, cuts, strict=True)]

    def _tokenise(self, texts: list[str]) -> list[Any]:
        """One text here and now: to wake the library's threads for it would take a sixth longer."""
        if len(texts) == 1:
            return [self._library.encode(texts[0], add_special_tokens=False)]
        encoded: list[Any] = self._library.encode_batch(texts, add_special_tokens=False)
        return encoded

    def _wrap(self, ids: list[int], offsets: list[tuple[int, int]], padding: int, cut: bool) -> Encoding:
        """[CLS] text [SEP] [MASK]…"""
        config, masks = self._config, max(padding - len(ids) - 2, 0)
        whole = np.array([config.cls_id, *ids, config.sep_id, *[config.mask_id] * masks], np.int64)
        return Encoding(whole, ((0, 0), *offsets, *[(0, 0)] * (masks + 1)), ~self._never[whole], cut)

    def _unrouted(self, vocabulary: dict[str, int]) -> NDArray[np.bool_]:
        """Which ids never have a key [V]."""
        config = self._config
        never = np.zeros(config.backbone.vocabulary, np.bool_)
        if not config.route_punctuation:
            never[[id for token, id in vocabulary.items() if is_punctuation(token)]] = True
        never[config.sep_id] = not config.route_separator
        never[config.cls_id] = True
        return never


def _settled(beginning: Any, limit: int) -> bool:
    """Whether the beginning of a text gives the first `limit` tokens of all of it, so that books need not be tokenised.

    Where it was cut off it may end within a word; no token of that last word may be among them.
    """
    return len(beginning) > limit and beginning.word_ids[limit - 1] != beginning.word_ids[-1]


def is_punctuation(token: str) -> bool:
    """Whether a token is punctuation alone.

    >>> is_punctuation("##!"), is_punctuation("Ġ,"), is_punctuation("e.g"), is_punctuation("##")
    (True, True, False, True)
    """
    for mark in _MARKS:
        token = token.removeprefix(mark) or token
    return all(letter in "$+<=>^`|~" or unicodedata.category(letter).startswith("P") for letter in token)


def token_count(vocabulary: Mapping[str, int]) -> int:
    """How many ids a vocabulary needs; it may leave some out.

    >>> token_count({"a": 0, "b": 7})
    8
    """
    return max(vocabulary.values(), default=-1) + 1


def vocabulary_fits(tokens: int, rows: int) -> bool:
    """Whether a model with so many embeddings can be that of the tokenizer.

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
