"""The Host header: which names a server answers for, so that a foreign web page cannot reach it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from citadel.errors import ServerError

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{0,5})?", re.IGNORECASE)
_REMEMBERED = 64  # accepted headers that are not parsed again

_MISSING = "a request has one Host header, with the name or address of this server: send exactly one"
_FOREIGN = (
    "this server does not answer for the host of this request: "
    "use the address it listens on, or start it with --host-name NAME"
)


class Hosts:
    """The names and addresses a server answers for.

    Without this, a page of evil.example.com whose name is made to resolve to 127.0.0.1 could read a local
    index through a visitor's browser. A browser sends the page's own name as Host, and a page cannot change
    that. An address is not such a name, so a server that listens on every address answers for any literal.

    >>> hosts = Hosts("127.0.0.1", ["search.example.org"])
    >>> [hosts.answers(name) for name in ("localhost", "search.example.org", "evil.example.com", "10.0.0.7")]
    [True, True, False, False]
    """

    def __init__(self, listens_on: str, names: Iterable[str] = ()) -> None:
        address = _address(listens_on)
        self._any_address = listens_on == "" or (address is not None and address.is_unspecified)
        self._addresses = {address}
        self._names = {"localhost", *(_folded(name) for name in (listens_on, *names))}
        self._accepted: set[bytes] = set()

    def check(self, http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise the answer to a request whose Host is missing (HTTP/1.1), doubled, invalid or foreign."""
        given = [value for name, value in headers if name == b"host"]
        if len(given) == 1 and given[0] in self._accepted:
            return
        if not given and http_version == "1.0":  # it has no such header; browsers speak 1.1
            return
        name = host_name(given[0].decode("latin-1")) if len(given) == 1 else None
        if name is None:
            raise ServerError(400, "host", _MISSING)
        if not self.answers(name):
            raise ServerError(421, "host", _FOREIGN)
        if len(self._accepted) < _REMEMBERED:
            self._accepted.add(given[0])

    def answers(self, name: str) -> bool:
        """Whether this is a name or an address of this server."""
        address = _address(name)
        if address is None:
            return _folded(name) in self._names
        return self._any_address or address.is_loopback or address in self._addresses


def host_name(value: str) -> str | None:
    """The name or address in a Host header, without its port; None when the header is not valid.

    >>> host_name("[::1]:8080"), host_name("localhost:8080"), host_name("user@localhost")
    ('[::1]', 'localhost', None)
    """
    match = _HOST.fullmatch(value)
    return match[1] if match else None


def _folded(name: str) -> str:
    return name.lower().removesuffix(".")


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
