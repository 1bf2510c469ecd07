"""Tokens of accepted changes: which are uncommitted, durable or lost."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable

from citadel.errors import ServerError

TOKEN_PATTERN = r"^[0-9a-f]{16}-[0-9]{1,18}$"  # noqa: S105 - the form of a token, not a secret
_MAX_ENDED_EPOCHS = 256  # whose committed changes are remembered

_LOST = "changes that this commit covers were lost (the server restarted, or a commit failed): add them again"
_NOTHING = "nothing waits to be committed: changes from before a server restart are lost; add them again"


class Ledger:
    """Numbers accepted changes within an epoch; an epoch ends when uncommitted changes are dropped.

    A token is `EPOCH-SEQUENCE`. It covers every change of its epoch up to its sequence number.

    >>> ledger = Ledger()
    >>> token = ledger.accept()
    >>> ledger.is_durable([token])
    False
    >>> ledger.commit()
    >>> ledger.is_durable([token])
    True
    """

    def __init__(self) -> None:
        self._ended: OrderedDict[str, int] = OrderedDict()  # epoch → its last durable sequence number
        self._begin()

    def _begin(self) -> None:
        self._epoch, self._accepted, self._durable = secrets.token_hex(8), 0, 0

    @property
    def has_uncommitted(self) -> bool:
        """Whether an accepted change is not durable yet."""
        return self._accepted > self._durable

    def accept(self) -> str:
        """Number a change and return its token."""
        self._accepted += 1
        return f"{self._epoch}-{self._accepted}"

    def commit(self) -> None:
        """Mark all accepted changes as durable."""
        self._durable = self._accepted

    def drop(self) -> None:
        """Mark the uncommitted changes as lost."""
        self._ended[self._epoch] = self._durable
        while len(self._ended) > _MAX_ENDED_EPOCHS:
            self._ended.popitem(last=False)
        self._begin()

    def is_durable(self, tokens: Iterable[str]) -> bool:
        """Return whether all tokens are durable; raise if one is lost."""
        states = [self._state(token) for token in tokens]
        if "lost" in states:
            raise ServerError(409, "lost", _LOST)
        return "uncommitted" not in states

    def require_uncommitted(self) -> None:
        """Refuse a commit without tokens that would commit nothing."""
        if not self.has_uncommitted:
            raise ServerError(409, "nothing_waiting", _NOTHING)

    def _state(self, token: str) -> str:
        epoch, _, digits = token.partition("-")
        sequence = int(digits)
        if epoch != self._epoch:
            return "durable" if 1 <= sequence <= self._ended.get(epoch, 0) else "lost"
        if not 1 <= sequence <= self._accepted:
            return "lost"  # never issued
        return "durable" if sequence <= self._durable else "uncommitted"
