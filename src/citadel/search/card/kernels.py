"""What makes scores, as Triton kernels: token scores of ranges of documents, and the semantic scan.

One program owns a range of documents for one query and takes the query's tokens in their order, so sums are made in
the order of the CPU engine and need no atomics: scores are equal to the last bit. Queries of a batch that own the same
range run side by side, so a list they share is read from the card's memory once and from its cache afterwards. A score
of −∞ means "not met"; only a range that was met is set back to it.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

from citadel.search.card import rooms, shared

NONE = tl.constexpr(rooms.NONE)
GAP = tl.constexpr(shared.SKEW)
SEARCHED = tl.constexpr(16)  # query tokens whose parts of a range are looked for together


@triton.jit
def ordered(score):  # type: ignore[no-untyped-def]
    """A number's bits as a whole number of the same order; −0 is 0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _later(left_document, left, right_document, right):  # type: ignore[no-untyped-def]
    """The running maximum within a document."""
    same = left_document == right_document
    return right_document, tl.where(same, tl.maximum(left, right), right)


@triton.jit
def _fours(row, asked):  # type: ignore[no-untyped-def]
    """Products of whole numbers, four a 32-bit number, added up."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [row, asked], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def products(codes, scales, query, at, there, WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr):  # type: ignore[no-untyped-def]
    """A query vector, or its table, against coded rows `at` [n]: [n]; the order of additions is docs/search.md's."""
    place = at.to(tl.int64) * WIDTH
    if CODEC == "int8":  # whole numbers below 2²⁴: exact in any order
        column = tl.arange(0, PADDED)
        inside = column < WIDTH
        row = tl.load(codes + place[:, None] + column[None, :], mask=there[:, None] & inside[None, :], other=0)
        asked = tl.load(query + column, mask=inside, other=0)
        found = tl.sum(row.to(tl.int32) * asked[None, :].to(tl.int32), axis=1).to(tl.float32)
        found = found * tl.load(scales + at, mask=there, other=0.0).to(tl.float32)
    elif CODEC == "int8x4":  # four of them in a 32-bit number
        column = tl.arange(0, PADDED // 4)
        inside = column < WIDTH // 4
        wanted = there[:, None] if WIDTH == PADDED else there[:, None] & inside[None, :]
        place = codes + at.to(tl.int64)[:, None] * (WIDTH // 4) + column[None, :]
        row = tl.load(place, mask=wanted, other=0, cache_modifier=".cg")  # scores are to stay in the first cache
        asked = tl.load(query + column, mask=inside, other=0)
        found = tl.sum(_fours(row, asked[None, :]), axis=1).to(tl.float32)
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
        steps = tl.zeros((at.shape[0],), tl.int32)
        for part in range(WIDTH):
            code = tl.load(codes + place + part, mask=there, other=0).to(tl.int32)
            steps += tl.load(query + part * 256 + code).to(tl.int32)
        found = steps.to(tl.float32)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _bounds(  # type: ignore[no-untyped-def]
    documents, starts, stops, skip_rows, skips, chunk, end, owned, ranges, halvings, RANGE: tl.constexpr
):
    """Where a range begins and ends in the lists of the next tokens [2 · SEARCHED], a token's two side by side."""
    lane = tl.arange(0, 2 * SEARCHED)
    token = chunk + lane // 2
    low = tl.load(starts + token, mask=token < end, other=0)
    high = tl.load(stops + token, mask=token < end, other=0)
    row = tl.load(skip_rows + token, mask=token < end, other=-1)
    skip = tl.load(skips + row * (ranges + 1) + owned + lane % 2, mask=row >= 0, other=0)
    low += skip
    high = tl.where(row >= 0, low, high)
    border = (owned + lane % 2) * RANGE
    for _ in range(halvings):  # of short lists, which have no skips
        middle = (low + high) // 2
        open_ = low < high
        before = tl.load(documents + middle, mask=open_, other=0) < border
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _empty(own, RANGE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """No document of the range has a score."""
    for start in range(0, RANGE, TILE):
        tl.store(own + start + tl.arange(0, TILE), tl.full((TILE,), -float("inf"), tl.float32))


@triton.jit  # type: ignore[untyped-decorator]
def _empty_shared(room, RANGE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same in shared memory."""
    for start in range(0, RANGE, TILE):
        at = start + tl.arange(0, TILE)
        shared.write(room, at, tl.full((TILE,), -float("inf"), tl.float32), at < RANGE, RANGE, GAP)


@triton.jit  # type: ignore[untyped-decorator]
def _add_list(  # type: ignore[no-untyped-def]
    own, room, first, documents, codes, scales, weights, query, factor, key_scale, low, high, weight_floor,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, FLOOR: tl.constexpr, WEIGHTS: tl.constexpr,
    RANGE: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Postings low … high of one list: each document's best product is added to its score."""
    carried_document, carried = -1, -float("inf")
    for start in range(low, high, BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < high
        document = tl.load(documents + at, mask=there, other=-1)
        after = tl.load(documents + at + 1, mask=at + 1 < high, other=-1)
        value = products(codes, scales, query, at, there, WIDTH, PADDED, CODEC)
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
        if SHARED != "":
            so_far = shared.read(room, document - first, last, RANGE, GAP)
            total = tl.where(so_far == -float("inf"), gain, so_far + gain)
            shared.write(room, document - first, total, last, RANGE, GAP)
        else:
            so_far = tl.load(own + document, mask=last, other=0.0)
            tl.store(own + document, tl.where(so_far == -float("inf"), gain, so_far + gain), mask=last)
        ending = at == tl.minimum(start + BLOCK, high) - 1
        carried_document = tl.max(tl.where(ending, document, -1), axis=0)
        carried = tl.max(tl.where(ending, best, -float("inf")), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def score_kernel(  # type: ignore[no-untyped-def]
    documents, codes, scales, weights, alive, starts, stops, skip_rows, skips, token_starts, query, query_scale,
    list_scale, scores, dirty, maxima, queries, before, own_ranges, ranges, size, base, weight_floor, halvings,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROW: tl.constexpr, CODEC: tl.constexpr, FLOOR: tl.constexpr,
    WEIGHTS: tl.constexpr, ALIVE: tl.constexpr, EVERY: tl.constexpr, RANGE: tl.constexpr, SUB: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One program a range and query: dot, maximum within a document, floor, and the sum over query tokens (Eq. 5).

    Then the best score of each part of the range, as a whole number; with EVERY a semantic scan follows, which does it.
    """
    program = tl.program_id(0)
    number, owned = program % queries, program // queries
    place = number.to(tl.int64) * ranges + before + owned
    own = scores + place * RANGE
    room = shared.reserve(SHARED) if SHARED != "" else 0
    was_met = tl.load(dirty + place)
    lane = tl.arange(0, 2 * SEARCHED)
    met = 0
    end = tl.load(token_starts + number + 1)
    for chunk in range(tl.load(token_starts + number), end, SEARCHED):
        bound = _bounds(documents, starts, stops, skip_rows, skips, chunk, end, owned, own_ranges, halvings, RANGE)
        if tl.sum(tl.where(lane % 2 == 1, bound, -bound), axis=0) > 0:
            if met == 0:
                if SHARED != "":
                    _empty_shared(room, RANGE, TILE)
                else:
                    _empty(own, RANGE, TILE)
                tl.debug_barrier()
            met = 1
            for token in range(chunk, tl.minimum(chunk + SEARCHED, end)):
                low = tl.sum(tl.where(lane == 2 * (token - chunk), bound, 0), axis=0)
                high = tl.sum(tl.where(lane == 2 * (token - chunk) + 1, bound, 0), axis=0)
                _add_list(
                    own - owned * RANGE, room, owned * RANGE, documents, codes, scales, weights, query + token * ROW,
                    tl.load(query_scale + token), tl.load(list_scale + token), low, high, weight_floor,
                    WIDTH, PADDED, CODEC, FLOOR, WEIGHTS, RANGE, SHARED, BLOCK,
                )  # fmt: skip
                tl.debug_barrier()  # the next token's sums read what this one's have written
    if (met == 0) & ((was_met != 0) | EVERY):
        _empty(own, RANGE, TILE)
    tl.store(dirty + place, met)
    first = owned * RANGE
    own_maxima = maxima + place * (RANGE // SUB)
    _finish(own, room, alive + base + first, own_maxima, met, size - first, ALIVE, EVERY, RANGE, SUB, SHARED)


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    own, room, alive, maxima, met, size, ALIVE: tl.constexpr, EVERY: tl.constexpr, RANGE: tl.constexpr,
    SUB: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """The best score of each part of a range, once the deleted have none; scores of shared memory are kept."""
    at = tl.arange(0, RANGE)
    best = tl.full((RANGE // SUB,), NONE, tl.int32)
    if met != 0:
        score = shared.read(room, at, at < RANGE, RANGE, GAP) if SHARED != "" else tl.load(own + at)
        if ALIVE:
            score = tl.where(tl.load(alive + at, mask=at < size, other=0) != 0, score, -float("inf"))
        if ALIVE or (SHARED != ""):
            tl.store(own + at, score)
        best = tl.max(tl.reshape(ordered(score), (RANGE // SUB, SUB)), axis=1)
    if EVERY == 0:
        tl.store(maxima + tl.arange(0, RANGE // SUB), best)


@triton.jit  # type: ignore[untyped-decorator]
def scan_kernel(  # type: ignore[no-untyped-def]
    scores, alive, codes, scales, query, query_scale, maxima, borders, spans, queries, ranges,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, ALIVE: tl.constexpr, RANGE: tl.constexpr,
    SUB: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program a part of a range and some queries: every document's semantic product, and the part's best score."""
    part, tile = tl.program_id(0), tl.program_id(1)
    border = tl.load(borders + part // (RANGE // SUB))
    first = border + (part % (RANGE // SUB)) * SUB
    end = tl.minimum(border + tl.load(spans + part // (RANGE // SUB)), first + SUB)
    shift = part.to(tl.int64) * SUB - first  # from a document's number to the place of its score
    number = tile * QUERIES + tl.arange(0, QUERIES)
    asked = number < queries
    factor = tl.load(query_scale + number, mask=asked, other=0.0)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    if CODEC == "int8":  # whole numbers, so the matrix units' sums are exact
        given = query + number[None, :] * WIDTH + column[:, None]
        rows = tl.load(given, mask=asked[None, :] & inside[:, None], other=0)
    best = tl.full((QUERIES,), NONE, tl.int32)
    for start in tl.range(first, end, BLOCK, num_stages=STAGES):
        at = start + tl.arange(0, BLOCK)
        there = at < end
        if CODEC == "int8":
            place = codes + at[:, None] * WIDTH + column[None, :]
            found = tl.dot(tl.load(place, mask=there[:, None] & inside[None, :], other=0), rows).to(tl.float32)
            value = found * tl.load(scales + at, mask=there, other=0.0).to(tl.float32)[:, None] * factor[None, :]
        else:
            value = products(codes, scales, query + tile * WIDTH, at, there, WIDTH, PADDED, CODEC)[:, None]
        own = scores + number.to(tl.int64)[None, :] * (ranges * RANGE) + (at + shift)[:, None]
        wanted = there[:, None] & asked[None, :]
        score = tl.load(own, mask=wanted, other=0.0)
        score = tl.where(score == -float("inf"), 0.0, score) + value
        if ALIVE:
            score = tl.where(tl.load(alive + at, mask=there, other=0)[:, None] != 0, score, -float("inf"))
        score = tl.where(wanted, score, -float("inf"))
        tl.store(own, score, mask=wanted)
        best = tl.maximum(best, tl.max(ordered(score), axis=0))
    tl.store(maxima + number.to(tl.int64) * (ranges * (RANGE // SUB)) + part, best, mask=asked)
