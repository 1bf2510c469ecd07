"""Further short texts for a student to see: stubs, headings, titles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from citadel.errors import InputError
from citadel.text.parse import parse_object
from citadel.train.data_files import checked
from citadel.train.ragged import Ragged
from citadel.train.source import ErrorLocation, numbered_lines
from citadel.train.tokens import tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def extra_tokens(file: str, tokenizer: Tokenizer, length: int) -> Ragged:
    """Tokenise the texts of a file, JSONL with a field `text` or one text per line; "" for none."""
    return tokenize(read_extra(checked(file, "data.extra")) if file else [], tokenizer, length)


def read_extra(file: str) -> list[str]:
    """Read the texts of a file."""
    location, texts = ErrorLocation(file), []
    for number, line in numbered_lines(file):
        with location.at(number):
            texts.append(_text(line) if line.lstrip().startswith("{") else line.strip())
    if not texts:
        raise InputError("holds no text: write one text per line, or leave data.extra out", file)
    return texts


def _text(line: str) -> str:
    text = parse_object(line).get("text")
    if not isinstance(text, str):
        raise InputError('the field "text" is missing or not a string: write {"text": "See also"}')
    return text
