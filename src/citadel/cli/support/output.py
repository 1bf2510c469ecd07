"""Output of commands, safe for terminals: results on stdout, messages on stderr."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """Escape control characters and direction marks, so that a text is one line.

    >>> one_line("a" + chr(10) + "b" + chr(27))
    'a\\\\nb\\\\x1b'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def plain(text: str) -> str:
    """Collapse white space and remove control characters.

    >>> plain("E = mc²" + chr(9) + chr(27) + "[1m")
    'E = mc² [1m'
    """
    return _CONTROL.sub("", " ".join(text.split()))


def shown(text: str) -> str:
    """Replace each control character by one space, which keeps offsets valid.

    >>> shown("a" + chr(10) + chr(27) + "b")
    'a  b'
    """
    return _CONTROL.sub(" ", text)


def say(message: str) -> None:
    """Print a message to stderr."""
    sys.stdout.flush()
    print(f"citadel: {one_line(message)}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print one line of JSON; ASCII, so that it is safe in any encoding and line splitter."""
    print(json.dumps(value, allow_nan=False))


def plural(count: int, noun: str, several: str = "") -> str:
    """Format a number with its noun.

    >>> plural(1, "document"), plural(1200, "query", "queries")
    ('1 document', '1,200 queries')
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
