"""Which accepted changes wait and which are durable, told to clients as tokens."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable

from citadel.errors import ServerError

TOKEN_PATTERN = r"^[0-9a-f]{16}-[0-9]{1,18}$"  # noqa: S105 - the form of a token, not a secret
_KEPT_EPOCHS = 256  # ended epochs whose committed changes are still known

_LOST = "changes that this commit covers were lost (the server restarted, or a commit failed): add them again"
_NOTHING = "nothing waits to be committed: what was added before a restart of the server is lost, so add it again"


class Ledger:
    """Numbers accepted changes within an epoch; an epoch ends when waiting changes are dropped.

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
    def waits(self) -> bool:
        """Whether an accepted change is not durable yet."""
        return self._accepted > self._durable

    def accept(self) -> str:
        """Number a change; its token."""
        self._accepted += 1
        return f"{self._epoch}-{self._accepted}"

    def commit(self) -> None:
        """Every accepted change is durable now."""
        self._durable = self._accepted

    def drop(self) -> None:
        """The changes that waited are gone: their tokens are lost from now on."""
        self._ended[self._epoch] = self._durable
        while len(self._ended) > _KEPT_EPOCHS:
            self._ended.popitem(last=False)
        self._begin()

    def is_durable(self, tokens: Iterable[str]) -> bool:
        """Whether every token is durable; False while one waits, an error when one is lost."""
        states = [self._state(token) for token in tokens]
        if "lost" in states:
            raise ServerError(409, "lost", _LOST)
        return "waits" not in states

    def require_waiting(self) -> None:
        """Refuse a commit without tokens that would commit nothing."""
        if not self.waits:
            raise ServerError(409, "nothing_waiting", _NOTHING)

    def _state(self, token: str) -> str:
        epoch, _, digits = token.partition("-")
        sequence = int(digits)
        if epoch != self._epoch:
            return "durable" if 1 <= sequence <= self._ended.get(epoch, 0) else "lost"
        if not 1 <= sequence <= self._accepted:
            return "lost"  # never given out
        return "durable" if sequence <= self._durable else "waits"
