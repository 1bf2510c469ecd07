"""Query plans: tokens in key order with weights and weighted vectors, and search options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel._native import plan_rows
from citadel.errors import CorruptIndexError, InputError, UsageError
from citadel.index.snapshot import Snapshot
from citadel.routing import idf, length_norm
from citadel.settings import Settings
from citadel.text.values import unwrapped
from citadel.types import Floats, Keys

CANDIDATES, PROBES = 4, 64  # documents per hit that `rerank` considers, by tokens and by centroids
SEMANTIC_MODES = ("auto", "exact", "graph", "rerank", "off")
PROBED_LISTS = 8  # minimum number of centroid lists to probe
NO_KEYS = np.zeros(0, np.uint32)
EXACT_BELOW = 1 << 18  # passages; `auto` scans every semantic vector of a smaller index without a graph
EXACT_ALLOWED = 1 << 15  # passages; `auto` scores all of them where a filter allows fewer, without graphs
MIN_EF, EF_PER_HIT = 48, 2  # passages that `graph` scores exactly …
EF_GROWS_ABOVE = 40_000  # … in segments up to this size; in larger ones more, by the cube root of the size
EFFORT_RANGE = 4  # times the default at effort 1, a fourth of it at effort 0
NPROBE = 32  # centroids whose lists each query token reads, in a centroid index
MIN_SCORED, SCORED_PER_HIT = 256, 8  # passages that a search of a centroid index scores exactly


@dataclass(frozen=True)
class Plan:
    """Query tokens sorted by key (or term), so that those of one list are adjacent."""

    keys: Keys  # [n]; empty for bm25, whose term numbers differ per segment
    weights: Floats  # [n]
    vectors: Floats | None = None  # [n, d], w·v
    semantic: Floats | None = None  # [s]


class Options(NamedTuple):
    """Resolved search options, in the argument order of the native engine."""

    k: int
    semantic: str = "off"
    candidates: int = 1000
    probes: int = 1000
    weight_floor: int = 0
    ef: int = 0


def plan_options(
    snapshot: Snapshot,
    k: int,
    semantic_mode: str,
    tau: float | None,
    ef: int | None = None,
    effort: float | None = None,
) -> Options:
    """Check the options and resolve `auto` and τ for this snapshot."""
    k = unwrapped(k)
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise UsageError(f"k must be a whole number of 0 or more, not {k!r}")
    if semantic_mode not in SEMANTIC_MODES:
        raise UsageError(
            f"unknown semantic mode {semantic_mode!r}: choose one of {', '.join(SEMANTIC_MODES)}"
        )
    ef = unwrapped(ef)
    if ef is not None and (isinstance(ef, bool) or not isinstance(ef, int) or ef < 1):
        raise UsageError(f"ef must be a whole number of 1 or more, not {ef!r}")
    times = _effort_factor(unwrapped(effort), ef)
    k = min(k, snapshot.live_passages)  # also keeps k within 64 bits
    if snapshot.settings.router == "centroid":
        return _centroid_options(snapshot, k, semantic_mode, tau, ef, times)
    if semantic_mode == "auto":
        semantic_mode = resolve_auto(snapshot)
    candidates, probes = (max(times * k, 1000) for times in (CANDIDATES, PROBES))
    mode = semantic_mode if snapshot.settings.semantic else "off"
    largest = max((segment.passages for segment in snapshot.segments), default=0)
    width = _scored(default_ef(k, largest), times, ef, snapshot)
    return Options(k, mode, candidates, probes, _steps(snapshot.settings, tau), width)


def default_ef(k: int, passages: int) -> int:
    """Passages that a graph search of a segment scores exactly, so that its overlap stays about the same.

    >>> default_ef(10, 40_000), default_ef(10, 320_000), default_ef(100, 320_000)
    (48, 96, 400)
    """
    return round(max(MIN_EF, EF_PER_HIT * k) * math.cbrt(max(1.0, passages / EF_GROWS_ABOVE)))


def _effort_factor(effort: float | None, ef: int | None) -> float:
    """How many times the default number of passages are scored exactly: a quarter to four times.

    >>> [_effort_factor(effort, None) for effort in (0, 0.5, 1)]
    [0.25, 1.0, 4.0]
    """
    if effort is None:
        return 1.0
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 <= effort <= 1:
        raise UsageError(f"effort must be a number from 0 to 1, not {effort!r}")
    if ef is not None:
        raise UsageError("effort and ef both say how much is scored: give one of them")
    return float(EFFORT_RANGE ** (2 * effort - 1))


def _scored(default: int, times: float, ef: int | None, snapshot: Snapshot) -> int:
    """Passages to score exactly: `ef` if it is given."""
    return round(default * times) if ef is None else min(ef, snapshot.live_passages)


def _centroid_options(
    snapshot: Snapshot, k: int, semantic_mode: str, tau: float | None, ef: int | None, times: float
) -> Options:
    """Options for a centroid index: `exact` scores every passage, other modes the candidates of the lists."""
    scored = _scored(max(MIN_SCORED, SCORED_PER_HIT * k), times, ef, snapshot)
    mode = "exact" if semantic_mode == "exact" else "rerank"
    return Options(k, mode, max(scored, k), NPROBE, _steps(snapshot.settings, tau), scored)


def resolve_auto(snapshot: Snapshot) -> str:
    """The semantic mode that `auto` means for this snapshot.

    With graphs it stays `auto`: the engine uses those that are likely to be faster than a scan."""
    if any(segment.record.graph_file for segment in snapshot.segments):
        return "auto"
    return "exact" if snapshot.live_passages < EXACT_BELOW else "rerank"


def _steps(settings: Settings, tau: float | None) -> int:
    """τ in steps of the stored weights; 0 for the index's own τ."""
    if tau is None or tau == settings.tau:
        return 0
    if settings.router != "dynamic":
        raise UsageError(
            f"τ prunes the weights of a dynamic router; this index's router is {settings.router}"
        )
    if not settings.tau <= tau < float("inf"):
        raise UsageError(
            f"τ can only be raised at search time: the index was built with {settings.tau:g}, not {tau:g}"
        )
    if tau >= 255 * settings.weight_step:
        raise UsageError(
            f"τ = {tau:g} is above the largest stored weight: use less than {255 * settings.weight_step:g}"
        )
    return min(round(tau / settings.weight_step), 254)


def tau_used(settings: Settings, options: Options) -> float:
    """The τ that a search applies: the index's own, or the nearest step above it."""
    return max(settings.tau, options.weight_floor * settings.weight_step)


def plan_vectors(settings: Settings, keys: Any, weights: Any, vectors: Any, semantic: Any) -> Plan:
    """Plan a query given as vectors, checked against the index's fields."""
    return _plan_arrays(settings, keys, weights, vectors, semantic) or _plan_any(
        settings, keys, weights, vectors, semantic
    )


def _plan_arrays(settings: Settings, keys: Any, weights: Any, vectors: Any, semantic: Any) -> Plan | None:
    """The plan of a query in arrays of the final types, such as an encoder gives; None for any other."""
    lexical, field = settings.lexical, settings.semantic
    if lexical is None or settings.router == "bm25":
        return None
    dimension, semantic_dimension = lexical.dimension, field.dimension if field else 0
    given = vectors if dimension else None
    try:
        rows = plan_rows(keys, weights, given, semantic, dimension, semantic_dimension)
    except TypeError:
        return None
    return None if rows is None else Plan(*rows, semantic)


def _plan_any(settings: Settings, keys: Any, weights: Any, vectors: Any, semantic: Any) -> Plan:
    """The plan of a query in any types, or an error that names what is wrong."""
    if settings.router == "bm25":
        raise UsageError("this index is bm25 and takes no vectors: search it with a text query")
    rows = None if _is_empty(vectors) else _numbers(vectors, 2, "vectors")
    if settings.router in ("all_to_all", "centroid") and keys is None and rows is not None:
        keys = np.zeros(len(rows), np.uint32)
    key_row = _query_keys(keys)
    weight_row = np.ones(len(key_row), np.float32) if weights is None else _numbers(weights, 1, "weights")
    assert weight_row is not None
    dimension = settings.lexical.dimension if settings.lexical else 0
    if dimension and rows is None and len(key_row):
        raise InputError("the query's vectors are missing")
    if len(weight_row) != len(key_row) or (
        dimension and rows is not None and rows.shape != (len(key_row), dimension)
    ):
        shape = None if rows is None else rows.shape
        given = f"{len(key_row)} keys, {len(weight_row)} weights and vectors of shape {shape}"
        raise InputError(f"{given} do not go together; the index has dimension {dimension}")
    order = row_order(key_row, weight_row)
    product = None
    if dimension:
        product = (
            np.zeros((0, dimension), np.float32)
            if rows is None
            else _weighted(rows[order], weight_row[order])
        )
    return Plan(key_row[order], weight_row[order], product, _query_semantic(settings, semantic))


def row_order(keys: Keys, weights: Floats) -> NDArray[np.int64]:
    """The rows of a query in plan order: sorted by key, without those of weight 0.

    >>> row_order(np.array([9, 5, 5], np.uint32), np.array([1, 0, 2], np.float32)).tolist()
    [2, 0]
    """
    order: NDArray[np.int64] = np.argsort(keys, kind="stable")
    return order[weights[order] > 0]


def _weighted(rows: Floats, weights: Floats) -> Floats:
    """w·v [n, d]; fails on overflow of fp32."""
    with np.errstate(over="ignore"):
        product = np.ascontiguousarray(rows * weights[:, None])
    if not np.isfinite(product).all():
        raise InputError("the query's weights times vectors overflow to infinity: scale them")
    return product


def _query_keys(keys: Any) -> Keys:
    try:
        given = np.zeros(0, np.uint32) if keys is None else np.asarray(keys)
    except ValueError:  # rows of different lengths
        given = np.zeros((0, 0), np.uint32)
    if given.ndim != 1 or (
        given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 1 << 32)
    ):
        raise InputError("the query's keys must be a list of whole numbers from 0 to 2³² − 1")
    return given.astype(np.uint32)


def _is_empty(rows: Any) -> bool:
    try:
        return bool(np.size(rows) == 0)
    except ValueError:  # rows of different lengths
        return False


def _numbers(values: Any, dimensions: int, what: str) -> Floats | None:
    if values is None:
        return None
    try:
        with np.errstate(over="ignore"):  # rejected below
            array = np.asarray(values, np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(f"the query's {what} cannot be read as numbers ({error})") from error
    if array.ndim != dimensions:
        raise InputError(f"the query's {what} must have {dimensions} dimension(s), not {array.ndim}")
    if not np.isfinite(array).all():
        raise InputError(f"the query's {what} hold NaN or an infinite number")
    return array


def _query_semantic(settings: Settings, semantic: Any) -> Floats | None:
    vector = _numbers(semantic, 1, "semantic vector")
    if vector is None or settings.semantic is None:
        if vector is not None:
            raise InputError("a semantic vector is given, but the index has no semantic field")
        return None
    if len(vector) != settings.semantic.dimension:
        raise InputError(
            f"the query's semantic vector has dimension {len(vector)}, "
            f"the index has {settings.semantic.dimension}"
        )
    return vector


class TermStatistics:
    """BM25 statistics of the live documents of a snapshot: N, average length, df."""

    def __init__(self, snapshot: Snapshot) -> None:
        deleted = [snapshot.deleted(segment) for segment in snapshot.segments]
        self.documents, self._snapshot = len(snapshot), snapshot
        total = sum(s.record.total_length for s in snapshot.segments) - sum(d.removed_length for d in deleted)
        if total < 0:
            raise self._corrupt_deletions("REMOVED_LENGTHS", "more tokens are deleted than exist")
        average = total / self.documents if self.documents else 0.0
        self.norm = length_norm(average, snapshot.settings.k1, snapshot.settings.b)
        self.has_deletions = any(len(part.documents) for part in deleted)
        self._removed = [(i, d.term_ranks, d.term_counts) for i, d in enumerate(deleted) if len(d.term_ranks)]

    def frequencies(self, lists: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Live documents that contain each term: lists and lengths [segments, n] → [n]."""
        for part, sizes in zip(self._snapshot.segments, lengths, strict=True):
            if ((sizes < 0) | (sizes > part.documents)).any():
                raise part.file["LIST_STARTS"].corrupt(
                    "a term has more postings than the segment has documents"
                )
        counts: NDArray[np.int64] = lengths.sum(axis=0)
        for segment, ranks, removed in self._removed:
            positions = np.minimum(np.searchsorted(ranks, np.maximum(lists[segment], 0)), len(ranks) - 1)
            counts = counts - np.where(ranks[positions] == lists[segment], removed[positions], 0)
        if (counts < 0).any():
            raise self._corrupt_deletions(
                "TERM_COUNTS", "more documents of a term are deleted than contain it"
            )
        return counts

    def _corrupt_deletions(self, section: str, problem: str) -> CorruptIndexError:
        record = self._snapshot.manifest.deletions
        return CorruptIndexError(record.name if record else self._snapshot.manifest.name, section, problem)

    def weights(self, frequencies: NDArray[np.int64], repeats: Sequence[int]) -> Floats:
        """idf of each term times its count in the query [n]."""
        parts = [
            idf(self.documents, df) * times for df, times in zip(frequencies.tolist(), repeats, strict=True)
        ]
        return np.array(parts, np.float32)


def count_terms(terms: Sequence[str]) -> tuple[list[bytes], list[int]]:
    """The distinct terms of a query in byte order, and their counts.

    >>> count_terms(["b", "a", "b"])
    ([b'a', b'b'], [1, 2])
    """
    counts: dict[str, int] = {}
    for term in terms:
        counts[term] = counts.get(term, 0) + 1
    names = sorted(counts)  # code point order equals the byte order of UTF-8
    return [name.encode() for name in names], [counts[name] for name in names]
