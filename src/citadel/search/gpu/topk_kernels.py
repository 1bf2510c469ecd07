"""Triton kernels for top-k selection: a limit at or below the k-th score, candidates above it, their order.

The k-th largest of the best scores of disjoint parts is at most the k-th score, so the best k are all at or
above it; with many parts, few others are. Candidates are then ranked by counting the larger ones of each. A
candidate is a score and a document in one int64 (packed_scores.py), so no two are equal.
"""

# ruff: noqa: N803 - Triton constants are upper case

from __future__ import annotations

import triton
import triton.language as tl

from citadel.search.gpu import packed_scores
from citadel.search.gpu.kernels import NONE, ordered, products

SLACK = tl.constexpr(4096)  # ulps by which a limit may be too low
NOTHING = tl.constexpr(packed_scores.NOTHING)
LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def limit_kernel(values, limits, counts, ranked, count, wanted, PADDED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per query: a limit that `wanted` of the values reach; clears candidates and ranking."""
    number = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, PADDED)
    value = tl.load(values + number * count + position, mask=position < count, other=NONE)
    high = tl.max(value, axis=0).to(tl.int64) + 1
    low = tl.full((), NONE + 1, tl.int64)
    if tl.sum((value > NONE).to(tl.int32), axis=0) >= wanted:
        low = tl.min(tl.where(value > NONE, value, 0x7FFFFFFF), axis=0).to(tl.int64)
        while high - low > SLACK:
            middle = (low + high) // 2
            enough = tl.sum((value >= middle.to(tl.int32)).to(tl.int32), axis=0) >= wanted
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    tl.store(limits + number, low.to(tl.int32))
    tl.store(counts + number, 0)
    for start in range(0, wanted, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(ranked + number * (wanted + 1) + at, tl.full((BLOCK,), NOTHING, tl.int64), mask=at < wanted)


@triton.jit
def _add(candidates, counts, taken, packed, capacity):  # type: ignore[no-untyped-def]
    """Append the taken values to a query's candidates."""
    count = tl.sum(taken.to(tl.int32), axis=0)
    if count > 0:
        slot = tl.atomic_add(counts, count) + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(candidates + slot, packed, mask=taken & (slot < capacity))


@triton.jit
def _packed(order, document):  # type: ignore[no-untyped-def]
    return (order.to(tl.int64) << 32) | (LOW - document.to(tl.int64))


@triton.jit
def _document(packed):  # type: ignore[no-untyped-def]
    return LOW - (packed & LOW)


@triton.jit  # type: ignore[untyped-decorator]
def collect_kernel(  # type: ignore[no-untyped-def]
    scores, maxima, limits, counts, candidates, borders, queries, parts, capacity,
    RANGE: tl.constexpr, SUB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per part of a range and query: scores at or above the limit become candidates."""
    program = tl.program_id(0)
    number, part = (program % queries).to(tl.int64), program // queries
    row = number * parts + part
    limit = tl.load(limits + number)
    if tl.load(maxima + row) >= limit:
        first = tl.load(borders + part // (RANGE // SUB)) + (part % (RANGE // SUB)) * SUB
        for start in range(0, SUB, TILE):
            at = start + tl.arange(0, TILE)
            order = ordered(tl.load(scores + row * SUB + at))
            _add(
                candidates + number * capacity,
                counts + number,
                order >= limit,
                _packed(order, first + at),
                capacity,
            )


@triton.jit  # type: ignore[untyped-decorator]
def pick_kernel(values, documents, limits, counts, candidates, count, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per query and block of values: those at or above the limit become candidates."""
    number = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    order = tl.load(values + number * count + slot, mask=slot < count, other=NONE)
    taken = order >= tl.load(limits + number)
    document = tl.load(documents + number * width + slot, mask=taken, other=0)
    _add(candidates + number * count, counts + number, taken, _packed(order, document), count)


@triton.jit  # type: ignore[untyped-decorator]
def rank_kernel(  # type: ignore[no-untyped-def]
    candidates, counts, reported, ranked, capacity, wanted, BLOCK: tl.constexpr, OTHERS: tl.constexpr
):
    """One program per query and block of candidates: store each at its rank; `reported` goes last."""
    number = tl.program_id(1).to(tl.int64)
    count = tl.minimum(tl.load(counts + number), capacity)
    if tl.program_id(0) == 0:
        tl.store(ranked + number * (wanted + 1) + wanted, tl.load(reported + number).to(tl.int64))
    own = candidates + number * capacity
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        mine = tl.load(own + at, mask=at < count, other=NOTHING)
        rank = tl.zeros((BLOCK,), tl.int32)
        for begin in range(0, count, OTHERS):
            other = begin + tl.arange(0, OTHERS)
            theirs = tl.load(own + other, mask=other < count, other=NOTHING)
            rank += tl.sum((theirs[None, :] > mine[:, None]).to(tl.int32), axis=1)
        tl.store(ranked + number * (wanted + 1) + rank, mine, mask=(mine != NOTHING) & (rank < wanted))


@triton.jit
def _reached(value, low, high, wanted):  # type: ignore[no-untyped-def]
    """The largest number below `high` that `wanted` of the values reach; `low` must be reached."""
    while high - low > 1:
        middle = (low + high) // 2
        enough = tl.sum((value >= middle).to(tl.int32), axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit  # type: ignore[untyped-decorator]
def select_kernel(candidates, counts, ranked, capacity, wanted, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per query: the best candidates unordered but with the smallest last, then their count.

    For a caller that needs the best as a set: ranking by counting is quadratic in the candidates."""
    number = tl.program_id(0).to(tl.int64)
    available = tl.load(counts + number)
    count = tl.minimum(available, capacity)
    position = tl.arange(0, PADDED)
    packed = tl.load(candidates + number * capacity + position, mask=position < count, other=NOTHING)
    least = tl.full((), NOTHING, tl.int64)
    if count >= wanted:
        order = packed >> 32
        high = tl.max(order, axis=0) + 1
        score = _reached(order, tl.min(tl.where(packed != NOTHING, order, high), axis=0), high, wanted)
        missing = wanted - tl.sum((order > score).to(tl.int32), axis=0)
        equal = tl.where(order == score, packed & LOW, -1)
        low = tl.min(tl.where(order == score, packed & LOW, LOW + 1), axis=0)
        several = tl.sum((order == score).to(tl.int32), axis=0) > missing
        least = (score << 32) | _reached(equal, low, tl.where(several, LOW + 1, low + 1), missing)
    own = ranked + number * (wanted + 1)
    above = packed > least
    tl.store(own + tl.cumsum(above.to(tl.int32), axis=0) - 1, packed, mask=above)
    if count >= wanted:
        tl.store(own + wanted - 1, least)
    tl.store(own + wanted, available.to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def probe_kernel(centroids, query, values, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per query and block of centroids: their products, summed in order of the dimensions."""
    number = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = at < count
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(WIDTH):
        row = tl.load(centroids + at.to(tl.int64) * WIDTH + part, mask=valid, other=0.0)
        total += row * tl.load(query + number * WIDTH + part)
    tl.store(values + number * count + at, ordered(total), mask=valid)


@triton.jit  # type: ignore[untyped-decorator]
def groups_kernel(nearest, starts, ends, count, wanted, fewest, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per query: group ends when the nearest with `wanted` documents are concatenated."""
    number = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, PADDED)
    valid = rank < count
    group = _document(tl.load(nearest + number * (count + 1) + rank, mask=valid, other=0))
    begin = tl.load(starts + group, mask=valid, other=0)
    size = (tl.load(starts + group + 1, mask=valid, other=0) - begin).to(tl.int32)
    before = tl.cumsum(size, axis=0) - size
    kept = tl.where((before < wanted) | (rank < fewest), size, 0)
    tl.store(ends + number * count + rank, tl.cumsum(kept, axis=0), mask=valid)


@triton.jit  # type: ignore[untyped-decorator]
def members_kernel(  # type: ignore[no-untyped-def]
    nearest, starts, ends, members, alive, codes, scales, query, query_scale, values, documents,
    groups, slots, all_slots, offset, search_steps,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, ALIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per query and block of slots: documents of the nearest groups, with semantic products."""
    number = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = ends + number * groups
    valid = slot < tl.load(own + groups - 1)
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.zeros((BLOCK,), tl.int32) + groups
    for _ in range(search_steps):  # the first group that ends after the slot
        middle = (low + high) // 2
        open_ = valid & (low < high)
        before = tl.load(own + middle, mask=open_, other=0) <= slot
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    group = _document(tl.load(nearest + number * (groups + 1) + low, mask=valid, other=0))
    stop = tl.load(starts + group + 1, mask=valid, other=0)
    document = tl.load(members + stop - (tl.load(own + low, mask=valid, other=0) - slot), mask=valid, other=0)
    row = query + number * (WIDTH // 4 if CODEC == "int8x4" else WIDTH)
    value = products(codes, scales, row, document, valid, WIDTH, PADDED, CODEC)
    if CODEC != "fp16":
        value = value * tl.load(query_scale + number)
    if ALIVE:
        valid = valid & (tl.load(alive + document, mask=valid, other=0) != 0)
    position = number * all_slots + offset + slot
    tl.store(values + position, tl.where(valid, ordered(value), NONE), mask=slot < slots)
    tl.store(documents + position, document.to(tl.int32), mask=slot < slots)


@triton.jit
def _decoded(order):  # type: ignore[no-untyped-def]
    """Inverse of `ordered`."""
    return tl.where(order >= 0, order, order ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _token_scores(scores, borders, number, document, valid, ranges, search_steps, RANGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The token scores of documents; −∞ without a match."""
    low = tl.zeros(document.shape, tl.int32)
    high = tl.zeros(document.shape, tl.int32) + ranges
    for _ in range(search_steps):  # the first range that begins after the document
        middle = (low + high) // 2
        open_ = low < high
        before = tl.load(borders + middle, mask=open_, other=0) <= document
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    position = (
        (number * ranges + low - 1) * RANGE + document - tl.load(borders + low - 1, mask=valid, other=0)
    )
    return tl.load(scores + position, mask=valid, other=-float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def combine_kernel(  # type: ignore[no-untyped-def]
    by_tokens, near_values, near_documents, scores, codes, scales, query, query_scale, values,
    documents, maxima, borders, first, blocks, second, slots, ranges, search_steps,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, RANGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per query and block of documents, candidates by tokens first, then probed ones.

    Token score + semantic product, duplicates dropped; and the best of the block."""
    number, program = tl.program_id(1).to(tl.int64), tl.program_id(0)
    slot = program * BLOCK + tl.arange(0, BLOCK)
    own = by_tokens + number * (first + 1)
    if program < blocks:
        packed = tl.load(own + slot, mask=slot < first, other=NOTHING)
        valid = packed != NOTHING
        document = _document(packed)
        order = (packed >> 32).to(tl.int32)
        row = query + number * (WIDTH // 4 if CODEC == "int8x4" else WIDTH)
        value = products(codes, scales, row, document, valid, WIDTH, PADDED, CODEC)
        if CODEC != "fp16":
            value = value * tl.load(query_scale + number)
        score = _decoded(order) + value
    else:
        at = slot - blocks * BLOCK
        order = tl.load(near_values + number * second + at, mask=at < second, other=NONE)
        document = tl.load(near_documents + number * second + at, mask=at < second, other=0).to(tl.int64)
        valid = order > NONE
        tokens = _token_scores(scores, borders, number, document, valid, ranges, search_steps, RANGE)
        chosen = _packed(ordered(tokens), document) >= tl.load(own + first - 1)  # a candidate by tokens, too
        valid = valid & ((chosen == 0) | (tokens == -float("inf")))
        score = tl.where(tokens == -float("inf"), 0.0, tokens) + _decoded(order)
    order = tl.where(valid, ordered(score), NONE)
    tl.store(values + number * slots + slot, order, mask=slot < slots)
    tl.store(documents + number * slots + slot, document.to(tl.int32), mask=slot < slots)
    tl.store(maxima + number * tl.num_programs(0) + program, tl.max(order, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def copy_kernel(ranked, result, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy a result into pinned host memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + at, tl.load(ranked + at, mask=at < count, other=0), mask=at < count)
