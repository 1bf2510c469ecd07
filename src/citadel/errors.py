"""Errors and warnings. A message is one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Any


class CitadelError(Exception):
    """Base of all errors of this package; `exit_code` is the exit status of the command line.

    >>> CitadelError("nothing to do").exit_code
    1
    """

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors of other processes keep type, message and fields, whatever the parameters of their type."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[CitadelError], args: tuple[Any, ...], fields: dict[str, Any]) -> CitadelError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class CitadelWarning(UserWarning):
    """Base of all warnings of this package."""


class UncommittedChangesWarning(CitadelWarning):
    """An Index was closed with uncommitted changes, which are discarded."""


class TruncatedDocumentsWarning(CitadelWarning):
    """Documents were longer than the model reads; the rest of their text is not searchable."""


class UsageError(CitadelError):
    """An invalid call or option, such as an unknown codec or k below 0."""

    exit_code = 2


class FilterError(UsageError):
    """An invalid filter, or one that does not fit a field; `field` is that field's name, where there is one.

    >>> str(FilterError('unknown operator "$near" for field "year"', "year"))
    'filter: unknown operator "$near" for field "year"'
    """

    def __init__(self, problem: str, field: str | None = None) -> None:
        super().__init__(f"filter: {problem}")
        self.field = field


class UnknownQueryError(UsageError, KeyError):
    """A ranking has no query with this id; also a KeyError.

    >>> str(UnknownQueryError("the ranking has no query 'q9'"))
    "the ranking has no query 'q9'"
    """

    __str__ = Exception.__str__  # KeyError quotes its message


class CorruptIndexError(CitadelError):
    """A damaged, foreign or hostile index file.

    >>> str(CorruptIndexError("seg-1.cit", "header", "the magic bytes are wrong"))
    'seg-1.cit: header: the magic bytes are wrong; `citadel check INDEX --deep` reports the damage ...'
    """

    exit_code = 3

    def __init__(self, file: str, section: str, problem: str) -> None:
        advice = "`citadel check INDEX --deep` reports the damage and what --repair can save"
        super().__init__(f"{file}: {section}: {problem}; {advice}")
        self.file, self.section, self.problem = file, section, problem


class UnknownFormatError(CorruptIndexError):
    """An index written by a newer version of citadel; the message names both format versions."""


class RepairLossError(CitadelError):
    """A repair would lose documents and was not confirmed; nothing was changed."""

    exit_code = 3


class IndexNotFoundError(CitadelError):
    """There is no index at the given path."""

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
    """A query without tokens."""


class DocumentTooLargeError(InputError):
    """A document that cannot be indexed within the memory limit; nothing of it was added."""


class FingerprintError(InputError):
    """Text or vectors from a model or analyser other than the index's own."""


class LockHeldError(CitadelError):
    """Another process is writing to this index."""

    exit_code = 5


class OwnershipError(LockHeldError):
    """This writer no longer owns the index. Nothing was written.

    The folder was moved, removed or replaced, its LOCK file was deleted, or the process forked.
    """


class ResourceError(CitadelError):
    """Out of disk space or memory, or a device failure; committed data is intact."""

    exit_code = 6


class Cancelled(CitadelError):
    """A search was stopped by its cancel flag."""

    exit_code = 1


class RerankError(CitadelError):
    """The function given as `rerank` raised an exception or returned scores that cannot be used.

    >>> RerankError("rerank returned 3 scores for 10 texts").exit_code
    1
    """


class ServerError(CitadelError):
    """An error response of a server: HTTP status, machine-readable code and message.

    >>> error = ServerError(503, "busy", "too many requests: try again later", retry_after=1)
    >>> error.status, error.code, str(error)
    (503, 'busy', 'too many requests: try again later')
    """

    exit_code = 1

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


class ChangesLostError(ServerError):
    """Pending changes on a server were lost and must be sent again; adding a document twice is harmless.

    >>> ChangesLostError(409, "lost", "add them again").status
    409
    """
