"""Token ids kept from one run to the next: the same texts, tokenizer and length are tokenised once on a machine."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from citadel.errors import InputError
from citadel.progress import Meter, silent
from citadel.train.ragged import Ragged
from citadel.train.tables import FORMAT, read_tables, write_tables
from citadel.train.texts import Texts
from citadel.train.tokens import prepare, tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENS = "tokens"


def kept_tokens(
    folder: str, texts: Texts, tokenizer: Tokenizer, length: int, meter: Meter = silent, noun: str = "texts"
) -> Ragged:
    """What `tokenize` gives, from a file in `folder` where there is one; else it is written. "" keeps nothing."""
    if not folder:
        return tokenize(texts, tokenizer, length, meter, noun)
    prepare(tokenizer, length)
    name = hashlib.sha256(texts.digest() + settings_of(tokenizer)).hexdigest()[:32]
    file = os.path.join(folder, f"tokens-{name}.bin")
    if os.path.exists(file):
        return read_tokens(file, len(texts))
    table = tokenize(texts, tokenizer, length, meter, noun)
    write_tables({_TOKENS: table}, file)
    return table


def settings_of(tokenizer: Tokenizer) -> bytes:
    """All of a tokenizer that decides token ids; the length is among its settings."""
    from tokenizers import __version__

    return f"{FORMAT} {__version__} {tokenizer.to_str()}".encode()


def read_tokens(file: str, rows: int) -> Ragged:
    """The table in a file; one that is damaged or has another number of rows is refused."""
    found = read_tables(file).tables.get(_TOKENS)
    if found is None or len(found) != rows:
        raise InputError("what is kept here is damaged: delete the file", file)
    return found
