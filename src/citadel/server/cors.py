"""Cross-origin requests: which web pages of other origins may use the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from citadel.errors import UsageError

_ORIGIN = re.compile(r"https?://[a-z0-9.\[\]:-]+", re.IGNORECASE)
Headers = list[tuple[bytes, bytes]]


def check_origin(origin: str) -> str:
    """Return an origin as browsers send it; raise UsageError if it is not one.

    >>> check_origin("https://Example.org/")
    'https://example.org'
    """
    if origin == "*" or _ORIGIN.fullmatch(origin.rstrip("/")):
        return origin.rstrip("/").lower()
    raise UsageError(f"--cors {origin!r} is not an origin: write it as https://example.org, or * for any")


class Cors:
    """The origins whose pages may read responses. Tokens are sent by those pages; there are no cookies.

    >>> Cors(["https://example.org"]).headers({b"origin": b"https://example.org"})[0]
    (b'access-control-allow-origin', b'https://example.org')
    >>> Cors(["https://example.org"]).headers({b"origin": b"https://evil.example"})
    [(b'vary', b'origin')]
    >>> Cors([]).headers({b"origin": b"https://example.org"})
    []
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = {check_origin(origin).encode() for origin in origins}

    def headers(self, request: Mapping[bytes, bytes]) -> Headers:
        """The headers that a response needs."""
        if not self._origins:
            return []
        allowed = self._allowed(request)
        vary = [] if b"*" in self._origins else [(b"vary", b"origin")]
        if allowed is None:
            return vary
        exposed = (b"access-control-expose-headers", b"x-request-id, retry-after")
        return [(b"access-control-allow-origin", allowed), exposed, *vary]

    def is_preflight(self, method: str, request: Mapping[bytes, bytes]) -> bool:
        """Whether a browser asks if a page of an allowed origin may send a request."""
        return (
            method == "OPTIONS"
            and b"access-control-request-method" in request
            and self._allowed(request) is not None
        )

    def _allowed(self, request: Mapping[bytes, bytes]) -> bytes | None:
        origin = request.get(b"origin")
        if origin is None or not self._origins:
            return None
        if b"*" in self._origins:
            return b"*"
        return origin if origin in self._origins else None


PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
    (b"access-control-max-age", b"600"),
]
