"""A reference engine in plain loops, written from docs/reference/file-format.md and native/README.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from citadel import _native

f32 = np.float32


@dataclass
class Posting:
    document: int
    weight: int = 255  # the u8 weight
    payload: Any = None  # fp32 vector, fp16 value or term count


@dataclass
class Data:
    """A segment before packing; `lists` maps keys to postings in document order."""

    documents: int
    kind: str
    lists: dict[int, list[Posting]]
    dimension: int = 0
    codec: str = "fp16"
    semantic: np.ndarray | None = None  # [N, s]
    semantic_codec: str = "int8"
    deleted: set[int] = field(default_factory=set)
    lengths: np.ndarray | None = None
    centroids: np.ndarray | None = None  # [S, 256, sub]
    key_scales: dict[int, float] = field(default_factory=dict)
    probe: np.ndarray | None = None  # [C, s]; each document belongs to the nearest
    has_weights: bool = True

    @property
    def postings(self) -> list[Posting]:
        return [posting for key in sorted(self.lists) for posting in self.lists[key]]

    def key_scale(self, key: int) -> np.float32:
        return f32(self.key_scales.get(key, 0.5))


def section(name: str, array: Any) -> tuple[str, np.ndarray, np.ndarray]:
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return name, data, _native.crc32c_blocks(data, 1 << 20)


def probe_lists(data: Data) -> list[list[int]]:
    assert data.probe is not None and data.semantic is not None
    nearest = np.argmax(data.semantic @ data.probe.T, axis=1)
    return [[n for n in range(data.documents) if nearest[n] == c] for c in range(len(data.probe))]


def lexical_sections(data: Data) -> list[tuple[str, np.ndarray, np.ndarray]]:
    keys = sorted(data.lists)
    starts = np.cumsum([0] + [len(data.lists[key]) for key in keys]).astype(np.uint64)
    blocks = np.cumsum([0] + [-(-len(data.lists[key]) // 128) for key in keys]).astype(np.uint64)
    numbers = np.array([posting.document for posting in data.postings], np.uint32)
    firsts, offsets, packed = _native.pack(numbers, starts)
    out = [
        section("LIST_STARTS", starts),
        section("BLOCK_STARTS", blocks),
        section("BLOCK_DOCUMENTS", firsts),
    ]
    out += [section("BLOCK_OFFSETS", offsets), section("PACKED_DOCUMENTS", packed)]
    if data.kind == "bm25":
        counts = np.array([posting.payload for posting in data.postings], np.uint32)
        terms = [b"term%04d" % key for key in keys]
        ends = np.cumsum([0] + [len(term) for term in terms]).astype(np.uint64)
        for name, array in zip(
            ("COUNT_OFFSETS", "PACKED_COUNTS"), _native.pack_counts(counts, starts), strict=True
        ):
            out.append(section(name, array))
        out += [
            section("LENGTHS", data.lengths),
            section("TERM_OFFSETS", ends),
            section("TERM_BYTES", np.frombuffer(b"".join(terms), np.uint8)),
        ]
        return out
    out.append(section("KEYS", np.array(keys, np.uint32)))
    if data.has_weights:
        out.append(section("WEIGHTS", np.array([posting.weight for posting in data.postings], np.uint8)))
    return out


def payload_sections(data: Data) -> list[tuple[str, np.ndarray, np.ndarray]]:
    if data.kind == "sparse":
        return [section("VALUES", np.array([posting.payload for posting in data.postings], np.float16))]
    vectors = np.array([posting.payload for posting in data.postings], f32).reshape(-1, data.dimension)
    if data.codec == "fp16":
        return [section("CODES", vectors.astype(np.float16))]
    if data.codec == "int8":
        codes, scales = _native.quantize_int8(vectors)
        return [section("CODES", codes), section("SCALES", scales)]
    assert data.centroids is not None
    return [section("CODES", _native.pq_assign(vectors, data.centroids))]


def semantic_sections(data: Data) -> list[tuple[str, np.ndarray, np.ndarray]]:
    assert data.semantic is not None
    if data.semantic_codec == "fp16":
        out = [section("SEMANTIC_CODES", data.semantic.astype(np.float16))]
    else:
        codes, scales = _native.quantize_int8(data.semantic)
        out = [section("SEMANTIC_CODES", codes), section("SEMANTIC_SCALES", scales)]
    if data.probe is not None:
        lists = probe_lists(data)
        out.append(section("PROBE_CENTROIDS", data.probe))
        out.append(
            section("PROBE_STARTS", np.cumsum([0] + [len(numbers) for numbers in lists]).astype(np.uint64))
        )
        out.append(section("PROBE_DOCUMENTS", np.concatenate(lists).astype(np.uint32)))
    return out


def sections(data: Data) -> list[tuple[str, np.ndarray, np.ndarray]]:
    out = lexical_sections(data) if data.kind != "none" else []
    if data.kind in ("vectors", "sparse"):
        out += payload_sections(data)
    return out + (semantic_sections(data) if data.semantic is not None else [])


def bitmap(data: Data) -> np.ndarray | None:
    if not data.deleted:
        return None
    bits = np.zeros(data.documents, bool)
    bits[sorted(data.deleted)] = True
    return np.packbits(bits, bitorder="little")


def build(data: Data, parts: Any = None) -> _native.Segment:
    codebook = None
    if data.codec.startswith("pq") and data.centroids is not None:
        keys = np.array(sorted(data.key_scales), np.uint32)
        scales = np.array([data.key_scales[key] for key in sorted(data.key_scales)], f32)
        codebook = _native.Codebook(data.centroids, keys, scales, 0.5)
    width = 0 if data.semantic is None else data.semantic.shape[1]
    return _native.Segment(
        "seg",
        data.documents,
        data.kind,
        data.dimension,
        data.codec,
        width,
        data.semantic_codec,
        sections(data) if parts is None else parts,
        bitmap(data),
        codebook,
    )


def int8_dot(x: np.ndarray, stored: np.ndarray) -> np.float32:
    codes, scales = _native.quantize_int8(stored[None])
    step = f32(np.max(np.abs(x)) / f32(127))
    q = np.zeros(len(x), np.int64) if step == 0 else np.clip(np.rint(x / step), -127, 127).astype(np.int64)
    return f32(f32(f32(np.dot(q, codes[0].astype(np.int64))) * f32(scales[0])) * step)


def fp16_dot(x: np.ndarray, stored: np.ndarray) -> np.float32:
    lanes = np.zeros(16, f32)
    values = stored.astype(np.float16).astype(f32)
    for j in range(0, len(x), 16):
        product = np.zeros(16, f32)
        product[: len(x) - j] = (x[j : j + 16] * values[j : j + 16])[:16]
        lanes = lanes + product
    for width in (8, 4, 2, 1):
        lanes[:width] = lanes[:width] + lanes[width : 2 * width]
    return f32(lanes[0])


TINY = np.finfo(np.float32).tiny  # a smaller step is subnormal and too imprecise


def pq_dot(x: np.ndarray, stored: np.ndarray, centroids: np.ndarray, scale: np.float32) -> np.float32:
    codes = _native.pq_assign(stored[None], centroids)[0]
    parts = zip(x.reshape(len(codes), -1), centroids, strict=True)
    table = [reduce(add, (part * centroid_rows).T) for part, centroid_rows in parts]  # [S, 256]
    step = f32(reduce(add, [np.abs(row).max() for row in table]) / f32(32767 - len(codes)))
    total = (
        sum(int(np.rint(row[code] / step)) for row, code in zip(table, codes, strict=True))
        if step >= TINY
        else 0
    )
    return f32(f32(f32(total) * step) * scale)


def posting_score(data: Data, key: int, posting: Posting, query: Any, token: int) -> np.float32:
    if data.kind == "sparse":
        return f32(query.weights[token] * f32(np.float16(posting.payload)))
    if data.kind == "bm25":
        assert data.lengths is not None
        norm = f32(query.norm[0] + f32(query.norm[1] * f32(data.lengths[posting.document])))
        return f32(query.weights[token] * f32(f32(posting.payload) / f32(f32(posting.payload) + norm)))
    x = query.vectors[token]
    if data.codec == "int8":
        return int8_dot(x, posting.payload)
    if data.codec == "fp16":
        return fp16_dot(x, posting.payload)
    assert data.centroids is not None
    return pq_dot(x, posting.payload, data.centroids, data.key_scale(key))


def token_scores(data: Data, query: Any, floor: bool, weight_floor: int) -> dict[int, np.float32]:
    """The token score of every matching document."""
    totals: dict[int, np.float32] = {}
    for token, key in enumerate(query.keys):
        best: dict[int, np.float32] = {}
        for posting in data.lists.get(key, []):
            if (
                weight_floor > 0
                and data.has_weights
                and data.kind != "bm25"
                and posting.weight <= weight_floor
            ):
                continue
            score = posting_score(data, key, posting, query, token)
            best[posting.document] = max(score, best.get(posting.document, score))
        for document, score in best.items():
            value = f32(max(f32(0), score) if floor else score) + f32(0)
            totals[document] = f32(totals[document] + value) if document in totals else value
    return totals


def semantic_scores(data: Data, x: np.ndarray) -> list[np.float32]:
    assert data.semantic is not None
    dot = int8_dot if data.semantic_codec == "int8" else fp16_dot
    return [dot(x, row) for row in data.semantic]


def probed(data: Data, x: np.ndarray, probes: int) -> list[int]:
    if data.probe is None:
        return list(range(data.documents))
    order = sorted(range(len(data.probe)), key=lambda c: (-(data.probe[c] @ x), c))  # type: ignore[index]
    lists = probe_lists(data)
    out: list[int] = []
    for taken, c in enumerate(order):
        if taken >= 8 and len(out) >= probes:
            break
        out += lists[c]
    return out


def rank(scores: dict[int, np.float32], k: int) -> list[tuple[int, np.float32]]:
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def live(parts: list[Data]) -> list[tuple[int, int, Data]]:
    out: list[tuple[int, int, Data]] = []
    base = 0
    for data in parts:
        out += [(base + n, n, data) for n in range(data.documents) if n not in data.deleted]
        base += data.documents
    return out


def slow_search(parts, query, k, semantic="off", candidates=1000, probes=1000, weight_floor=0, floor=True):
    tokens, totals, near = {}, {}, set()
    tokens_by_part = {id(data): token_scores(data, query, floor, weight_floor) for data in parts}
    semantic_by_part = {
        id(data): semantic_scores(data, query.semantic) for data in parts if semantic != "off"
    }
    near_part = {
        id(data): set(probed(data, query.semantic, probes)) for data in parts if semantic == "rerank"
    }
    for number, n, data in live(parts):
        if n in tokens_by_part[id(data)]:
            tokens[number] = tokens_by_part[id(data)][n]
        if semantic != "off":
            totals[number] = f32(tokens.get(number, f32(0)) + semantic_by_part[id(data)][n])
        if semantic == "rerank" and n in near_part[id(data)]:
            near.add(number)
    if semantic == "off":
        return rank(tokens, k)
    if semantic == "rerank" and any(key in data.lists for key in query.keys for data in parts):
        chosen = {n for n, _ in rank(tokens, candidates)} | near
        if len(chosen) >= min(k, len(live(parts))):
            return rank({n: totals[n] for n in chosen}, k)
    return rank(totals, k)


def fast_search(parts, query, k, floor=True, **options):
    snapshot = _native.Snapshot([build(data) for data in parts], floor, *query.norm)
    return snapshot.search(native_query(snapshot, parts, query), k, **options)


def native_query(snapshot: _native.Snapshot, parts: list[Data], query: Any) -> _native.Query:
    if parts and parts[0].kind == "bm25":
        lists = snapshot.find_terms([b"term%04d" % key for key in query.keys])
    else:
        lists = snapshot.find_keys(np.array(query.keys, np.uint32))
    return _native.Query(lists, query.weights, query.vectors, query.semantic)


@pytest.fixture(scope="session")
def slow() -> SimpleNamespace:
    """The functions of this module, for tests in other modules."""
    return SimpleNamespace(**{k: v for k, v in globals().items() if callable(v)})
