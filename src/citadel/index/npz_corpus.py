"""Read a corpus of vectors from an .npz file, one slice of documents in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError, ResourceError
from citadel.index.npz import Npz, open_npz
from citadel.settings import Settings

Arrays = dict[str, NDArray[Any]]
NAMES = ("ids", "offsets", "keys", "weights", "vectors", "semantic", "titles", "texts")
_PER_DOCUMENT = ("ids", "titles", "texts", "semantic")
_MAX_DOCUMENTS = 16_384
_DOCUMENT_BYTES = 400  # per document besides its text
_MIN_BYTES, _MAX_BYTES = 1 << 16, 16 << 20
_OFFSETS_PER_BLOCK = 65_536


def slice_bytes(memory: int) -> int:
    """Bytes of vectors per slice; encoding takes three times as much, beside the write buffer.

    >>> slice_bytes(64 << 20), slice_bytes(1 << 30)
    (2097152, 16777216)
    """
    return min(max(memory // 32, _MIN_BYTES), _MAX_BYTES)


def read_slices(path: str, settings: Settings, memory: int) -> Iterator[tuple[int, Arrays]]:
    """Yield the number of the first document of each slice and its arrays, with offsets from 0.

    Headers, lengths, offsets and checksums of the whole file are checked before the first slice.
    """
    with open_npz(path, NAMES) as file:
        layout = _layout(file, settings)
        file.check()
        _check_offsets(file, layout, max(memory // 4, _MAX_BYTES))
        columns = {name: file.rows(name) for name in (*layout.shares, *_PER_DOCUMENT) if name in file.members}
        first = 0
        for offsets in _slices(file, layout, slice_bytes(memory)):
            counts = {name: int(offsets[-1]) // share for name, share in layout.shares.items()}
            arrays = {name: rows.take(counts.get(name, len(offsets) - 1)) for name, rows in columns.items()}
            yield first, {**arrays, "offsets": offsets}
            first += len(offsets) - 1


@dataclass(frozen=True)
class _Layout:
    """Sizes of the arrays of a file."""

    documents: int
    postings: int
    shares: Mapping[str, int]  # postings per row of an array, such as L in keys [T, L]
    posting_bytes: int
    document_bytes: int


def _layout(file: Npz, settings: Settings) -> _Layout:
    """Check the lengths of the arrays that the router uses."""
    members = file.members
    documents = _count_documents(file)
    shares = {name: max(members[name].width, 1) for name in _used(settings) if name in members}
    keys, vectors = members.get("keys"), members.get("vectors")
    if "vectors" in shares and vectors is not None:
        tokens = "keys" in shares and keys is not None and len(keys.shape) == 2 and len(keys) == len(vectors)
        shares["vectors"] = shares["keys"] if tokens else 1
    counts = {
        name: len(members[name]) * share if members[name].width else 0 for name, share in shares.items()
    }
    if len(set(counts.values())) > 1:
        together = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise InputError(f"{together} differ in length", file.path)
    width = settings.lexical.dimension if settings.lexical else 0
    posting = sum(members[name].row_bytes // share for name, share in shares.items())
    document = sum(members[name].row_bytes for name in _PER_DOCUMENT if name in members)
    return _Layout(
        documents,
        next(iter(counts.values()), 0),
        shares,
        max(posting, 4 * width + 8),
        document + _DOCUMENT_BYTES,
    )


def _used(settings: Settings) -> list[str]:
    """The per-posting arrays that an index with these settings uses."""
    names = ["keys", "weights"] if settings.router not in ("none", "all_to_all", "centroid") else []
    return [*names, "vectors"] if settings.lexical is not None and settings.lexical.dimension else names


def _count_documents(file: Npz) -> int:
    members = file.members
    if "ids" not in members:
        raise InputError("ids are missing: give an array `ids` with a name for each document", file.path)
    documents = len(members["ids"])
    for name in _PER_DOCUMENT:
        if name in members and name != "semantic" and members[name].width != 1:
            raise InputError(f"{name} must have 1 dimension, not {len(members[name].shape)}", file.path)
        if name in members and len(members[name]) != documents:
            kind = "semantic vectors" if name == "semantic" else name
            raise InputError(f"{len(members[name])} {kind} for {documents} documents", file.path)
    return documents


def _offsets(file: Npz, layout: _Layout) -> Iterator[NDArray[Any]]:
    """The offsets in blocks; zeros when the file has none."""
    rows = file.rows("offsets") if "offsets" in file.members else None
    for start in range(0, layout.documents + 1, _OFFSETS_PER_BLOCK):
        count = min(_OFFSETS_PER_BLOCK, layout.documents + 1 - start)
        yield np.zeros(count, np.int64) if rows is None else rows.take(count)


def _check_offsets(file: Npz, layout: _Layout, max_bytes: int) -> None:
    """Check that offsets ascend to the number of postings, split no token, and fit in memory."""
    member = file.members.get("offsets")
    if member is not None and (member.dtype.kind not in "iu" or member.shape != (layout.documents + 1,)):
        raise _wrong_offsets(file, layout)
    last, position, token = 0, 0, math.lcm(*layout.shares.values())
    for block in _offsets(file, layout):
        if int(block[0]) < last or (block[1:] < block[:-1]).any() or int(block[-1]) > layout.postings:
            raise _wrong_offsets(file, layout)
        ends = block.astype(np.int64)
        if (ends % token).any():
            raise InputError(
                f"offsets must be multiples of {token}: a token's keys belong to one document", file.path
            )
        _check_sizes(file, layout, np.diff(ends, prepend=last if position else ends[0]), position, max_bytes)
        last, position = int(block[-1]), position + len(block)
        if position == len(block) and block[0]:
            raise _wrong_offsets(file, layout)
    if last != layout.postings:
        raise _wrong_offsets(file, layout)


def _wrong_offsets(file: Npz, layout: _Layout) -> InputError:
    reason = f"offsets must rise from 0 to {layout.postings} in {layout.documents + 1} whole numbers"
    return InputError(reason, file.path)


def _check_sizes(
    file: Npz, layout: _Layout, postings: NDArray[np.int64], position: int, max_bytes: int
) -> None:
    """Raise ResourceError when a document is too large to be held in memory."""
    largest = int(np.argmax(postings))
    size = layout.document_bytes + int(postings[largest]) * layout.posting_bytes
    if size > max_bytes and layout.documents:
        reason = (
            f"document {position + max(largest, 1)} takes {size >> 20:,} MB, the limit under this bound is"
        )
        advice = "give more memory (--memory), or split the document"
        raise ResourceError(f"{file.path}: {reason} {max_bytes >> 20:,} MB; {advice}")


def _slices(file: Npz, layout: _Layout, size: int) -> Iterator[NDArray[np.int64]]:
    """The offsets [n + 1] of each slice; at least one slice, so that its arrays are checked."""
    limit = min(max(size // layout.document_bytes, 1), _MAX_DOCUMENTS)
    begin = first = 0
    for block in _offsets(file, layout):
        ends = block.astype(np.int64)[1 if first == 0 else 0 :]  # without the first offset, which is 0
        first += len(block)
        while len(ends):
            fit = int(np.searchsorted(ends, begin + size // layout.posting_bytes, side="right"))
            part, ends = np.split(ends, [min(max(fit, 1), limit)])
            yield np.concatenate([[0], part - begin])
            begin = int(part[-1])
    if not layout.documents:
        yield np.zeros(1, np.int64)
