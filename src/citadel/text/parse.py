"""Parse and validate documents. Errors have no file and line; the readers add them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from citadel.errors import InputError, UsageError
from citadel.types import Document

MAX_ID = 512  # bytes of UTF-8
MAX_DEPTH = 64  # of metadata; the json module fails near 1,000
MAX_INTEGER_BITS = 1024  # range of a double
BOM = "\ufeff"
# Control characters and Unicode line ends would break run files and terminals.
_BAD_IN_ID = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def decode(line: bytes, number: int) -> str:
    """Decode a line as UTF-8, without the byte order mark of the first line.

    >>> decode(b"caf\\xc3\\xa9", 1)
    'café'
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 at byte {error.start + 1} of the line: convert the file to UTF-8"
        ) from None
    return text.removeprefix(BOM) if number == 1 else text


def parse_object(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object; NaN and duplicate keys are errors.

    >>> parse_object('{"id": 7}')
    {'id': 7}
    """
    try:
        value = _DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InputError(f"nested deeper than {MAX_DEPTH} levels: flatten it") from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("not valid JSON: a number is too long") from None
    if not isinstance(value, dict):
        raise InputError(f"not a JSON object but {_kind(value)}: write one object per line")
    return value


def make_document(fields: Mapping[str, Any]) -> Document:
    """Make a document from `id` or `_id`, `title` and `text`; all other fields are metadata.

    An object under `metadata` (as in BEIR) is merged with the other fields; a name in both is an error.

    >>> make_document({"_id": 7, "text": "E = mc²", "year": 1905})
    Document(id='7', text='E = mc²', title='', metadata={'year': 1905})
    """
    identifier = find_id(fields)
    title, text = fields.get("title"), fields.get("text")
    if title is None and text is None:
        raise InputError("neither text nor title: give at least one")
    metadata = _find_metadata(fields)
    return check_document(Document(identifier, _or_empty(text), _or_empty(title), metadata))


def check_document(document: Document) -> Document:
    """Return the document, or raise InputError if a field cannot be stored.

    >>> check_document(Document("d1", "text")).id
    'd1'
    """
    check_id(document.id)
    check_text(document.title, "title")
    check_text(document.text, "text")
    if not isinstance(document.metadata, Mapping):
        raise InputError(f"metadata must be an object, not {_kind(document.metadata)}")
    for name, value in document.metadata.items():
        check_text(name, "a metadata name")
        _check_value(value, name, 1)
    return document


def find_id(fields: Mapping[str, Any]) -> str:
    """The id of a document or query, from `id` or `_id`; an integer becomes its decimal digits.

    >>> find_id({"id": 12})
    '12'
    """
    given = [_id_text(fields[name]) for name in ("id", "_id") if name in fields]
    if not given:
        raise InputError("no id: give `id` or `_id`")
    if given[0] != given[-1]:
        raise InputError("`id` and `_id` differ: keep one of them")
    return given[0]


def check_id(identifier: object) -> str:
    """Return the id if it is valid: 1 to 512 bytes without control characters.

    >>> check_id("🦊")
    '🦊'
    """
    if not isinstance(identifier, str):
        raise InputError(f"the id must be a string or an integer, not {_kind(identifier)}")
    if not identifier:
        raise InputError("the id is empty")
    check_text(identifier, "the id")
    if len(identifier) > MAX_ID or len(identifier.encode()) > MAX_ID:
        raise InputError(f"the id is longer than {MAX_ID} bytes: {shorten(identifier)}")
    if _BAD_IN_ID.search(identifier):
        raise InputError(f"the id holds a control character or line end: {shorten(identifier)}")
    return identifier


def known_id(id: object) -> str | None:
    """An id as `add` stores it, or None if no document can have it.

    >>> known_id(7), known_id("\\ud800")
    ('7', None)
    """
    if isinstance(id, int) and not isinstance(id, bool):
        return str(id)
    if not isinstance(id, str):
        raise UsageError(f"a document's id is a string or an integer, not {type(id).__name__}")
    return id if id.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in id) else None


def check_text(text: object, what: str) -> str:
    """Return the text if it is a string that UTF-8 can encode.

    >>> check_text("naïve", "text")
    'naïve'
    """
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, not {_kind(text)}")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise InputError(
                f"{what} holds half a surrogate pair (\\u{code:04x}), which UTF-8 cannot encode"
            ) from None
    return text


def shorten(text: str) -> str:
    """Quote at most 40 characters, safe to print.

    >>> shorten("a" * 50)[-5:]
    "aaa'…"
    """
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "…"


def _id_text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= MAX_INTEGER_BITS else check_id("9" * (MAX_ID + 1))
    return check_id(value)


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


def _find_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    inner = metadata.get("metadata")
    if isinstance(inner, Mapping):
        del metadata["metadata"]
        if shadowed := sorted(str(name) for name in metadata.keys() & inner.keys()):
            raise InputError(f"{shorten(shadowed[0])} occurs both beside and inside `metadata`: keep one")
        metadata.update(inner)
    return metadata


def _check_value(value: object, name: str, depth: int) -> None:
    if isinstance(value, str):
        check_text(value, f"metadata {shorten(name)}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"metadata {shorten(name)} is {value}, which JSON does not have: write null")
    elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise InputError(
            f"metadata {shorten(name)} is an integer of more than {MAX_INTEGER_BITS} bits: write a string"
        )
    elif isinstance(value, dict | list | tuple):
        _check_inner(value, name, depth + 1)
    elif value is not None and not isinstance(value, int | float):
        raise InputError(f"metadata {shorten(name)} must be JSON, not {_kind(value)}")


def _check_inner(value: Mapping[Any, Any] | Sequence[Any], name: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InputError(f"metadata {shorten(name)} is nested deeper than {MAX_DEPTH} levels: flatten it")
    if isinstance(value, Mapping):
        for inner in value:
            check_text(inner, f"a name inside metadata {shorten(name)}")
    for item in value.values() if isinstance(value, Mapping) else value:
        _check_value(item, name, depth)


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"the key {shorten(twice)} occurs twice in one object")
    return fields


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise InputError(f"the number {digits[:40]} is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise InputError(f"not valid JSON: {name} is not a JSON number, write null")


_OWN_FIELDS = frozenset(("id", "_id", "title", "text"))
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "an integer",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
