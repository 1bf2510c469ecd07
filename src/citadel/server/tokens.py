"""Bearer tokens: read and write permission per route, checked before the body is read."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from citadel.errors import ServerError
from citadel.server.config import ServerConfig

READ, WRITE = "read", "write"
PERMISSIONS = {
    "/v1/search": READ,
    "/v1/search/batch": READ,
    "/v1/explain": READ,
    "/v1/explain/text": READ,
    "/v1/count": READ,
    "/v1/facets": READ,
    "/v1/list": READ,
    "/v1/fields": READ,
    "/v1/stats": READ,
    "/metrics": READ,
    "/v1/delete": WRITE,
    "/v1/metadata": WRITE,
    "/v1/commit": WRITE,
    "/v1/rollback": WRITE,
    "/v1/merge": WRITE,
}


class TokenCheck:
    """Checks the bearer token of a request.

    >>> tokens = TokenCheck(ServerConfig(write_token="a secret of some length"))
    >>> tokens.check("POST", "/v1/commit", [(b"authorization", b"Bearer a secret of some length")])
    >>> tokens.check("POST", "/v1/search", [])
    """

    def __init__(self, config: ServerConfig) -> None:
        self._read_only = config.read_only
        write, read = (token.encode() if token else None for token in (config.write_token, config.read_token))
        self._accepted = {WRITE: [write] if write else [], READ: [token for token in (read, write) if token]}
        self._reads_open = read is None

    def check(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise 401 or 403 if the request lacks the permission of its route."""
        self.check_permission(permission(method, path), headers)

    def can_read(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request may read."""
        try:
            self.check_permission(READ, headers)
        except ServerError:
            return False
        return True

    def check_permission(self, needed: str | None, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise 401 or 403 if the request lacks a permission."""
        if needed is None or (needed == READ and self._reads_open):
            return
        if needed == WRITE and self._read_only:
            raise ServerError(
                403,
                "read_only",
                "this server is read-only: start it with CITADEL_WRITE_TOKEN to change the index",
            )
        given = bearer(headers)
        # Compare with all tokens in constant time, so that the duration reveals nothing.
        matches = [hmac.compare_digest(given, token) for token in self._accepted[needed]]
        if not any(matches):
            raise ServerError(
                401, "token", f"a {needed} token is needed: send it as `Authorization: Bearer TOKEN`"
            )


def permission(method: str, path: str) -> str | None:
    """Return the permission a route needs; None for public routes.

    >>> permission("POST", "/v1/documents"), permission("GET", "/v1/documents"), permission("GET", "/")
    ('write', 'read', None)
    """
    if path == "/v1/documents":
        return READ if method in ("GET", "HEAD") else WRITE
    return PERMISSIONS.get(path)


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bearer token of a request; empty if there is none.

    >>> bearer([(b"authorization", b"bearer abc")])
    b'abc'
    """
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""
