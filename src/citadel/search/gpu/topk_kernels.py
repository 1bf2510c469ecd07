"""What chooses the best, as Triton kernels: a limit below the k-th score, those above it, and their order.

The k-th largest of the best scores of disjoint parts is at most the k-th score, so all of the best k are at or above
it; and where parts are many, few others are. Candidates are then put in order by counting, for each, how many are
larger. A candidate is a score and a document in one whole number (select.py), so no two are equal.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

from citadel.search.gpu import select
from citadel.search.gpu.kernels import NONE, ordered, products

SLACK = tl.constexpr(4096)  # of the smallest steps, that a limit may lie too low
NOTHING = tl.constexpr(select.NOTHING)
LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def limit_kernel(values, limits, found, ranked, count, wanted, PADDED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query: a number that `wanted` of the values reach; and no candidate, nothing in order yet."""
    number = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    value = tl.load(values + number * count + place, mask=place < count, other=NONE)
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
    tl.store(found + number, 0)
    for start in range(0, wanted, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(ranked + number * (wanted + 1) + at, tl.full((BLOCK,), NOTHING, tl.int64), mask=at < wanted)


@triton.jit
def _add(candidates, found, taken, packed, capacity):  # type: ignore[no-untyped-def]
    """Append the taken ones to a query's candidates."""
    count = tl.sum(taken.to(tl.int32), axis=0)
    if count > 0:
        slot = tl.atomic_add(found, count) + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(candidates + slot, packed, mask=taken & (slot < capacity))


@triton.jit
def _packed(order, document):  # type: ignore[no-untyped-def]
    return (order.to(tl.int64) << 32) | (LOW - document.to(tl.int64))


@triton.jit
def _document(packed):  # type: ignore[no-untyped-def]
    return LOW - (packed & LOW)


@triton.jit  # type: ignore[untyped-decorator]
def collect_kernel(  # type: ignore[no-untyped-def]
    scores, maxima, limits, found, candidates, borders, queries, parts, capacity,
    RANGE: tl.constexpr, SUB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program a part of a range and query: scores from the limit on become candidates."""
    program = tl.program_id(0)
    number, part = (program % queries).to(tl.int64), program // queries
    place = number * parts + part
    limit = tl.load(limits + number)
    if tl.load(maxima + place) >= limit:
        first = tl.load(borders + part // (RANGE // SUB)) + (part % (RANGE // SUB)) * SUB
        for start in range(0, SUB, TILE):
            at = start + tl.arange(0, TILE)
            order = ordered(tl.load(scores + place * SUB + at))
            _add(candidates + number * capacity, found + number, order >= limit, _packed(order, first + at), capacity)


@triton.jit  # type: ignore[untyped-decorator]
def pick_kernel(values, documents, limits, found, candidates, count, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query and some values: those from the limit on become candidates."""
    number = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    order = tl.load(values + number * count + slot, mask=slot < count, other=NONE)
    taken = order >= tl.load(limits + number)
    document = tl.load(documents + number * width + slot, mask=taken, other=0)
    _add(candidates + number * count, found + number, taken, _packed(order, document), count)


@triton.jit  # type: ignore[untyped-decorator]
def rank_kernel(candidates, found, reported, ranked, capacity, wanted, BLOCK: tl.constexpr, OTHERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query and some candidates: each to its place among the best; behind them what is reported."""
    number = tl.program_id(1).to(tl.int64)
    count = tl.minimum(tl.load(found + number), capacity)
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
    """The largest number below `high` that `wanted` of the values reach; `low` is one."""
    while high - low > 1:
        middle = (low + high) // 2
        enough = tl.sum((value >= middle).to(tl.int32), axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit  # type: ignore[untyped-decorator]
def select_kernel(candidates, found, ranked, capacity, wanted, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query: the best candidates in no order, but that the last is the least; then how many there were.

    For those that only need the best as a set: putting thousands in order by counting costs the square of them."""
    number = tl.program_id(0).to(tl.int64)
    among = tl.load(found + number)
    count = tl.minimum(among, capacity)
    place = tl.arange(0, PADDED)
    packed = tl.load(candidates + number * capacity + place, mask=place < count, other=NOTHING)
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
    tl.store(own + wanted, among.to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def probe_kernel(centroids, query, values, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query and some centroids: their products, added in the order of the dimensions."""
    number = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(WIDTH):
        row = tl.load(centroids + at.to(tl.int64) * WIDTH + part, mask=there, other=0.0)
        total += row * tl.load(query + number * WIDTH + part)
    tl.store(values + number * count + at, ordered(total), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def groups_kernel(nearest, starts, ends, count, wanted, fewest, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a query: where each group ends once the nearest that hold `wanted` documents stand in a row."""
    number = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    there = place < count
    group = _document(tl.load(nearest + number * (count + 1) + place, mask=there, other=0))
    begin = tl.load(starts + group, mask=there, other=0)
    size = (tl.load(starts + group + 1, mask=there, other=0) - begin).to(tl.int32)
    before = tl.cumsum(size, axis=0) - size
    kept = tl.where((before < wanted) | (place < fewest), size, 0)
    tl.store(ends + number * count + place, tl.cumsum(kept, axis=0), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def members_kernel(  # type: ignore[no-untyped-def]
    nearest, starts, ends, members, alive, codes, scales, query, query_scale, values, documents,
    groups, slots, all_slots, offset, halvings,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, ALIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a query and some slots: the documents of its nearest groups, and their semantic products."""
    number = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = ends + number * groups
    there = slot < tl.load(own + groups - 1)
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.zeros((BLOCK,), tl.int32) + groups
    for _ in range(halvings):  # the first group that ends behind the slot
        middle = (low + high) // 2
        open_ = there & (low < high)
        before = tl.load(own + middle, mask=open_, other=0) <= slot
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    group = _document(tl.load(nearest + number * (groups + 1) + low, mask=there, other=0))
    stop = tl.load(starts + group + 1, mask=there, other=0)
    document = tl.load(members + stop - (tl.load(own + low, mask=there, other=0) - slot), mask=there, other=0)
    row = query + number * (WIDTH // 4 if CODEC == "int8x4" else WIDTH)
    value = products(codes, scales, row, document, there, WIDTH, PADDED, CODEC)
    if CODEC != "fp16":
        value = value * tl.load(query_scale + number)
    if ALIVE:
        there = there & (tl.load(alive + document, mask=there, other=0) != 0)
    place = number * all_slots + offset + slot
    tl.store(values + place, tl.where(there, ordered(value), NONE), mask=slot < slots)
    tl.store(documents + place, document.to(tl.int32), mask=slot < slots)


@triton.jit
def _decoded(order):  # type: ignore[no-untyped-def]
    """The number that a whole number of the same order stands for."""
    return tl.where(order >= 0, order, order ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _met(scores, borders, number, document, there, ranges, halvings, RANGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The token scores of some documents, −∞ for those that were not met."""
    low = tl.zeros(document.shape, tl.int32)
    high = tl.zeros(document.shape, tl.int32) + ranges
    for _ in range(halvings):  # the first range that begins behind the document
        middle = (low + high) // 2
        open_ = low < high
        before = tl.load(borders + middle, mask=open_, other=0) <= document
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    place = (number * ranges + low - 1) * RANGE + document - tl.load(borders + low - 1, mask=there, other=0)
    return tl.load(scores + place, mask=there, other=-float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def combine_kernel(  # type: ignore[no-untyped-def]
    by_tokens, near_values, near_documents, scores, codes, scales, query, query_scale, values, documents, maxima,
    borders, first, blocks, second, slots, ranges, halvings,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, RANGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a query and some documents, first those that the tokens chose, then the near ones: token score +
    semantic product, of a document that is both once; and the best of them."""
    number, program = tl.program_id(1).to(tl.int64), tl.program_id(0)
    slot = program * BLOCK + tl.arange(0, BLOCK)
    own = by_tokens + number * (first + 1)
    if program < blocks:
        packed = tl.load(own + slot, mask=slot < first, other=NOTHING)
        there = packed != NOTHING
        document = _document(packed)
        order = (packed >> 32).to(tl.int32)
        row = query + number * (WIDTH // 4 if CODEC == "int8x4" else WIDTH)
        value = products(codes, scales, row, document, there, WIDTH, PADDED, CODEC)
        if CODEC != "fp16":
            value = value * tl.load(query_scale + number)
        score = _decoded(order) + value
    else:
        at = slot - blocks * BLOCK
        order = tl.load(near_values + number * second + at, mask=at < second, other=NONE)
        document = tl.load(near_documents + number * second + at, mask=at < second, other=0).to(tl.int64)
        there = order > NONE
        met = _met(scores, borders, number, document, there, ranges, halvings, RANGE)
        chosen = _packed(ordered(met), document) >= tl.load(own + first - 1)  # all from the last one on
        there = there & ((chosen == 0) | (met == -float("inf")))
        score = tl.where(met == -float("inf"), 0.0, met) + _decoded(order)
    order = tl.where(there, ordered(score), NONE)
    tl.store(values + number * slots + slot, order, mask=slot < slots)
    tl.store(documents + number * slots + slot, document.to(tl.int32), mask=slot < slots)
    tl.store(maxima + number * tl.num_programs(0) + program, tl.max(order, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def bring_kernel(ranked, answer, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write an answer into the host's pinned memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(answer + at, tl.load(ranked + at, mask=at < count, other=0), mask=at < count)
