"""Write files atomically."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable

from citadel.errors import InputError, ResourceError


def write_whole(path: str, lines: Iterable[str]) -> None:
    """Write lines to a file atomically.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "lines.txt")
    >>> write_whole(str(file), (f"{n} " for n in range(3)))
    >>> file.read_text()
    '0 1 2 '
    """
    write_whole_bytes(path, (line.encode() for line in lines))


def write_whole_bytes(path: str, parts: Iterable[bytes]) -> None:
    """Write bytes to a file atomically.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "parts.bin")
    >>> write_whole_bytes(str(file), [b"ab", b"c"])
    >>> file.read_bytes()
    b'abc'
    """
    try:
        target = os.path.realpath(path)
        if os.path.exists(target) and not os.path.isfile(target):
            _write(target, "wb", parts)  # a pipe or device such as /dev/stdout cannot be replaced
        else:
            _write_and_rename(target, parts)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind, advice = (
            (ResourceError, "make room") if full else (InputError, "name a file that can be written")
        )
        raise kind(f"{path}: cannot be written ({error.strerror}): {advice}") from None


def _write_and_rename(target: str, parts: Iterable[bytes]) -> None:
    temporary = f"{target}.{uuid.uuid4().hex}.tmp"
    try:
        _write(temporary, "xb", parts)
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _write(path: str, mode: str, parts: Iterable[bytes]) -> None:
    with open(path, mode) as file:
        file.writelines(parts)
