"""Statistics of an index."""

from __future__ import annotations

import heapq
from collections import Counter
from operator import itemgetter
from typing import Any

import numpy as np

from citadel.index.container import FORMAT
from citadel.index.join import join_names
from citadel.index.segment import Segment
from citadel.index.sharded import ShardedSnapshot
from citadel.index.snapshot import Snapshot

_LARGEST = 10  # lists reported by name
_NOT_LEXICAL = ("META", "ID_", "PASSAGE_", "SEMANTIC_", "PROBE_")


def statistics(snapshot: Snapshot) -> dict[str, Any]:
    """Documents, postings, lists, bytes per section and counters of an index."""
    manifest, sections = snapshot.manifest, Counter[str]()
    for segment in snapshot.segments:
        sections.update({name: len(section.data) for name, section in segment.file.sections.items()})
    postings = sum(segment.meta.postings for segment in snapshot.segments)
    lexical = sum(size for name, size in sections.items() if not name.startswith(_NOT_LEXICAL))
    columns = sum(record.columns_file.length for record in manifest.segments if record.columns_file)
    sections["METADATA_COLUMNS"] = columns
    sections["GRAPHS"] = sum(record.graph_file.length for record in manifest.segments if record.graph_file)
    if snapshot.settings.words is not None:
        sections["WORD_LISTS"] = sum(record.words.file.length for record in manifest.segments if record.words)
    sections["DOCUMENT_STORE"] = sum(record.documents_file.length for record in manifest.segments)
    return {
        "format": FORMAT,
        "index": manifest.index_id,
        "generation": manifest.generation,
        "router": snapshot.settings.router,
        "fingerprint": snapshot.settings.fingerprint,
        "tau": snapshot.settings.tau,
        **({"words": snapshot.settings.words.fingerprint} if snapshot.settings.words else {}),
        "codecs": sorted({_codec(segment) for segment in snapshot.segments}),
        "documents": len(snapshot),
        "passages": snapshot.live_passages,
        "deleted": manifest.deleted,
        **_shard_figures(snapshot),
        "segments": len(snapshot.segments),
        "postings": postings,
        "postings_per_document": round(postings / max(len(snapshot) + manifest.deleted, 1), 3),
        **_list_figures(snapshot),
        "bytes": sum(record.length for record in manifest.files()),
        "lexical_bytes": lexical,
        "bytes_per_posting": round(lexical / postings, 3) if postings else None,
        **_token_figures(snapshot, lexical),
        "sections": dict(sections.most_common()),
        "counts": dict(manifest.counts),
    }


def _token_figures(snapshot: Snapshot, lexical: int) -> dict[str, Any]:
    """Stored token vectors of a centroid index, whose lists hold a document once per centroid."""
    if snapshot.settings.router != "centroid":
        return {}
    tokens = sum(segment.tokens for segment in snapshot.segments)
    book = snapshot.manifest.codebook
    size = lexical + (book.length if book else 0)
    return {"tokens": tokens, "bytes_per_token": round(size / tokens, 3) if tokens else None}


def _shard_figures(snapshot: Snapshot) -> dict[str, Any]:
    if not isinstance(snapshot, ShardedSnapshot):
        return {}
    sizes = [len(part) for part in snapshot.parts]
    return {"shards": len(sizes), "smallest_shard": min(sizes), "largest_shard": max(sizes)}


def _codec(segment: Segment) -> str:
    return {"bm25": "tf", "sparse": "fp16"}.get(segment.meta.kind, segment.meta.codec)


def _list_figures(snapshot: Snapshot) -> dict[str, Any]:
    """The number of distinct lists and the longest ones; names are read a window at a time."""
    with snapshot.whole():
        return _read_list_figures(snapshot)


def _read_list_figures(snapshot: Snapshot) -> dict[str, Any]:
    segments = [segment for segment in snapshot.segments if segment.meta.kind != "none"]
    starts, count, top = [segment.list_starts for segment in segments], 0, list[tuple[Any, int]]()
    for names, parts in join_names(segments):
        total = np.zeros(len(names), np.int64)
        for list_starts, part in zip(starts, parts, strict=True):
            total[part.positions] += np.diff(list_starts[part.first : part.stop + 1])
        best = np.argsort(-total, kind="stable")[:_LARGEST].tolist()
        top += [(_name(names[i]), int(total[i])) for i in best]
        top = heapq.nlargest(_LARGEST, top, key=itemgetter(1))
        count += len(names)
    return {"lists": count, "largest_list": top[0][1] if top else 0, "largest_lists": top}


def _name(name: Any) -> str | int:
    return name.decode() if isinstance(name, bytes) else int(name)


def list_lengths(snapshot: Snapshot) -> Counter[Any]:
    """Postings per list, by key or term (bm25), including those of deleted documents."""
    lengths: Counter[Any] = Counter()
    with snapshot.whole():
        for segment in snapshot.segments:
            if segment.meta.kind != "none":
                names = segment.terms if segment.meta.kind == "bm25" else segment.keys.tolist()
                lengths.update(dict(zip(names, np.diff(segment.list_starts).tolist(), strict=True)))
    return lengths


def largest_lists(lengths: Counter[Any], count: int) -> list[tuple[Any, int]]:
    """The longest lists, longest first.

    >>> largest_lists(Counter({b"fox": 3, b"dog": 2}), 1)
    [('fox', 3)]
    """
    return [(_name(name), size) for name, size in lengths.most_common(count)]


def list_sizes(lengths: Counter[Any]) -> list[dict[str, int]]:
    """Histogram of list lengths in powers of two.

    >>> list_sizes(Counter({"fox": 3, "dog": 2, "cat": 1}))
    [{'from': 1, 'to': 1, 'lists': 1, 'postings': 1}, {'from': 2, 'to': 3, 'lists': 2, 'postings': 5}]
    """
    sizes = np.fromiter(lengths.values(), np.int64, len(lengths))
    sizes = sizes[sizes > 0]
    powers = np.frexp(sizes)[1] - 1
    return [
        {
            "from": 1 << power,
            "to": (2 << power) - 1,
            "lists": int(chosen.sum()),
            "postings": int(sizes[chosen].sum()),
        }
        for power in range(int(powers.max(initial=-1)) + 1)
        if (chosen := powers == power).any()
    ]
