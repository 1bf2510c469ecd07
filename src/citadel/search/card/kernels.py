"""The search as Triton kernels: slices of lists, token scores, histogram of scores, threshold, candidates.

One program owns a range of documents for one query and takes the query's tokens in their order, so sums are made in
the order of the CPU engine and need no atomics: scores are equal to the last bit. Queries of a batch that own the same
range run side by side, so a list they share is read from the card's memory once and from its cache afterwards. A score
of −∞ means "not met"; only what was met is set back to it.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

BINS = 4096  # of scores: sign, exponent and three bits
LOWEST = 8  # the bin of the smallest finite number; below it stand −∞ and NaN


@triton.jit  # type: ignore[untyped-decorator]
def slices_kernel(documents, starts, stops, bounds, ranges, width, steps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query token and some ranges of documents: where each range begins in the token's list."""
    token = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = at.to(tl.int64) * width
    low = tl.zeros((BLOCK,), tl.int64) + tl.load(starts + token)
    high = tl.zeros((BLOCK,), tl.int64) + tl.load(stops + token)
    for _ in range(steps):
        middle = (low + high) // 2
        open_ = low < high
        before = tl.load(documents + middle, mask=open_, other=0).to(tl.int64) < first
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    tl.store(bounds + token.to(tl.int64) * (ranges + 1) + at, low, mask=at <= ranges)


@triton.jit
def _later(left_document, left, right_document, right):  # type: ignore[no-untyped-def]
    """The running maximum within a document."""
    same = left_document == right_document
    return right_document, tl.where(same, tl.maximum(left, right), right)


@triton.jit  # type: ignore[untyped-decorator]
def _products(codes, scales, query, at, there, WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr):  # type: ignore[no-untyped-def]
    """A query vector, or its table, against coded rows `at` [n]: [n]; the order of additions is docs/search.md's."""
    place = at.to(tl.int64) * WIDTH
    if CODEC == "int8":  # whole numbers below 2²⁴: exact in any order
        column = tl.arange(0, PADDED)
        inside = column < WIDTH
        row = tl.load(codes + place[:, None] + column[None, :], mask=there[:, None] & inside[None, :], other=0)
        asked = tl.load(query + column, mask=inside, other=0.0)
        found = tl.sum(row.to(tl.float32) * asked[None, :], axis=1)
        found = found * tl.load(scales + at, mask=there, other=0.0).to(tl.float32)
    elif CODEC == "fp16":
        lane = tl.arange(0, 16)
        lanes = tl.zeros((at.shape[0], 16), tl.float32)
        for start in range(0, WIDTH, 16):
            inside = start + lane < WIDTH
            row = tl.load(
                codes + place[:, None] + (start + lane)[None, :], mask=there[:, None] & inside[None, :], other=0.0
            )
            lanes += row.to(tl.float32) * tl.load(query + start + lane, mask=inside, other=0.0)[None, :]
        halves = tl.sum(tl.reshape(lanes, (at.shape[0], 2, 8)), axis=1)
        halves = tl.sum(tl.reshape(halves, (at.shape[0], 2, 4)), axis=1)
        halves = tl.sum(tl.reshape(halves, (at.shape[0], 2, 2)), axis=1)
        found = tl.sum(halves, axis=1)
    else:  # sums of whole steps, at most 32,767
        found = tl.zeros((at.shape[0],), tl.float32)
        for part in range(WIDTH):
            code = tl.load(codes + place + part, mask=there, other=0).to(tl.int32)
            found += tl.load(query + part * 256 + code)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def score_kernel(  # type: ignore[no-untyped-def]
    documents, codes, scales, weights, bounds, token_starts, query, query_scale, list_scale, scores, met,
    queries, ranges, met_width, score_width, base, range_base, weight_floor,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROW: tl.constexpr, CODEC: tl.constexpr, FLOOR: tl.constexpr,
    WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a range and query: dot, maximum within a document, floor, and the sum over query tokens (Eq. 5)."""
    program = tl.program_id(0)
    number, owned = program % queries, program // queries
    own_scores = scores + number.to(tl.int64) * score_width + base
    touched = 0
    for token in range(tl.load(token_starts + number), tl.load(token_starts + number + 1)):
        place = bounds + token * (ranges + 1) + owned  # a token number has 64 bits
        low, high = tl.load(place), tl.load(place + 1)
        factor = tl.load(query_scale + token)
        key_scale = tl.load(list_scale + token)
        carried_document, carried = -1, -float("inf")
        for start in range(low, high, BLOCK):
            at = start + tl.arange(0, BLOCK).to(tl.int64)
            there = at < high
            document = tl.load(documents + at, mask=there, other=-1)
            after = tl.load(documents + at + 1, mask=at + 1 < high, other=-1)
            value = _products(codes, scales, query + token * ROW, at, there, WIDTH, PADDED, CODEC)
            if CODEC != "fp16":
                value = value * factor
            if CODEC == "pq":
                value = value * key_scale
            if WEIGHTS:
                kept = tl.load(weights + at, mask=there, other=0).to(tl.int32) > weight_floor
                value = tl.where(kept, value, -float("inf"))
            value = tl.where(there, value, -float("inf"))
            value = tl.where(document == carried_document, tl.maximum(value, carried), value)
            _, best = tl.associative_scan((document, value), 0, _later)
            last = there & (document != after) & (best > -float("inf"))
            gain = tl.maximum(best, 0.0) if FLOOR else best
            before = tl.load(own_scores + document, mask=last, other=0.0)
            tl.store(own_scores + document, tl.where(before == -float("inf"), gain, before + gain), mask=last)
            ending = at == tl.minimum(start + BLOCK, high) - 1
            carried_document = tl.max(tl.where(ending, document, -1), axis=0)
            carried = tl.max(tl.where(ending, best, -float("inf")), axis=0)
            touched = 1
        tl.debug_barrier()  # the next token's sums read what this one's have written
    tl.store(met + number.to(tl.int64) * met_width + range_base + owned, touched)


@triton.jit
def _ordered(score):  # type: ignore[no-untyped-def]
    """A number's bits as a whole number of the same order; −0 is 0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def count_kernel(  # type: ignore[no-untyped-def]
    scores, met, alive, codes, scales, query, query_scale, histogram, queries, met_width, documents, borders, spans,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, SEMANTIC: tl.constexpr, ALIVE: tl.constexpr,
    BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a range and query: the semantic part if it is wanted, no score for the deleted, and a histogram."""
    program = tl.program_id(0)
    number, owned = program % queries, program // queries
    own = scores + number.to(tl.int64) * documents
    if SEMANTIC:  # noqa: SIM108 - only one side may be compiled
        seen = 1
    else:
        seen = tl.load(met + number.to(tl.int64) * met_width + owned)
    if seen != 0:
        counts = tl.zeros((BINS,), tl.int32)
        first = tl.load(borders + owned)
        end = first + tl.load(spans + owned)
        for start in range(first, end, BLOCK):
            at = start + tl.arange(0, BLOCK).to(tl.int64)
            there = at < end
            score = tl.load(own + at, mask=there, other=-float("inf"))
            if SEMANTIC:
                value = _products(codes, scales, query + number * WIDTH, at, there, WIDTH, PADDED, CODEC)
                if CODEC == "int8":
                    value = value * tl.load(query_scale + number)
                score = tl.where(score == -float("inf"), 0.0, score) + value
                score = tl.where(there, score, -float("inf"))
            if ALIVE:
                score = tl.where(tl.load(alive + at, mask=there, other=0) != 0, score, -float("inf"))
            if SEMANTIC or ALIVE:
                tl.store(own + at, score, mask=there)
            counts += tl.histogram((_ordered(score) >> 20) + 2048, BINS)
        bins = tl.arange(0, BINS)
        tl.atomic_add(histogram + number * BINS + bins, counts, mask=(counts > 0) & (bins >= 8))


@triton.jit  # type: ignore[untyped-decorator]
def threshold_kernel(histogram, thresholds, found, wanted, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query: the highest bin so that it and those above hold `wanted` scores; empties the histogram."""
    number = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.load(histogram + number * BINS + bins)
    total = tl.sum(counts, axis=0)
    above = total - tl.cumsum(counts, axis=0) + counts  # in this bin and higher
    border = tl.max(tl.where((above >= wanted) & (bins >= 8), bins, 8), axis=0)
    tl.store(thresholds + number, border)
    tl.store(found + number, 0)
    tl.store(histogram + number * BINS + bins, tl.zeros((BINS,), tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def collect_kernel(  # type: ignore[no-untyped-def]
    scores, met, thresholds, found, candidates, queries, met_width, documents, borders, spans, capacity,
    EVERY: tl.constexpr, COLLECT: tl.constexpr, RESET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a range and query: scores of the threshold's bin and above go to the candidates; all are set back."""
    program = tl.program_id(0)
    number, owned = program % queries, program // queries
    own = scores + number.to(tl.int64) * documents
    if EVERY:  # noqa: SIM108
        seen = 1
    else:
        seen = tl.load(met + number.to(tl.int64) * met_width + owned)
    if seen != 0:
        first = tl.load(borders + owned)
        end = first + tl.load(spans + owned)
        for start in range(first, end, BLOCK):
            at = start + tl.arange(0, BLOCK).to(tl.int64)
            score = tl.load(own + at, mask=at < end, other=-float("inf"))
            if COLLECT:
                order = _ordered(score)
                high = ((order >> 20) + 2048 >= tl.load(thresholds + number)) & (score > -float("inf"))
                taken = high.to(tl.int32)
                count = tl.sum(taken, axis=0)
                if count > 0:
                    slot = tl.atomic_add(found + number, count) + tl.cumsum(taken, axis=0) - 1
                    packed = (order.to(tl.int64) << 32) | (0xFFFFFFFF - at)
                    tl.store(candidates + number.to(tl.int64) * capacity + slot, packed, mask=high & (slot < capacity))
            if RESET:
                empty = tl.full((BLOCK,), -float("inf"), tl.float32)
                tl.store(own + at, empty, mask=score > -float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def semantic_kernel(  # type: ignore[no-untyped-def]
    codes, scales, query, query_scale, documents, values, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a query and some documents: their semantic products."""
    number = tl.program_id(0)
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(documents + number.to(tl.int64) * count + slot, mask=slot < count, other=-1)
    value = _products(codes, scales, query + number * WIDTH, at, at >= 0, WIDTH, PADDED, CODEC)
    if CODEC == "int8":
        value = value * tl.load(query_scale + number)
    tl.store(values + number.to(tl.int64) * count + slot, value, mask=slot < count)


@triton.jit  # type: ignore[untyped-decorator]
def probe_kernel(centroids, query, values, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query and some centroids: their products, added in the order of the dimensions."""
    number = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(WIDTH):
        row = tl.load(centroids + at.to(tl.int64) * WIDTH + part, mask=there, other=0.0)
        total += row * tl.load(query + number * WIDTH + part)
    tl.store(values + number.to(tl.int64) * count + at, total, mask=there)
