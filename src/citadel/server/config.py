"""What a server is started with: where it listens, its tokens, and every bound it works under."""

from __future__ import annotations

from dataclasses import InitVar, asdict, dataclass, field

from citadel.config import available_threads
from citadel.errors import UsageError
from citadel.server.hosts import host_name

_SHORTEST_TOKEN = 16  # characters; less can be guessed


@dataclass(frozen=True, slots=True)
class Limits:
    """The most a request may ask for; beyond it the answer is a sentence and a 4xx.

    >>> Limits().k
    1000
    """

    body_bytes: int = 8 << 20
    query_bytes: int = 2 << 20  # of a body that changes nothing: whoever may read can send it
    query_characters: int = 4096
    text_characters: int = 100_000  # of a text to explain
    k: int = 1000
    batch: int = 100  # queries in one request
    hits: int = 10_000  # k times queries
    hit_characters: int = 100_000  # of the title and of the text of a hit; longer ones are cut
    answer_characters: int = 32 << 20  # of titles and texts in one answer
    explained: int = 20  # hits with an explanation each
    tokens: int = 1024  # rows of a query given as vectors
    documents: int = 1000  # in one request
    deadline_ms: int = 10_000
    write_deadline_ms: int = 120_000
    queue: int = 64  # requests that wait for a worker
    writes: int = 8  # requests that wait for the writer
    connections: int = 512

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise UsageError(f"the limit {name} is {value}: give 1 or more")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """All of it.

    >>> ServerConfig(write_token="a secret of some length").read_only
    False
    """

    host: str = "127.0.0.1"
    port: int = 8080
    host_names: tuple[str, ...] = ()  # names beside localhost and `host` that a request may ask for
    share_port: bool = False  # with other servers of the same index, which only read
    write_token: str | None = field(default=None, repr=False)
    read_token: str | None = field(default=None, repr=False)
    workers: int = 0  # searches at the same time; 0: one a core
    threads: int = 1  # cores for one search
    device: str = "cpu"  # where searches run: cpu, or cuda with the index in its memory
    gpu_memory: int | None = None  # bytes of GPU memory for the index; None: no limit
    reload_seconds: float = 5.0  # how often to look for commits of other processes; 0: never
    request_seconds: float = 8.0  # for a request to arrive, and for an answer to be taken
    drain_seconds: float = 10.0
    access_log: bool = True
    limits: Limits = field(default_factory=Limits)
    card_memory: InitVar[int | None] = None  # former name of gpu_memory

    def __post_init__(self, card_memory: int | None) -> None:
        if self.gpu_memory is None and isinstance(card_memory, int):
            object.__setattr__(self, "gpu_memory", card_memory)
        for name, token in (("write", self.write_token), ("read", self.read_token)):
            if token is not None and not (len(token) >= _SHORTEST_TOKEN and token.isascii() and token.isprintable()):
                raise UsageError(f"the {name} token must be {_SHORTEST_TOKEN} or more printable ASCII characters")
        for name in self.host_names:
            if host_name(name) != name:
                raise UsageError(f"--host-name {name!r} is not a host name: write it without scheme, port and path")
        if self.share_port and not self.read_only:
            raise UsageError(
                "a server that shares its port cannot take changes, which would reach any of them: "
                "start the one with the write token on a port of its own"
            )
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port {self.port} is not one from 0 to 65535")
        if min(self.reload_seconds, self.drain_seconds) < 0 or self.request_seconds <= 0:
            raise UsageError("a time in seconds is below 0: give 0 or more, and for a request to arrive more than 0")

    @property
    def read_only(self) -> bool:
        """Without a token nobody may write."""
        return self.write_token is None

    @property
    def searches_at_once(self) -> int:
        return self.workers or available_threads()
