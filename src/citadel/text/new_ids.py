"""Ids for documents that have none."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time

_BYTES = 15  # 24 characters in base 32
_COUNTER_BITS, _RANDOM_BITS = 24, 48  # below 48 bits of time in milliseconds


class NewIds:
    """Makes unique ids of 24 characters that sort by the time of the call and then by their order.

    >>> new = NewIds()
    >>> first, second = new(), new()
    >>> len(first), first < second, new.made == [first, second]
    (24, True, True)
    """

    def __init__(self) -> None:
        milliseconds = time.time_ns() // 1_000_000
        self._next = (milliseconds << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)) << _COUNTER_BITS
        self.made: list[str] = []

    def __call__(self) -> str:
        id = _base32(self._next.to_bytes(_BYTES))
        self._next += 1
        self.made.append(id)
        return id


def content_id(text: str) -> str:
    """An id of 24 characters that depends on a text alone, so that reading a file again repeats it.

    >>> content_id("E = mc²")
    '1pbkd7ihr58dkitkettd07mc'
    """
    return _base32(hashlib.blake2b(text.encode(), digest_size=_BYTES).digest())


def _base32(data: bytes) -> str:
    """Base 32 with the digits 0 to 9 and a to v, which sort as the bytes do."""
    return base64.b32hexencode(data).decode().lower()
