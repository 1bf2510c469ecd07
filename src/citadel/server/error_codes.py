"""Library errors on the wire: HTTP status and code, used by the server and the client."""

from __future__ import annotations

from citadel.errors import (
    Cancelled,
    CitadelError,
    CorruptIndexError,
    FilterError,
    InputError,
    LockHeldError,
    ResourceError,
    UsageError,
)

# (exception, status, code); the first that fits
ERROR_CODES: tuple[tuple[type[CitadelError], int, str], ...] = (
    (FilterError, 422, "filter"),
    (UsageError, 400, "usage"),
    (InputError, 422, "fields"),
    (LockHeldError, 409, "locked"),
    (ResourceError, 507, "resources"),
    (CorruptIndexError, 500, "corrupt"),
    (Cancelled, 504, "deadline"),
)
