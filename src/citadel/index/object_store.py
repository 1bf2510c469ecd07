"""An index in an object store: `s3://`, `gs://`, `az://` or `memory://`, through the seam of `storage.py`.

A file is written to a local spool and put under its final name in one conditional request, which creates an
object or fails because it exists; so the manifest's put is the commit, and decides between two writers.
Readers copy objects to a local cache, by their ETag, and verify the checksum that each carries.

The lock is a lease: it keeps honest writers apart, but safety does not depend on it. A writer that lost its
lease without noticing cannot publish, because the next generation exists, and does not remove files of its
successor (`Writer` collects garbage only after a commit of its own, and checks the lease between listing and
removing).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from citadel.errors import CorruptIndexError, LockHeldError, OwnershipError, ResourceError, UsageError
from citadel.index.checksum import crc32c
from citadel.index.folder_lock import LOCK, fork_message
from citadel.index.mapping import MappedFile

SCHEMES = ("s3://", "gs://", "az://", "memory://")
LEASE_SECONDS = 60.0
RENEWALS = 4  # per lease
TRIES, RETRY_SECONDS = 3, 0.2
_CRC = "citadel-crc32c"
_NUMBERED = re.compile(r"(gen|root)\.([0-9]{8,12})")


class ObjectInfo(NamedTuple):
    """What a store says of an object; `crc` is the checksum that its writer gave."""

    name: str
    size: int
    etag: str
    modified: float
    crc: str | None = None


class Conflict(Exception):
    """A conditional put failed: the object exists, or is not the one that was named."""


class Bucket(Protocol):
    """The few requests that an index needs; each raises FileNotFoundError, Conflict or OSError."""

    def put(self, name: str, path: Path | bytes, crc: str, replaces: str | None = None) -> str:
        """Create an object, or replace the one with an ETag; return the new ETag."""
        ...

    def get(self, name: str, path: Path) -> ObjectInfo:
        """Copy an object to a file."""
        ...

    def head(self, name: str) -> ObjectInfo: ...
    def list(self, prefix: str) -> list[ObjectInfo]: ...
    def delete(self, name: str) -> None: ...


def open_bucket(url: str) -> tuple[Bucket, str]:
    """The bucket of a URL, and the prefix of its objects."""
    from citadel.index.obstore_bucket import connect

    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not bucket or f"{scheme}://" not in SCHEMES:
        raise UsageError(f"{url}: not the address of an index: write it as s3://BUCKET/FOLDER")
    return connect(scheme, bucket), prefix.strip("/")


class ObjectStorage:
    """The objects below a prefix, as a folder of an index.

    >>> storage = ObjectStorage("memory://example/index")
    >>> storage.names()
    []
    """

    def __init__(self, url: str, cache: Path | None = None, bucket: Bucket | None = None) -> None:
        self.location = url.rstrip("/")
        self._given = bucket
        self._bucket, self._prefix = (
            (bucket, self.location.partition("://")[2].partition("/")[2]) if bucket else open_bucket(url)
        )
        self._cache_root = cache
        default = Path(os.environ.get("CITADEL_CACHE") or Path.home() / ".cache" / "citadel")
        key = hashlib.sha256(self.location.encode()).hexdigest()[:24]
        self.cache = (cache or default / "objects") / key
        self._spool: dict[str, Path] = {}  # files that have no object yet
        self._checked: set[str] = set()  # cached files whose checksum this process has verified
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.location, self._cache_root, self._given)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what a store reports into a ResourceError."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            reason = " ".join(str(error).split())[:200]
            raise ResourceError(
                f"{self.location}: the object store failed ({reason}); what was committed before is intact; "
                "check address, credentials and network, then run it again"
            ) from error

    def make(self) -> None:
        """Nothing to do: a prefix exists with its first object."""

    def reopen(self) -> None:
        """Nothing to do: names are looked up with every request."""

    def inside(self, name: str) -> ObjectStorage:
        """The storage of a folder in this one."""
        return ObjectStorage(f"{self.location}/{name}", self._cache_root, self._given)

    def names(self) -> list[str]:
        """The sorted names of files and folders, those included that are still being written."""
        start = len(self._key(""))
        with self._failures():
            listed = self._bucket.list(self._key(""))
        return sorted({each.name[start:].partition("/")[0] for each in listed} | set(self._spool))

    # -- reading

    def map(self, name: str) -> memoryview:
        """Map the cached copy of an object."""
        descriptor = os.open(self._local(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(MappedFile(descriptor))
        finally:
            os.close(descriptor)

    def database(self, name: str) -> sqlite3.Connection:
        """A read-only SQLite connection to the cached copy of an object."""
        uri = f"{self._local(name).as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(uri, uri=True, check_same_thread=False)

    def _local(self, name: str) -> Path:
        """The cached copy of an object, fetched unless it is there and whole."""
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise CorruptIndexError(name, "name", "a file name must not lead out of the index folder")
        if name in self._spool:
            return self._spool[name]
        with self._failures():
            info = self._bucket.head(self._key(name))
        tag = hashlib.sha256(f"{info.etag} {info.size}".encode()).hexdigest()[:16]
        path = self.cache / f"{name}.{tag}"
        with self._lock:
            if str(path) in self._checked and path.exists():
                return path
            if not (path.exists() and _is_whole(path, info)):
                self._fetch(name, path)
            self._checked.add(str(path))
        return path

    def _fetch(self, name: str, path: Path) -> None:
        """Copy an object into the cache; a copy that differs from its checksum is fetched once more."""
        self.cache.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            for _ in range(2):
                with self._failures():
                    info = self._bucket.get(self._key(name), temporary)
                if _is_whole(temporary, info):
                    os.replace(temporary, path)
                    return
        finally:
            temporary.unlink(missing_ok=True)
        raise CorruptIndexError(name, "file", "it was fetched twice, and differs from its checksum")

    # -- writing

    def create(self, name: str) -> SpoolFile:
        """A local file that becomes an object when it gets its final name."""
        with self._lock:
            if name in self._spool:
                raise FileExistsError(name)
            self.cache.mkdir(parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix="spool-", dir=self.cache)
            self._spool[name] = Path(path)
        return SpoolFile(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Put a written file under its final name; raises FileExistsError if the name exists."""
        path = self._spool.get(old)
        if path is None:
            raise FileNotFoundError(old)
        crc = _crc_of(path)
        with self._failures():
            self._put(new, path, crc)
            if match := _NUMBERED.fullmatch(new):
                self._require_newest(new, match[1])
        with self._lock:
            del self._spool[old]
        path.unlink(missing_ok=True)

    def _put(self, name: str, path: Path, crc: str) -> None:
        """Create an object. After a failure the put is repeated; it may have been made by then."""
        for attempt in range(TRIES):
            try:
                self._bucket.put(self._key(name), path, crc)
                return
            except Conflict:
                if attempt and self._is_ours(name, path, crc):
                    return
                raise FileExistsError(name) from None
            except OSError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(RETRY_SECONDS * (attempt + 1))

    def _is_ours(self, name: str, path: Path, crc: str) -> bool:
        """Whether an object is the file that an earlier try has put."""
        info = self._bucket.head(self._key(name))
        return (info.size, info.crc) == (path.stat().st_size, crc)

    def _require_newest(self, name: str, kind: str) -> None:
        """Take back a generation that came too late: newer ones were published before it."""
        own, prefix = self._bucket.head(self._key(name)), len(self._key(""))
        for other in self._bucket.list(self._key(f"{kind}.")):
            is_newer = _NUMBERED.fullmatch(other.name[prefix:]) and other.name > own.name
            if is_newer and other.modified < own.modified:
                self._bucket.delete(self._key(name))
                raise FileExistsError(name)

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists."""
        with self._lock:
            path = self._spool.pop(name, None)
        if path is not None:
            path.unlink(missing_ok=True)
            return
        with self._failures():
            for each in self._bucket.list(self._key(name)):
                if each.name == self._key(name) or each.name.startswith(self._key(name) + "/"):
                    self._bucket.delete(each.name)
        if self.cache.is_dir():
            for copy in self.cache.glob(f"{name}.*"):
                copy.unlink(missing_ok=True)  # open mappings stay readable

    def sync(self) -> None:
        """Nothing to do: a put that returned is durable."""

    def lock(self) -> LeaseLock:
        """Take the lease."""
        return LeaseLock(self)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder on the disk of the cache."""
        self.cache.mkdir(parents=True, exist_ok=True)
        process, folder = os.getpid(), tempfile.mkdtemp(prefix="scratch-", dir=self.cache)
        try:
            yield Path(folder)
        finally:
            if os.getpid() == process:
                shutil.rmtree(folder, ignore_errors=True)

    def free_space(self) -> int | None:
        """Free bytes on the disk of the cache, which holds what is being written."""
        self.cache.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self.cache).free


class SpoolFile:
    """A local file that is being written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: memoryview) -> None:
        data = data.cast("B")
        while data:
            data = data[os.write(self._descriptor, data[: 1 << 30]) :]

    def sync(self) -> None:
        """Nothing to do: the put makes it durable."""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close


class LeaseLock:
    """The object LOCK, renewed while its holder lives; an expired one may be taken over."""

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage, self._bucket, self._name = storage, storage._bucket, storage._key(LOCK)
        self._process, self._owner = os.getpid(), uuid.uuid4().hex.encode()
        self._changing, self._ended = threading.Lock(), threading.Event()
        with storage._failures():
            self._etag = self._take()
        threading.Thread(target=self._renew, name="citadel-lease", daemon=True).start()

    def _take(self) -> str:
        try:
            return self._bucket.put(self._name, self._owner, "")
        except Conflict:
            pass
        try:
            info = self._bucket.head(self._name)
            if time.time() - info.modified < LEASE_SECONDS:
                raise self._held()
            return self._bucket.put(self._name, self._owner, "", info.etag)
        except (Conflict, FileNotFoundError):
            raise self._held() from None

    def _held(self) -> LockHeldError:
        return LockHeldError(
            f"{self._storage.location}: another writer has uncommitted changes, or died less than "
            f"{LEASE_SECONDS:.0f} seconds ago; wait until it has committed or its lease ends"
        )

    def _renew(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / RENEWALS):
            with contextlib.suppress(OSError), self._changing:
                if self._ended.is_set() or os.getpid() != self._process:
                    return
                try:
                    self._etag = self._bucket.put(self._name, self._owner, "", self._etag)
                except Conflict:
                    return  # lost; `check` reports it

    def check(self) -> None:
        """Raise OwnershipError if this process no longer holds the lease."""
        if os.getpid() != self._process or self._ended.is_set():
            raise OwnershipError(fork_message(self._storage.location))
        with self._changing, self._storage._failures():
            try:
                if self._bucket.head(self._name).etag == self._etag:
                    return
            except FileNotFoundError:
                pass
        raise OwnershipError(
            f"{self._storage.location}: this writer was silent for {LEASE_SECONDS:.0f} seconds and another "
            "one has begun, so nothing was written; open the index again and add the changes again"
        )

    def release(self) -> None:
        """Give the lease back."""
        if self._ended.is_set() or os.getpid() != self._process:
            return
        self._ended.set()
        with self._changing, contextlib.suppress(OSError):
            if self._bucket.head(self._name).etag == self._etag:
                self._bucket.delete(self._name)

    def __del__(self) -> None:
        if hasattr(self, "_etag"):
            self.release()


def _crc_of(path: Path) -> str:
    """The CRC-32C of a file, as 8 hex digits."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            crc = crc32c(piece, crc)
    return f"{crc:08x}"


def _is_whole(path: Path, info: ObjectInfo) -> bool:
    """Whether a copy has the length and the checksum of its object."""
    return path.stat().st_size == info.size and (not info.crc or info.crc == _crc_of(path))
