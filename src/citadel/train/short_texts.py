"""Short texts from passages: words, queries of one or two words, and first words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = NDArray[Any]  # token ids of a text, from [CLS] to [SEP]

_CANDIDATES = 6  # words drawn for a query, of which the rarest is taken
_TWO_WORDS = 0.4  # share of the queries
_FIRST_WORDS = 5  # tokens of a fragment at most


class ShortTexts:
    """Draws short texts from passages given as token ids.

    `sample` estimates how frequent each token is.
    """

    def __init__(self, tokenizer: Tokenizer, sample: list[Tokens]) -> None:
        vocabulary = tokenizer.get_vocab()
        self._continues = np.zeros(max(vocabulary.values()) + 1, np.bool_)  # [V]: "##ing"
        self._continues[[id for token, id in vocabulary.items() if token.startswith("##")]] = True
        self._frequency = np.bincount(np.concatenate(sample), minlength=len(self._continues))  # [V]

    def query(self, passage: Tokens, rng: np.random.Generator) -> Tokens:
        """One word of a passage, or two."""
        words = [self.word(passage, rng) for _ in range(1 + (rng.random() < _TWO_WORDS))]
        return np.concatenate([words[0][:-1], *(word[1:-1] for word in words[1:]), words[0][-1:]])

    def word(self, passage: Tokens, rng: np.random.Generator) -> Tokens:
        """A word of a passage between [CLS] and [SEP]; every other time a rare one."""
        inner = passage[1:-1]
        starts = np.flatnonzero(~self._continues[inner])
        if not len(starts):
            return np.concatenate([passage[:2], passage[-1:]])
        some = starts[rng.integers(len(starts), size=_CANDIDATES if rng.random() < 0.5 else 1)]
        start = int(some[np.argmin(self._frequency[inner[some]])])
        following = starts[starts > start]
        end = int(following[0]) if len(following) else len(inner)
        return np.concatenate([passage[:1], inner[start:end], passage[-1:]])

    def fragment(self, passage: Tokens, rng: np.random.Generator) -> Tokens:
        """A word of a passage, or its first words."""
        if rng.random() < 0.5:
            return self.word(passage, rng)
        return np.concatenate([passage[: 2 + int(rng.integers(_FIRST_WORDS))], passage[-1:]])
