"""Buckets of S3, Google Cloud Storage and Azure, and in memory, through obstore."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

from citadel.errors import UsageError
from citadel.index.object_store import Conflict, ObjectInfo

_ATTRIBUTE = "citadel-crc32c"
_CHUNK = 8 << 20


@functools.cache
def connect(scheme: str, bucket: str) -> ObstoreBucket:
    """The bucket of a URL; address and credentials are those of the environment, such as AWS_…"""
    try:
        from obstore.store import MemoryStore, from_url
    except ImportError:
        raise UsageError(
            f"{scheme}://{bucket}: object stores need obstore: pip install 'citadel-ir[objects]'"
        ) from None
    return ObstoreBucket(MemoryStore() if scheme == "memory" else from_url(f"{scheme}://{bucket}"))


class ObstoreBucket:
    """The requests of an index, sent with obstore."""

    def __init__(self, store: Any) -> None:
        import obstore
        from obstore import exceptions

        self._obstore, self._store = obstore, store
        self._conflicts = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
        self._failures = exceptions.BaseError

    def _send(self, request: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return request(self._store, *arguments, **options)
        except self._conflicts as error:
            raise Conflict from error
        except FileNotFoundError:
            raise
        except self._failures as error:
            raise OSError(" ".join(str(error).split("Debug source")[0].split())) from error

    def put(self, name: str, path: Path | bytes, crc: str, replaces: str | None = None) -> str:
        """Create an object, or replace the one with an ETag; return the new ETag."""
        mode: Any = "create" if replaces is None else {"e_tag": replaces}
        # One request: of several, only the last one would be conditional.
        options = {"mode": mode, "attributes": {_ATTRIBUTE: crc} if crc else None, "use_multipart": False}
        return str(self._send(self._obstore.put, name, path, **options)["e_tag"])

    def get(self, name: str, path: Path) -> ObjectInfo:
        """Copy an object to a file."""
        result = self._send(self._obstore.get, name)
        info = _info(result.meta, dict(result.attributes).get(_ATTRIBUTE))
        with path.open("wb") as file:
            try:
                for piece in result.stream(min_chunk_size=_CHUNK):
                    file.write(piece)
            except self._failures as error:
                raise OSError(" ".join(str(error).split())) from error
        return info

    def head(self, name: str) -> ObjectInfo:
        """What the store says of an object."""
        result = self._send(self._obstore.get, name, options={"head": True})
        return _info(result.meta, dict(result.attributes).get(_ATTRIBUTE))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects whose names begin with a prefix."""
        folder = prefix.rpartition("/")[0]  # obstore lists whole folders
        found = self._send(lambda store: self._obstore.list(store, folder or None).collect())
        return [_info(meta, None) for meta in found if meta["path"].startswith(prefix)]

    def delete(self, name: str) -> None:
        """Remove an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._send(self._obstore.delete, name)


def _info(meta: Any, crc: str | None) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], str(meta["e_tag"]), meta["last_modified"].timestamp(), crc)
