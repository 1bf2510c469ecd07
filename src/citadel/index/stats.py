"""What an index holds, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from citadel.index.format import FORMAT
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot

_NOT_LEXICAL = ("META", "ID_", "SEMANTIC_", "PROBE_")


def statistics(snapshot: Snapshot) -> dict[str, Any]:
    """Documents, postings, lists, bytes by section and the running figures of an index."""
    manifest, sections = snapshot.manifest, Counter[str]()
    for segment in snapshot.segments:
        sections.update({name: len(section.data) for name, section in segment.file.sections.items()})
    postings = sum(segment.meta.postings for segment in snapshot.segments)
    lexical = sum(size for name, size in sections.items() if not name.startswith(_NOT_LEXICAL))
    sections["DOCUMENT_STORE"] = sum(record.documents_file.length for record in manifest.segments)
    return {
        "format": FORMAT,
        "index": manifest.index_id,
        "generation": manifest.generation,
        "router": snapshot.settings.router,
        "fingerprint": snapshot.settings.fingerprint,
        "tau": snapshot.settings.tau,
        "codecs": sorted({_codec(segment) for segment in snapshot.segments}),
        "documents": len(snapshot),
        "deleted": manifest.deleted,
        "segments": len(snapshot.segments),
        "postings": postings,
        "postings_per_document": round(postings / max(len(snapshot) + manifest.deleted, 1), 3),
        **_list_figures(snapshot),
        "bytes": sum(record.length for record in manifest.files()),
        "lexical_bytes": lexical,
        "bytes_per_posting": round(lexical / postings, 3) if postings else None,
        "sections": dict(sections.most_common()),
        "counts": dict(manifest.counts),
    }


def _codec(segment: Segment) -> str:
    return {"bm25": "tf", "sparse": "fp16"}.get(segment.meta.kind, segment.meta.codec)


def list_lengths(snapshot: Snapshot) -> Counter[Any]:
    """Postings of each list over all segments, by key or by term."""
    lengths: Counter[Any] = Counter()
    for segment in snapshot.segments:
        if segment.meta.kind != "none":
            names = segment.terms if segment.meta.kind == "bm25" else segment.keys.tolist()
            lengths.update(dict(zip(names, np.diff(segment.list_starts).tolist(), strict=True)))
    return lengths


def _list_figures(snapshot: Snapshot) -> dict[str, Any]:
    """How many lists there are over all segments, and the longest."""
    lengths = list_lengths(snapshot)
    top = [(name.decode() if isinstance(name, bytes) else name, count) for name, count in lengths.most_common(10)]
    return {"lists": len(lengths), "largest_list": top[0][1] if top else 0, "largest_lists": top}
