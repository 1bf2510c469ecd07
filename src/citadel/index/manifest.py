"""The manifest lists the files of a generation; a commit writes a new one."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from citadel.errors import (
    CorruptIndexError,
    IndexNotFoundError,
    ResourceError,
    UnknownFormatError,
    UsageError,
)
from citadel.index.checksum import crc32c
from citadel.index.container import FORMAT, DurableFile, FileRecord
from citadel.index.storage import Storage
from citadel.settings import Field, LongDocuments, Settings, WordSettings

MAX_BYTES = 1 << 20  # parsed, its JSON takes up to 25 times as much memory
MAX_SEGMENTS = 200  # 130 kB of memory each; merging by tiers leaves about 32
MAX_DOCUMENTS = (1 << 32) - 1
_NAME = re.compile(r"gen\.([0-9]{8,12})")
Read = TypeVar("Read")
HEX_ID = re.compile(r"[0-9a-f]{32}")
_FILES = {
    "segment": re.compile(r"seg-[0-9a-f]{32}\.cit"),
    "documents": re.compile(r"docs-[0-9a-f]{32}\.sqlite"),
    "tombstones": re.compile(r"del-[0-9a-f]{32}\.cit"),
    "codebook": re.compile(r"codebook-[0-9a-f]{32}\.cit"),
    "columns": re.compile(r"cols-[0-9a-f]{32}\.cit"),
    "graph": re.compile(r"graph-[0-9a-f]{32}\.cit"),
    "order": re.compile(r"order-[0-9a-f]{32}\.cit"),
    "words": re.compile(r"words-[0-9a-f]{32}\.cit"),
}


@dataclass(frozen=True)
class WordsRecord:
    """The BM25 lists of a segment beside those of the model: their file and counts."""

    file: FileRecord
    postings: int
    total_length: int  # tokens


@dataclass(frozen=True)
class SegmentRecord:
    """The files of a segment and its counts."""

    file: FileRecord
    documents_file: FileRecord
    documents: int
    postings: int
    total_length: int = 0
    columns_file: FileRecord | None = None  # None: no document has metadata, or `has_columns` is false
    has_columns: bool = False  # false in segments of format 1
    graph_file: FileRecord | None = None  # optional; without it the segment is scanned
    words: WordsRecord | None = None  # of an index with BM25 lists beside the model's

    def files(self) -> list[FileRecord]:
        """The files of the segment."""
        return [*self.needed_files(), *([self.graph_file] if self.graph_file else [])]

    def needed_files(self) -> list[FileRecord]:
        """The files without which the segment cannot be searched."""
        words = [self.words.file] if self.words else []
        return [self.file, self.documents_file, *([self.columns_file] if self.columns_file else []), *words]


@dataclass(frozen=True)
class Build:
    """Progress of `citadel index` through its source, for resuming.

    >>> Build("corpus.jsonl", options={"codec": "int8"}).finished
    False
    """

    source: str
    position: int = 0
    crc: int = 0
    line: int = 0
    finished: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


_MANIFEST = frozenset(
    (
        "format",
        "index",
        "generation",
        "settings",
        "segments",
        "deletions",
        "deleted",
        "codebook",
        "counts",
        "build",
        "graphs",
    )
)
_RECORD = frozenset(FileRecord._fields)
_SEGMENT, _SETTINGS, _FIELD, _LONG, _BUILD, _WORDS_RECORD, _WORDS = (
    frozenset(item.name for item in dataclasses.fields(kind))
    for kind in (SegmentRecord, Settings, Field, LongDocuments, Build, WordsRecord, WordSettings)
)


@dataclass(frozen=True)
class Manifest:
    """One generation of an index."""

    index_id: str
    generation: int
    settings: Settings
    segments: tuple[SegmentRecord, ...] = ()
    deletions: FileRecord | None = None
    deleted: int = 0
    codebook: FileRecord | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    build: Build | None = None
    graphs: bool | None = None  # whether large segments get graphs; None: if another segment has one

    @property
    def name(self) -> str:
        return f"gen.{self.generation:08d}"

    @property
    def documents(self) -> int:
        """Live documents."""
        return sum(segment.documents for segment in self.segments) - self.deleted

    def files(self) -> list[FileRecord]:
        """All files of this generation but the manifest."""
        parts = [record for segment in self.segments for record in segment.files()]
        return parts + [record for record in (self.deletions, self.codebook) if record]


def generations(storage: Storage) -> list[int]:
    """The numbers of all manifests, oldest first."""
    matches = (_NAME.fullmatch(name) for name in storage.names())
    numbers = (int(match[1]) for match in matches if match and match[0] == f"gen.{int(match[1]):08d}")
    return sorted(numbers)


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Publish a generation: the rename is the commit."""
    line = json.dumps(_to_json(manifest), ensure_ascii=False, allow_nan=False).encode()
    if len(line) > MAX_BYTES - 64 or len(manifest.segments) > MAX_SEGMENTS:
        size = f"{len(manifest.segments)} segments and a manifest of {len(line)} bytes"
        problem = f"a generation of {size} is too large"
        raise ResourceError(f"{storage.location}: {problem}; free disk space and run `citadel merge` first")
    file = DurableFile(storage, manifest.name)
    file.write(line + f"\n{crc32c(line):08x}\n".encode())
    file.finish()
    storage.sync()


def newest_manifest(storage: Storage) -> Manifest:
    """Read the newest manifest; a damaged one raises and is never replaced by an older one."""
    while True:
        numbers = generations(storage)
        if not numbers:
            raise _absent(storage)
        try:
            return read_manifest(storage, numbers[-1])
        except FileNotFoundError:
            continue  # removed in the meantime: a newer one exists


def _absent(storage: Storage) -> Exception:
    if any(name.startswith("root.") for name in storage.names()):
        return UsageError(
            f"{storage.location}: this is a sharded index, which cannot be changed or repaired in place; "
            "change the original and run `citadel shard` again"
        )
    if any(
        name.startswith(("seg-", "docs-", "del-", "codebook-", "cols-", "graph-", "words-"))
        for name in storage.names()
    ):
        return CorruptIndexError(storage.location, "manifest", "the folder holds index files but no manifest")
    return IndexNotFoundError(
        f"{storage.location}: there is no index; create one with `citadel index CORPUS {storage.location}`"
    )


def read_manifest(storage: Storage, generation: int) -> Manifest:
    """Read and check one generation."""
    name = f"gen.{generation:08d}"
    view = storage.map(name)
    if len(view) > MAX_BYTES:
        raise CorruptIndexError(
            name, "manifest", f"it has {len(view)} bytes, at most {MAX_BYTES} are allowed"
        )
    line, _, rest = bytes(view).partition(b"\n")
    if rest != f"{crc32c(line):08x}\n".encode():
        raise CorruptIndexError(name, "manifest", "its checksum does not match")
    try:
        return _from_json(json.loads(line), generation)
    except UnknownFormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError, UsageError) as error:
        raise CorruptIndexError(
            name, "manifest", f"a field is missing or of the wrong kind ({error})"
        ) from error


def _to_json(manifest: Manifest) -> dict[str, Any]:
    segments = [
        {
            "file": record.file._asdict(),
            "documents_file": record.documents_file._asdict(),
            "documents": record.documents,
            "postings": record.postings,
            "total_length": record.total_length,
            "columns_file": record.columns_file and record.columns_file._asdict(),
            "has_columns": record.has_columns,
            "graph_file": record.graph_file and record.graph_file._asdict(),
            **({"words": _words_json(record.words)} if record.words else {}),
        }
        for record in manifest.segments
    ]
    return {
        "format": FORMAT,
        "index": manifest.index_id,
        "generation": manifest.generation,
        "settings": settings_json(manifest.settings),
        "segments": segments,
        "deletions": manifest.deletions and manifest.deletions._asdict(),
        "deleted": manifest.deleted,
        "codebook": manifest.codebook and manifest.codebook._asdict(),
        "counts": dict(manifest.counts),
        "build": manifest.build and dataclasses.asdict(manifest.build),
        "graphs": manifest.graphs,
    }


def _words_json(words: WordsRecord) -> dict[str, Any]:
    return {"file": words.file._asdict(), "postings": words.postings, "total_length": words.total_length}


def settings_json(settings: Settings) -> dict[str, Any]:
    """Settings as JSON; without word lists, versions from before them can read it.

    >>> "words" in settings_json(Settings("bm25", "english", analyser="english"))
    False
    """
    data = dataclasses.asdict(settings)
    return data if data["words"] is not None else {name: data[name] for name in data if name != "words"}


def _from_json(data: dict[str, Any], generation: int) -> Manifest:
    if type(data["format"]) is not int or not 1 <= data["format"] <= FORMAT:
        problem = f"format {repr(data['format'])[:40]}, this citadel reads formats up to format {FORMAT}"
        raise UnknownFormatError(f"gen.{generation:08d}", "manifest", problem)
    known_fields(data, _MANIFEST)
    if len(data["segments"]) > MAX_SEGMENTS:
        raise ValueError(f"{len(data['segments'])} segments, at most {MAX_SEGMENTS} are allowed")
    if data["generation"] != generation or not HEX_ID.fullmatch(data["index"]):
        raise ValueError("generation or index id")
    segments = tuple(_segment(item) for item in data["segments"])
    total = sum(segment.documents for segment in segments)
    deleted = count_of(data["deleted"])
    if total > MAX_DOCUMENTS or deleted > total:
        raise ValueError("document counts")
    return Manifest(
        data["index"],
        generation,
        settings_of(data["settings"]),
        segments,
        _optional(data["deletions"], lambda record: record_of(record, "tombstones")),
        deleted,
        _optional(data["codebook"], lambda record: record_of(record, "codebook")),
        {str(name): count_of(value) for name, value in data["counts"].items()},
        _optional(data["build"], _build),
        _optional(data.get("graphs"), _truth),  # absent in indexes from before graphs
    )


def known_fields(data: dict[str, Any], names: frozenset[str]) -> None:
    """Raise on a field that the format does not have."""
    if unknown := data.keys() - names:
        raise ValueError(f"unknown field {min(unknown)[:40]!r}")


def count_of(value: object) -> int:
    """A count read from JSON."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]} is not a count")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]} is neither true nor false")
    return value


def text_of(value: object) -> str:
    """A text read from JSON."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is not text")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float) or not -1e30 < float(value) < 1e30:  # type: ignore[arg-type]
        raise ValueError(f"{str(value)[:40]} is not a number")
    return float(value)  # type: ignore[arg-type]


def _optional(value: Any, read: Callable[[Any], Read]) -> Read | None:
    return None if value is None else read(value)


def record_of(data: dict[str, Any], kind: str) -> FileRecord:
    """The record of a file of this kind, read from JSON."""
    known_fields(data, _RECORD)
    name = text_of(data["name"])
    if not _FILES[kind].fullmatch(name):
        raise ValueError(f"{name[:60]!r} is not the name of a {kind} file")
    return FileRecord(name, count_of(data["length"]), count_of(data["crc"]))


def _segment(data: dict[str, Any]) -> SegmentRecord:
    known_fields(data, _SEGMENT)
    documents = count_of(data["documents"])
    if documents > MAX_DOCUMENTS:
        raise ValueError("document counts")
    return SegmentRecord(
        record_of(data["file"], "segment"),
        record_of(data["documents_file"], "documents"),
        documents,
        count_of(data["postings"]),
        count_of(data["total_length"]),
        _optional(data.get("columns_file"), lambda record: record_of(record, "columns")),  # format 1 has none
        _truth(data.get("has_columns", False)),
        _optional(data.get("graph_file"), lambda record: record_of(record, "graph")),
        _optional(data.get("words"), _words_record),
    )


def _words_record(data: dict[str, Any]) -> WordsRecord:
    known_fields(data, _WORDS_RECORD)
    counts = (count_of(data["postings"]), count_of(data["total_length"]))
    return WordsRecord(record_of(data["file"], "words"), *counts)


def settings_of(data: dict[str, Any]) -> Settings:
    """Settings read from JSON."""
    known_fields(data, _SETTINGS)
    settings = Settings(
        router=text_of(data["router"]),
        fingerprint=text_of(data["fingerprint"]),
        lexical=_optional(data["lexical"], _field),
        semantic=_optional(data["semantic"], _field),
        tau=_number(data["tau"]),
        weight_step=_number(data["weight_step"]),
        analyser=_optional(data["analyser"], text_of),
        model=_optional(data.get("model"), text_of),  # absent in indexes from before models
        k1=_number(data["k1"]),
        b=_number(data["b"]),
        long=_long(data["long"]) if "long" in data else LongDocuments(),  # format 1 has none
        words=_optional(data.get("words"), _words),
    )
    is_valid = settings.weight_step >= 1e-6 and 0 <= settings.tau <= 255 * settings.weight_step
    is_valid &= (settings.router == "bm25") == (settings.analyser is not None)
    is_valid &= settings.model is None or settings.router != "bm25"
    is_valid &= settings.words is None or settings.model is not None
    if not is_valid:
        raise ValueError("a setting is out of range")
    return settings


def _long(data: dict[str, Any]) -> LongDocuments:
    known_fields(data, _LONG)
    return LongDocuments(
        text_of(data["mode"]), count_of(data["chunk_tokens"]), count_of(data["chunk_overlap"])
    )


def _words(data: dict[str, Any]) -> WordSettings:
    known_fields(data, _WORDS)
    names = (text_of(data["fingerprint"]), text_of(data["analyser"]))
    return WordSettings(*names, _number(data["k1"]), _number(data["b"]))


def _field(data: dict[str, Any]) -> Field:
    known_fields(data, _FIELD)
    return Field(count_of(data["dimension"]), text_of(data["codec"]))


def _build(data: dict[str, Any]) -> Build:
    known_fields(data, _BUILD)
    return Build(
        source=text_of(data["source"]),
        position=count_of(data["position"]),
        crc=count_of(data["crc"]),
        line=count_of(data["line"]),
        finished=data["finished"] is True,
        options={text_of(name): text_of(value) for name, value in data["options"].items()},
    )
