"""Read the files of a model folder: only regular files of bounded size."""

from __future__ import annotations

import os
import stat

from citadel.errors import InputError

MAX_CONFIG = 1 << 20
MAX_TOKENIZER = 64 << 20
MAX_GRAPH = (2 << 30) - 1  # the limit of a protobuf message
_ADVICE = "name a folder made by `citadel export`"


def read_model_file(path: str, limit: int) -> bytes:
    """Read one file of a model; pipes, devices, folders and files above `limit` bytes are errors.

    >>> read_model_file("/dev/zero", 1 << 20)
    Traceback (most recent call last):
    citadel.errors.InputError: /dev/zero: it is not a regular file: name a folder made by `citadel export`
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"it is not a regular file: {_ADVICE}", path)
            if status.st_size > limit:
                raise InputError(
                    f"it has {status.st_size:,} bytes, at most {limit:,} are read: {_ADVICE}", path
                )
            return file.read(limit)
    except FileNotFoundError:
        raise InputError(f"there is no such file: {_ADVICE}", path) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({os.strerror(error.errno or 0).lower()}): {_ADVICE}", path
        ) from None
