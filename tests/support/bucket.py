"""An object store in memory that loses, repeats, delays and truncates puts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from citadel.index.checksum import crc32c
from citadel.index.object_store import Conflict, ObjectInfo


class Stored(NamedTuple):
    """An object."""

    data: bytes
    etag: str
    modified: float
    crc: str


class Died(BaseException):
    """The process of a writer was killed."""


class Put(NamedTuple):
    """A put as it arrives at the store."""

    name: str
    data: bytes
    crc: str
    replaces: str | None


class TestBucket:
    """Counts changing requests; `fault` is called before each with its number, and may raise or change it."""

    __test__ = False

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.requests = 0
        self.before: Callable[[int, str, Put | None], None] = lambda number, kind, put: None
        self.after: Callable[[int, str], None] = lambda number, kind: None
        self.clock = time.time
        self._etags = itertools.count(1)
        self.late: list[Put] = []

    def copy(self) -> TestBucket:
        """The store as it is now, without faults."""
        made = TestBucket()
        made.objects, made._etags = dict(self.objects), itertools.count(1 << 20)
        return made

    def apply(self, put: Put) -> str:
        """Store an object if its condition holds."""
        known = self.objects.get(put.name)
        if (known.etag if known else None) != put.replaces:
            raise Conflict
        stored = Stored(put.data, f'"{next(self._etags)}"', self.clock(), put.crc)
        self.objects[put.name] = stored
        return stored.etag

    def put(self, name: str, path: Path | bytes, crc: str, replaces: str | None = None) -> str:
        put = Put(name, path if isinstance(path, bytes) else path.read_bytes(), crc, replaces)
        number = self._count()
        self.before(number, "put", put)
        etag = self.apply(put)
        self.after(number, "put")
        return etag

    def _count(self) -> int:
        self.requests += 1
        return self.requests

    def get(self, name: str, path: Path) -> ObjectInfo:
        info = self.head(name)
        path.write_bytes(self.objects[name].data)
        return info

    def head(self, name: str) -> ObjectInfo:
        if name not in self.objects:
            raise FileNotFoundError(name)
        stored = self.objects[name]
        return ObjectInfo(name, len(stored.data), stored.etag, stored.modified, stored.crc or None)

    def list(self, prefix: str) -> list[ObjectInfo]:
        return [self.head(name) for name in sorted(self.objects) if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        number = self._count()
        self.before(number, "delete", None)
        self.objects.pop(name, None)
        self.after(number, "delete")

    def damage(self, name: str, data: bytes) -> None:
        """Change the bytes of an object behind its checksum."""
        self.objects[name] = self.objects[name]._replace(data=data)


def crc_of(data: bytes) -> str:
    return f"{crc32c(data):08x}"
