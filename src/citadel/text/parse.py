"""Parse and validate documents. Errors have no file and line; the readers add them."""

from __future__ import annotations

import datetime
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from citadel.errors import InputError, UsageError
from citadel.text.values import plain_value
from citadel.types import Document

AnyId = str | int | uuid.UUID | datetime.date | np.generic  # a date may have a time
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


def make_document(fields: Mapping[str, Any], new_id: Callable[[], str] | None = None) -> Document:
    """Make a document from `id` or `_id`, `title` and `text`; all other fields are metadata.

    An object under `metadata` (as in BEIR) is merged with the other fields; a name in both is an error.
    `new_id` makes an id for a document without one.

    >>> make_document({"_id": 7, "text": "E = mc²", "year": 1905})
    Document(id='7', text='E = mc²', title='', metadata={'year': 1905})
    """
    has_id = "id" in fields or "_id" in fields
    identifier = find_id(fields) if has_id or new_id is None else new_id()
    title, text = fields.get("title"), fields.get("text")
    if title is None and text is None:
        raise InputError("neither text nor title: give at least one")
    metadata = _find_metadata(fields)
    return check_document(Document(identifier, _or_empty(text), _or_empty(title), metadata))


def check_document(document: Document) -> Document:
    """Return the document in JSON's types, or raise InputError if a field cannot be stored.

    >>> import datetime
    >>> check_document(Document("d1", "text", metadata={"day": datetime.date(1905, 6, 30)})).metadata
    {'day': '1905-06-30'}
    """
    id = id_text(document.id)
    title, text = check_text(document.title, "title"), check_text(document.text, "text")
    if not isinstance(document.metadata, Mapping):
        raise InputError(f"metadata must be an object, not {_kind(document.metadata)}")
    metadata = {
        check_text(name, "a metadata name"): _json_value(value, name, 1)
        for name, value in document.metadata.items()
    }
    return Document(id, text, title, metadata)


def find_id(fields: Mapping[str, Any]) -> str:
    """The id of a document or query, from `id` or `_id`, as `id_text` has it.

    >>> find_id({"id": 12})
    '12'
    """
    given = [id_text(fields[name]) for name in ("id", "_id") if name in fields]
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


def id_text(value: object) -> str:
    """An id as it is stored: an integer becomes its digits, a UUID or date its canonical string.

    >>> id_text(12), id_text("d1")
    ('12', 'd1')
    """
    value = plain_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= MAX_INTEGER_BITS else check_id("9" * (MAX_ID + 1))
    return check_id(value)


def known_id(id: object) -> str | None:
    """An id as `add` stores it, or None if no document can have it.

    >>> known_id(7), known_id("\\ud800")
    ('7', None)
    """
    id = plain_value(id)
    if isinstance(id, int) and not isinstance(id, bool):
        return str(id) if id.bit_length() <= MAX_INTEGER_BITS else None
    if not isinstance(id, str):
        raise UsageError(f"a document's id is a string or an integer, not {type(id).__name__}")
    return id if id.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in id) else None


def known_ids(ids: object) -> list[str]:
    """One id or an iterable of ids as `add` stores them, without those that no document can have.

    >>> known_ids("d1"), known_ids(["d1", 7, "\\ud800"])
    (['d1'], ['d1', '7'])
    """
    given = plain_value(ids)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        given = [given]
    return [id for id in map(known_id, given) if id is not None]


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
    return text if type(text) is str else str(text)


def shorten(text: str) -> str:
    """Quote at most 40 characters, safe to print.

    >>> shorten("a" * 50)[-5:]
    "aaa'…"
    """
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "…"


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


def _json_value(value: object, name: str, depth: int) -> object:
    """A value of metadata in JSON's types; InputError if it has none."""
    value = plain_value(value)
    if isinstance(value, str):
        check_text(value, f"metadata {shorten(name)}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"metadata {shorten(name)} is {value}, which JSON does not have: write null")
    elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise InputError(
            f"metadata {shorten(name)} is an integer of more than {MAX_INTEGER_BITS} bits: write a string"
        )
    elif isinstance(value, dict | list | tuple):
        return _inner(value, name, depth + 1)
    elif value is not None and not isinstance(value, int | float):
        raise InputError(f"metadata {shorten(name)} must be JSON, not {_kind(value)}")
    return value


def _inner(value: Mapping[Any, Any] | Sequence[Any], name: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise InputError(f"metadata {shorten(name)} is nested deeper than {MAX_DEPTH} levels: flatten it")
    if not isinstance(value, Mapping):
        return [_json_value(item, name, depth) for item in value]
    for inner in value:
        check_text(inner, f"a name inside metadata {shorten(name)}")
    return {inner: _json_value(item, name, depth) for inner, item in value.items()}


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
