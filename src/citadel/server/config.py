"""Server configuration: address, tokens, workers, timeouts and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field, replace
from typing import Any

from citadel.errors import UsageError
from citadel.server.cors import check_origin
from citadel.server.hosts import host_name
from citadel.settings import available_threads

_MIN_TOKEN = 16  # characters; shorter ones can be guessed


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per request and per server; a request beyond one gets a 4xx or 503.

    >>> Limits().k
    1000
    """

    body_bytes: int = 8 << 20
    query_bytes: int = 2 << 20  # body of a request that needs no write token
    query_characters: int = 4096
    text_characters: int = 100_000  # text to explain
    k: int = 1000
    batch: int = 100  # queries per request
    hits: int = 10_000  # k × queries per request
    depth: int = 10_000  # offset + k
    hit_characters: int = 100_000  # title and text of a hit, each; longer ones are cut
    answer_characters: int = 32 << 20  # titles and texts in one response
    explained: int = 20  # hits with an explanation
    tokens: int = 1024  # tokens of a query given as vectors
    documents: int = 1000  # added or deleted per request
    listed: int = 1000  # documents or ids per page of a listing
    deadline_ms: int = 10_000
    write_deadline_ms: int = 120_000
    queue: int = 64  # requests waiting for a worker
    writes: int = 8  # requests waiting for the writer
    connections: int = 512

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise UsageError(f"the limit {name} is {value}: it must be 1 or more")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Server configuration.

    >>> ServerConfig(write_token="a secret of some length").read_only
    False
    """

    host: str = "127.0.0.1"
    port: int = 8080
    host_names: tuple[str, ...] = ()  # accepted in the Host header, besides localhost and `host`
    cors: tuple[str, ...] = ()  # origins whose pages may use the API; "*": all
    share_port: bool = False  # with other read-only servers of the same index
    write_token: str | None = field(default=None, repr=False)
    read_token: str | None = field(default=None, repr=False)
    workers: int = 0  # concurrent searches; 0: one per core
    threads: int = 1  # cores per search
    device: str = "cpu"  # cpu or cuda
    gpu_memory: int | None = None  # bytes of GPU memory for the index; None: all
    reload_seconds: float = 5.0  # interval of the reload poller; 0: off
    request_seconds: float = 8.0  # to receive a request, and to send a response
    drain_seconds: float = 10.0
    access_log: bool = True
    limits: Limits = field(default_factory=Limits)
    card_memory: InitVar[int | None] = None  # former name of gpu_memory

    def __post_init__(self, card_memory: int | None) -> None:
        if self.gpu_memory is None and isinstance(card_memory, int):
            object.__setattr__(self, "gpu_memory", card_memory)
        for name, token in (("write", self.write_token), ("read", self.read_token)):
            if token is not None and not (
                len(token) >= _MIN_TOKEN and token.isascii() and token.isprintable()
            ):
                raise UsageError(f"the {name} token must be {_MIN_TOKEN} or more printable ASCII characters")
        for name in self.host_names:
            if host_name(name) != name:
                raise UsageError(
                    f"--host-name {name!r} is not a host name: write it without scheme, port and path"
                )
        for origin in self.cors:
            check_origin(origin)
        if self.share_port and not self.read_only:
            raise UsageError(
                "--share-port is for read-only servers: start the one with the write token on another port"
            )
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port {self.port} is out of range: choose one from 0 to 65535")
        if min(self.reload_seconds, self.drain_seconds) < 0 or self.request_seconds <= 0:
            raise UsageError(
                "a timeout is negative: reload and drain need 0 seconds or more, a request more than 0"
            )

    def for_index(self, tokens: Mapping[str, Any]) -> ServerConfig:
        """The configuration of one index; its own `read` and `write` tokens replace the server's.

        >>> ServerConfig(read_token="a secret of some length").for_index({"read": None}).read_token
        """
        chosen = {f"{kind}_token": tokens[kind] for kind in ("read", "write") if kind in tokens}
        return replace(self, **chosen, card_memory=None) if chosen else self

    @property
    def read_only(self) -> bool:
        """Whether changes are refused: there is no write token."""
        return self.write_token is None

    @property
    def num_workers(self) -> int:
        """The number of concurrent searches."""
        return self.workers or available_threads()
