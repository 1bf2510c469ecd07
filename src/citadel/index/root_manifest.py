"""The root manifest of a sharded index names its shards and the generation of each.

A root is a folder with manifests `root.00000001`, … and one folder per shard. A shard is an index of its own
beside a file with the position of each of its documents in the collection. Publishing works as for an index:
a manifest is written under a temporary name, synced, and renamed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from citadel.errors import (
    CorruptIndexError,
    IndexNotFoundError,
    OwnershipError,
    ResourceError,
    UnknownFormatError,
    UsageError,
)
from citadel.index.checksum import crc32c
from citadel.index.container import DurableFile, FileRecord
from citadel.index.manifest import (
    HEX_ID,
    MAX_BYTES,
    count_of,
    known_fields,
    record_of,
    settings_json,
    settings_of,
    text_of,
)
from citadel.index.storage import TEMPORARY, Storage
from citadel.settings import Settings

ROOT_FORMAT = 1
MAX_SHARDS = 1024
PREFIX, SHARD_PREFIX = "root.", "shard-"
_NAME = re.compile(r"root\.([0-9]{8,12})")
_SHARD_NAME = re.compile(r"shard-[0-9a-f]{32}")
_ROOT = frozenset(("format", "root", "generation", "settings", "shards", "counts", "build"))


@dataclass(frozen=True)
class ShardRecord:
    """A shard: its folder, its index and generation, and the file with the order of its documents."""

    name: str
    index: str
    generation: int
    documents: int
    order: FileRecord


_SHARD = frozenset(item.name for item in dataclasses.fields(ShardRecord))


@dataclass(frozen=True)
class RootManifest:
    """One generation of a sharded index."""

    root_id: str
    generation: int
    settings: Settings
    shards: tuple[ShardRecord, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    build: str | None = None  # of a build on a cluster: identifies corpus and options

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.generation:08d}"


def is_root(storage: Storage) -> bool:
    """Whether a folder holds a sharded index, or one that is being written."""
    return any(name.startswith((PREFIX, SHARD_PREFIX)) for name in storage.names())


def root_generations(storage: Storage) -> list[int]:
    """The numbers of all root manifests, oldest first."""
    matches = (_NAME.fullmatch(name) for name in storage.names())
    return sorted(int(match[1]) for match in matches if match and match[0] == f"{PREFIX}{int(match[1]):08d}")


def write_root(storage: Storage, root: RootManifest) -> None:
    """Publish a generation of a sharded index: the rename is the commit."""
    line = json.dumps(_to_json(root), ensure_ascii=False, allow_nan=False).encode()
    if len(line) > MAX_BYTES - 64 or len(root.shards) > MAX_SHARDS:
        raise ResourceError(f"{storage.location}: {len(root.shards)} shards are too many: use fewer")
    storage.remove(root.name + TEMPORARY)  # left by a writer that died
    file = DurableFile(storage, root.name)
    file.write(line + f"\n{crc32c(line):08x}\n".encode())
    try:
        file.finish()
    except FileExistsError as error:
        raise OwnershipError(
            f"{storage.location}: another writer has published a generation meanwhile; run it again"
        ) from error
    storage.sync()


def newest_root(storage: Storage) -> RootManifest:
    """Read the newest root manifest; a damaged one raises and is never replaced by an older one."""
    while True:
        numbers = root_generations(storage)
        if not numbers:
            raise IndexNotFoundError(
                f"{storage.location}: there are shards but no root manifest, because `citadel shard` was "
                "interrupted; run it again"
            )
        try:
            return read_root(storage, numbers[-1])
        except FileNotFoundError:
            continue  # removed in the meantime: a newer one exists


def read_root(storage: Storage, generation: int) -> RootManifest:
    """Read and check one generation."""
    name = f"{PREFIX}{generation:08d}"
    view = storage.map(name)
    if len(view) > MAX_BYTES:
        problem = f"it has {len(view)} bytes, at most {MAX_BYTES} are allowed"
        raise CorruptIndexError(name, "root manifest", problem)
    line, _, rest = bytes(view).partition(b"\n")
    if rest != f"{crc32c(line):08x}\n".encode():
        raise CorruptIndexError(name, "root manifest", "its checksum does not match")
    try:
        return _from_json(json.loads(line), generation)
    except UnknownFormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError, UsageError) as error:
        problem = f"a field is missing or of the wrong kind ({error})"
        raise CorruptIndexError(name, "root manifest", problem) from error


def _to_json(root: RootManifest) -> dict[str, Any]:
    shards = [dataclasses.asdict(shard) | {"order": shard.order._asdict()} for shard in root.shards]
    return {
        "format": ROOT_FORMAT,
        "root": root.root_id,
        "generation": root.generation,
        "settings": settings_json(root.settings),
        "shards": shards,
        "counts": dict(root.counts),
        "build": root.build,
    }


def _from_json(data: dict[str, Any], generation: int) -> RootManifest:
    if type(data["format"]) is not int or not 1 <= data["format"] <= ROOT_FORMAT:
        problem = f"format {repr(data['format'])[:40]}, this citadel reads formats up to format {ROOT_FORMAT}"
        raise UnknownFormatError(f"{PREFIX}{generation:08d}", "root manifest", problem)
    known_fields(data, _ROOT)
    if data["generation"] != generation or not HEX_ID.fullmatch(data["root"]):
        raise ValueError("generation or root id")
    if not isinstance(data["shards"], list) or not 1 <= len(data["shards"]) <= MAX_SHARDS:
        raise ValueError(f"a sharded index has 1 to {MAX_SHARDS} shards")
    shards = tuple(_shard(item) for item in data["shards"])
    if len({shard.name for shard in shards}) < len(shards):
        raise ValueError("a shard is named twice")
    counts = {str(name): count_of(value) for name, value in data["counts"].items()}
    build = None if data["build"] is None else text_of(data["build"])
    return RootManifest(data["root"], generation, settings_of(data["settings"]), shards, counts, build)


def _shard(data: dict[str, Any]) -> ShardRecord:
    known_fields(data, _SHARD)
    name, index = text_of(data["name"]), text_of(data["index"])
    if not _SHARD_NAME.fullmatch(name) or not HEX_ID.fullmatch(index):
        raise ValueError(f"{name[:60]!r} is not the name of a shard")
    counts = (count_of(data["generation"]), count_of(data["documents"]))
    return ShardRecord(name, index, *counts, record_of(data["order"], "order"))
