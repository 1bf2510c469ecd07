"""Host header check against DNS rebinding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from citadel.errors import ServerError

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{0,5})?", re.IGNORECASE)
_MAX_CACHED = 64  # accepted headers that are not parsed again

_MISSING = (
    "the Host header is missing, duplicated or invalid: send one with the name or address of this server"
)
_FOREIGN = (
    "this server does not answer for the host of this request: "
    "use the address it listens on, or start it with --host-name NAME"
)


class Hosts:
    """Names and addresses that this server accepts in the Host header.

    Without this check, a page on evil.example.com, resolved to 127.0.0.1, could read a local index through
    a visitor's browser. The browser sends the page's own name as Host, and the page cannot change it. An
    address literal cannot be rebound, so a server that listens on every address accepts any literal.

    >>> hosts = Hosts("127.0.0.1", ["search.example.org"])
    >>> [hosts.accepts(name) for name in ("localhost", "search.example.org", "evil.example.com", "10.0.0.7")]
    [True, True, False, False]
    """

    def __init__(self, listens_on: str, names: Iterable[str] = ()) -> None:
        address = _address(listens_on)
        self._any_address = listens_on == "" or (address is not None and address.is_unspecified)
        self._addresses = {address}
        self._names = {"localhost", *(_normalised(name) for name in (listens_on, *names))}
        self._accepted: set[bytes] = set()

    def check(self, http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise if the Host header is missing (HTTP/1.1), duplicated, invalid or foreign."""
        values = [value for name, value in headers if name == b"host"]
        if len(values) == 1 and values[0] in self._accepted:
            return
        if not values and http_version == "1.0":  # optional there; browsers use 1.1
            return
        name = host_name(values[0].decode("latin-1")) if len(values) == 1 else None
        if name is None:
            raise ServerError(400, "host", _MISSING)
        if not self.accepts(name):
            raise ServerError(421, "host", _FOREIGN)
        if len(self._accepted) < _MAX_CACHED:
            self._accepted.add(values[0])

    def accepts(self, name: str) -> bool:
        """Return whether this is a name or an address of this server."""
        address = _address(name)
        if address is None:
            return _normalised(name) in self._names
        return self._any_address or address.is_loopback or address in self._addresses


def host_name(value: str) -> str | None:
    """Return the name or address in a Host header without its port; None if it is invalid.

    >>> host_name("[::1]:8080"), host_name("localhost:8080"), host_name("user@localhost")
    ('[::1]', 'localhost', None)
    """
    match = _HOST.fullmatch(value)
    return match[1] if match else None


def _normalised(name: str) -> str:
    return name.lower().removesuffix(".")


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
