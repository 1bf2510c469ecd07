"""Validate a `tokenizer.json` before the tokenizers library reads it: only known parts of bounded cost.

A regular expression may take unbounded time, and replacements may lengthen a text without bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from citadel.encode.charsmap import charsmap_problem
from citadel.errors import InputError

MAX_GROWTH = 16  # factor by which all replacements together may lengthen a text
MAX_WORD = 1000  # letters of a word that WordPiece splits
MAX_PARTS = 16
_ADVICE = "take the tokenizer of a BERT, RoBERTa or XLM-RoBERTa checkpoint and export the model again"
_ALLOWED = {
    "normalizer": "BertNormalizer Lowercase NFC NFD NFKC NFKD Precompiled Replace Sequence Strip "
    "StripAccents",
    "pre_tokenizer": "BertPreTokenizer ByteLevel CharDelimiterSplit Digits Metaspace Punctuation Sequence "
    "Split UnicodeScripts Whitespace WhitespaceSplit",
    "post_processor": "BertProcessing ByteLevel RobertaProcessing Sequence TemplateProcessing",
    "decoder": "BPEDecoder ByteFallback ByteLevel Fuse Metaspace Replace Sequence Strip WordPiece",
    "model": "BPE Unigram WordLevel WordPiece",
}
_KINDS = {part: frozenset(kinds.split()) for part, kinds in _ALLOWED.items()}
_TOP = frozenset(("version", "truncation", "padding", "added_tokens", *_KINDS))
_INNER = ("normalizers", "pretokenizers", "processors", "decoders")  # keys of a Sequence's parts


def check_tokenizer(contents: bytes, path: str) -> None:
    """Reject a tokenizer with unknown parts, regular expressions or lengthening replacements.

    >>> check_tokenizer(b'{"normalizer": {"type": "Prepend"}, "model": {"type": "BPE"}}', "t.json")
    Traceback (most recent call last):
    citadel.errors.InputError: t.json: the tokenizer is refused: its normalizer is of type ...
    """
    try:
        data = json.loads(contents)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"cannot be read as a tokenizer ({reason}): export the model again", path) from None
    problem = _problem(data)
    if problem:
        raise InputError(f"the tokenizer is refused: {problem}; {_ADVICE}", path)


def _problem(data: Any) -> str | None:
    if not isinstance(data, Mapping) or not isinstance(data.get("model"), Mapping):
        return "it has no model"
    if unknown := data.keys() - _TOP:
        return f"it has the unknown part {min(unknown)[:40]!r}"
    growth = 1.0
    for part in _KINDS:
        items = list(_parts(data.get(part)))
        if len(items) > MAX_PARTS:
            return f"its {part} has more than {MAX_PARTS} parts"
        if any(isinstance(item, Mapping) and item.get("type") == "Sequence" for item in items[1:]):
            return f"its {part} has a sequence within a sequence"
        for item in items:
            if problem := _part_problem(part, item):
                return problem
            growth *= _growth(item) if part == "normalizer" else 1
    return (
        f"its replacements make a text more than {MAX_GROWTH} times as long" if growth > MAX_GROWTH else None
    )


def _parts(part: Any) -> Iterator[Any]:
    """A part and, for a sequence, the parts within it."""
    if part is None:
        return
    yield part
    if isinstance(part, Mapping) and part.get("type") == "Sequence":
        for name in _INNER:
            yield from part.get(name) or ()


def _part_problem(part: str, item: Any) -> str | None:
    kind = item.get("type", "") if isinstance(item, Mapping) else ""
    if not isinstance(kind, str) or kind not in _KINDS[part]:
        return f"its {part} is of type {str(kind)[:40]!r}, which is not known to be bounded"
    if kind == "Precompiled":
        return charsmap_problem(item.get("precompiled_charsmap")) or None
    if kind in ("Replace", "Split") and not _is_plain(item.get("pattern")) and not _joins_spaces(item):
        return f"the pattern of its {part} is not plain text"
    word = item.get("max_input_chars_per_word", 0)
    if kind == "WordPiece" and part == "model" and not (isinstance(word, int) and 0 <= word <= MAX_WORD):
        return f"it cuts words of more than {MAX_WORD} letters"
    if kind == "TemplateProcessing" and not _is_single(item.get("single")):
        return "its template repeats the text"
    return None


def _is_plain(pattern: Any) -> bool:
    """Whether a pattern is a non-empty string and not a regular expression."""
    return isinstance(pattern, Mapping) and pattern.keys() == {"String"} and bool(pattern["String"])


def _joins_spaces(item: Mapping[str, Any]) -> bool:
    """Whether an item is the one known expression: runs of spaces become one (SentencePiece)."""
    return (
        item.get("type") == "Replace"
        and item.get("pattern") == {"Regex": " {2,}"}
        and item.get("content") in (" ", "▁")
    )


def _growth(item: Mapping[str, Any]) -> float:
    """Factor by which a replacement may lengthen a text."""
    if item.get("type") != "Replace" or _joins_spaces(item):
        return 1
    return max(len(str(item.get("content", ""))) / len(str(item["pattern"]["String"])), 1)


def _is_single(template: Any) -> bool:
    """Whether a template contains the text exactly once, with few special tokens."""
    if not isinstance(template, list) or len(template) > MAX_PARTS:
        return False
    return sum("Sequence" in piece for piece in template if isinstance(piece, Mapping)) == 1
