"""Rewrite index files with other contents and valid checksums, as an attacker could."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from citadel.index.container import KINDS, CitWriter, FileRecord
from tests.corrupt import indexes
from tests.index.quick import Quick
from tests.index.stranger import File

KIND_NAMES = {number: name for name, number in KINDS.items()}


def sections(path: Path) -> dict[str, bytes]:
    file = File(path)
    return {name: file.data[extent.offset : extent.end] for name, extent in file.extents.items()}


def rewrite(path: Path, changes: Mapping[str, bytes | None]) -> FileRecord:
    """Replace, add or (None) drop sections of a `.cit` file."""
    file = File(path)
    wanted = {name: data for name, data in (sections(path) | dict(changes)).items() if data is not None}
    path.unlink()
    writer = CitWriter(
        Quick(path.parent), KIND_NAMES[file.kind], file.index_id, file.file_id, sections=len(wanted)
    )
    for name, data in wanted.items():
        writer.section(name, data)
    return writer.finish()


def records(data: Any) -> list[dict[str, Any]]:
    """All file records of a manifest."""
    names = ("file", "documents_file", "columns_file", "graph_file")
    parts = [segment[name] for segment in data["segments"] for name in names if segment.get(name)]
    return parts + [data[name] for name in ("deletions", "codebook") if data[name]]


def enter(folder: Path, record: FileRecord, **counts: int) -> None:
    """Record a rewritten file in the manifest, and `counts` in its segment's entry."""
    data = indexes.manifest(folder)
    for known in records(data):
        if known["name"] == record.name:
            known.update(record._asdict())
    for segment in data["segments"]:
        if segment["file"]["name"] == record.name:
            segment.update(counts)
    indexes.write_manifest(folder, data)


def tamper(folder: Path, prefix: str, changes: Mapping[str, bytes | None], **counts: int) -> None:
    """Change sections of the first file of a kind, and the manifest."""
    enter(folder, rewrite(min(folder.glob(f"{prefix}*")), changes), **counts)


def tamper_meta(folder: Path, prefix: str, **changes: Any) -> None:
    path = min(folder.glob(f"{prefix}*"))
    meta = json.loads(sections(path)["META"]) | changes
    tamper(folder, prefix, {"META": json.dumps(meta).encode()})
