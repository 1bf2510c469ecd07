"""Every error a user can cause, as one tree: what, where, and what to do, in one sentence each."""

from __future__ import annotations


class CitadelError(Exception):
    """Base of all errors of this package; `exit_code` is what the command line ends with.

    >>> CitadelError("nothing to do").exit_code
    1
    """

    exit_code = 1


class CitadelWarning(UserWarning):
    """Base of all warnings of this package."""


class UncommittedChangesWarning(CitadelWarning):
    """An Index was closed with changes that were not committed; they are dropped."""


class TruncatedDocumentsWarning(CitadelWarning):
    """Documents were longer than the model reads; the rest of their text is not searchable."""


class UsageError(CitadelError):
    """An invalid call or option: a text query on an index of given vectors, k below 0, an unknown codec."""

    exit_code = 2


class CorruptIndexError(CitadelError):
    """A damaged, foreign or hostile index file.

    >>> str(CorruptIndexError("seg-1.cit", "header", "the magic bytes are wrong"))
    'seg-1.cit: header: the magic bytes are wrong; `citadel check INDEX --deep` reports the damage and what ...'
    """

    exit_code = 3

    def __init__(self, file: str, section: str, problem: str) -> None:
        advice = "`citadel check INDEX --deep` reports the damage and what --repair can save"
        super().__init__(f"{file}: {section}: {problem}; {advice}")
        self.file, self.section, self.problem = file, section, problem


class UnknownFormatError(CorruptIndexError):
    """An index written by a newer version of citadel; the message names both format versions."""


class RepairLossError(CitadelError):
    """A repair would lose documents, and nobody has agreed to that yet; nothing was changed."""

    exit_code = 3


class IndexNotFoundError(CitadelError):
    """No index where one was named."""

    exit_code = 4


class InputError(CitadelError):
    """Bad input: a document, query, run or qrels line that cannot be read.

    >>> str(InputError("not valid JSON", "corpus.jsonl", 7))
    'corpus.jsonl:7: not valid JSON'
    """

    exit_code = 4

    def __init__(self, reason: str, source: str = "", line: int | None = None) -> None:
        where = ":".join(str(part) for part in (source, line) if part not in ("", None))
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason, self.source, self.line = reason, source, line


class EmptyQueryError(InputError):
    """A query without any token: there is nothing to search for."""


class DocumentTooLargeError(InputError):
    """A document that cannot be indexed within the memory bound; nothing of it was taken in."""


class FingerprintError(InputError):
    """Text or vectors from another model or analyser than the one the index was built with."""


class LockHeldError(CitadelError):
    """Another process is writing to this index."""

    exit_code = 5


class OwnershipError(LockHeldError):
    """This writer no longer owns the index: its folder was moved, removed or replaced, its LOCK file was deleted,
    or the process forked. Nothing was written."""


class ResourceError(CitadelError):
    """Out of disk space or memory, or the device failed; what was committed before is intact."""

    exit_code = 6


class Cancelled(CitadelError):
    """A search was stopped by its cancel flag."""

    exit_code = 1


class ServerError(CitadelError):
    """What a server refuses or cannot do, with its HTTP status and a word for programs.

    >>> error = ServerError(503, "busy", "too many requests wait: ask again", retry_after=1)
    >>> error.status, error.code, str(error)
    (503, 'busy', 'too many requests wait: ask again')
    """

    exit_code = 1

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


class ChangesLostError(ServerError):
    """Changes that waited on a server are gone; add them again. Adding a document twice does no harm.

    >>> ChangesLostError(409, "lost", "add them again").status
    409
    """
