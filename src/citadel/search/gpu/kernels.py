"""What makes token scores, as Triton kernels, a range of documents at a time.

One program owns a range of documents for one query and takes the query's tokens in their order, so sums are made in
the order of the CPU engine and need no atomics: scores are equal to the last bit. Queries of a batch that own the same
range run side by side, so a list they share is read from the card's memory once and from its cache afterwards. A score
of −∞ means "not met"; only a range that was met is set back to it.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

from citadel.search.gpu import int8_dot, shared_memory, workspace

NONE = tl.constexpr(workspace.NONE)
GAP = tl.constexpr(shared_memory.SKEW)
SEARCHED = tl.constexpr(shared_memory.TABLE)  # query tokens whose parts of a range are looked for together


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
def _asked(query, column, inside, there):  # type: ignore[no-untyped-def]
    """Some columns of a query vector [1, columns], or of each row's own [n, columns]."""
    if len(query.shape) == 0:
        found = tl.load(query + column, mask=inside, other=0)[None, :]
    else:
        found = tl.load(query[:, None] + column[None, :], mask=there[:, None] & inside[None, :], other=0)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def products(codes, scales, query, at, there, WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Coded rows `at` [n] times a query vector, or its table, or each its own [n]; summed in the documented order."""
    place = at.to(tl.int64) * WIDTH
    if CODEC == "int8":  # whole numbers below 2²⁴: exact in any order
        column = tl.arange(0, PADDED)
        inside = column < WIDTH
        row = tl.load(codes + place[:, None] + column[None, :], mask=there[:, None] & inside[None, :], other=0)
        asked = _asked(query, column, inside, there).to(tl.int32)
        found = tl.sum(row.to(tl.int32) * asked, axis=1).to(tl.float32)
        found = found * tl.load(scales + at, mask=there, other=0.0).to(tl.float32)
    elif CODEC == "int8x4":  # four of them in a 32-bit number
        scale = tl.load(scales + at, mask=there, other=0.0).to(tl.float32)
        if (len(query.shape) == 1) and (WIDTH % 16 == 0) and (WIDTH <= 64):
            whole = int8_dot.products(codes, query, at, there, WIDTH // 4)
        else:
            column = tl.arange(0, PADDED // 4)
            inside = column < WIDTH // 4
            place = codes + at.to(tl.int64)[:, None] * (WIDTH // 4) + column[None, :]
            row = tl.load(place, mask=there[:, None] & inside[None, :], other=0)
            whole = tl.sum(int8_dot.fours(row, _asked(query, column, inside, there)), axis=1)
        found = whole.to(tl.float32) * scale
    elif CODEC == "fp16":
        lane = tl.arange(0, 16)
        lanes = tl.zeros((at.shape[0], 16), tl.float32)
        for start in range(0, WIDTH, 16):
            inside = start + lane < WIDTH
            row = tl.load(
                codes + place[:, None] + (start + lane)[None, :], mask=there[:, None] & inside[None, :], other=0.0
            )
            lanes += row.to(tl.float32) * _asked(query, start + lane, inside, there)
        halves = tl.sum(tl.reshape(lanes, (at.shape[0], 2, 8)), axis=1)
        halves = tl.sum(tl.reshape(halves, (at.shape[0], 2, 4)), axis=1)
        halves = tl.sum(tl.reshape(halves, (at.shape[0], 2, 2)), axis=1)
        found = tl.sum(halves, axis=1)
    else:  # sums of whole steps, at most 32,767
        steps = tl.zeros((at.shape[0],), tl.int32)
        for part in range(WIDTH):
            code = tl.load(codes + place + part, mask=there, other=0).to(tl.int32)
            steps += tl.load(query + part * 256 + code, mask=there, other=0).to(tl.int32)
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
    some = tl.max((low < high).to(tl.int32), axis=0)
    for _ in range(some * halvings):  # of short lists, which have no skips
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
def _entries(table, room, at, NUMBER: tl.constexpr, RANGE: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Entries of a table [SEARCHED], which is in shared memory, too, where there is some."""
    return shared_memory.noted(room, at, NUMBER, RANGE, GAP, SEARCHED) if SHARED != "" else tl.gather(table, at, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _token(ends, room, flat, RANGE: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The token of postings that stand in a row, each token's behind those of the one before, up to its end."""
    token = tl.zeros(flat.shape, tl.int32)
    for halving in tl.static_range(4):
        step = SEARCHED // 2 >> halving
        token += tl.where(_entries(ends, room, token + step - 1, 0, RANGE, SHARED) <= flat, step, 0)
    return token


@triton.jit  # type: ignore[untyped-decorator]
def _add_lists(  # type: ignore[no-untyped-def]
    own, room, first, documents, codes, scales, weights, query, query_scale, list_scale, low, high, weight_floor,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROW: tl.constexpr, CODEC: tl.constexpr, FLOOR: tl.constexpr,
    WEIGHTS: tl.constexpr, RANGE: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Postings low … high of each token's list [SEARCHED]: a document's best product is added to its score.

    They are taken as if they stood in one row, so that short parts of lists fill a block together and are waited for
    once; a block's tokens then add one after the other."""
    ends = tl.cumsum(high - low, axis=0)
    shifts = high - ends  # from a place in the row to a posting
    total = tl.max(ends, axis=0).to(tl.int32)
    if SHARED != "":
        shared_memory.note(room, ends, 0, RANGE, GAP, SEARCHED)
        shared_memory.note(room, shifts, 1, RANGE, GAP, SEARCHED)
        tl.debug_barrier()
    turn, carried_key, carried = 0, -1, -float("inf")
    for start in range(0, total, BLOCK):
        flat = start + tl.arange(0, BLOCK)
        there = flat < total
        token = _token(ends, room, flat, RANGE, SHARED)
        at = flat + _entries(shifts, room, token, 1, RANGE, SHARED)
        end = _entries(ends, room, token, 0, RANGE, SHARED)
        document = tl.load(documents + at, mask=there, other=-1)
        after = tl.load(documents + at + 1, mask=there & (flat + 1 < end), other=-1)
        factor = tl.load(query_scale + token, mask=there, other=0.0)
        value = products(codes, scales, query + token * ROW, at, there, WIDTH, PADDED, CODEC)
        if CODEC != "fp16":
            value = value * factor
        if CODEC == "pq":
            value = value * tl.load(list_scale + token, mask=there, other=0.0)
        if WEIGHTS:
            kept = tl.load(weights + at, mask=there, other=0).to(tl.int32) > weight_floor
            value = tl.where(kept, value, -float("inf"))
        value = tl.where(there, value, -float("inf"))
        key = tl.where(there, token * RANGE + document - first, -1)  # of a token and document, in rising order
        value = tl.where(key == carried_key, tl.maximum(value, carried), value)
        _, best = tl.associative_scan((key, value), 0, _later)
        last = there & (document != after) & (best > -float("inf"))
        gain = tl.maximum(best, 0.0) if FLOOR else best
        carried_key = tl.max(key, axis=0)
        carried = tl.max(tl.where(flat == start + BLOCK - 1, best, -float("inf")), axis=0)
        for adding in range(turn, carried_key // RANGE + 1):
            _add(own, room, document - first, gain, last & (token == adding), RANGE, SHARED)
        turn = carried_key // RANGE


@triton.jit  # type: ignore[untyped-decorator]
def _add(own, room, at, gain, there, RANGE: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add to the scores of documents `at` of the range, each there once."""
    if SHARED != "":
        so_far = shared_memory.read(room, at, there, RANGE, GAP)
        shared_memory.write(room, at, tl.where(so_far == -float("inf"), gain, so_far + gain), there, RANGE, GAP)
    else:
        so_far = tl.load(own + at, mask=there, other=0.0)
        tl.store(own + at, tl.where(so_far == -float("inf"), gain, so_far + gain), mask=there)
    tl.debug_barrier()  # the next token's sums read what this one's have written


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
    room = shared_memory.reserve(SHARED) if SHARED != "" else 0
    was_met = tl.load(dirty + place)
    met = 0
    end = tl.load(token_starts + number + 1)
    for chunk in range(tl.load(token_starts + number), end, SEARCHED):
        bound = _bounds(documents, starts, stops, skip_rows, skips, chunk, end, owned, own_ranges, halvings, RANGE)
        low, high = tl.split(tl.reshape(bound, (SEARCHED, 2)))
        if tl.sum(high - low, axis=0) > 0:
            if met == 0:
                if SHARED != "":
                    shared_memory.clear(room, RANGE, GAP)
                else:
                    _empty(own, RANGE, TILE)
                tl.debug_barrier()
            met = 1
            _add_lists(
                own, room, owned * RANGE, documents, codes, scales, weights, query + chunk * ROW, query_scale + chunk,
                list_scale + chunk, low, high, weight_floor,
                WIDTH, PADDED, ROW, CODEC, FLOOR, WEIGHTS, RANGE, SHARED, BLOCK,
            )  # fmt: skip
    if (met == 0) & ((was_met != 0) | EVERY):
        _empty(own, RANGE, TILE)
    tl.store(dirty + place, met)
    first = owned * RANGE
    own_maxima = maxima + place * (RANGE // SUB)
    _finish(own, room, alive + base + first, own_maxima, met, size - first, ALIVE, EVERY, RANGE, SUB, TILE, SHARED)


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    own, room, alive, maxima, met, size, ALIVE: tl.constexpr, EVERY: tl.constexpr, RANGE: tl.constexpr,
    SUB: tl.constexpr, TILE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """The best score of each part of a range, once the deleted have none; scores of shared memory are kept."""
    if met != 0:
        for part in range(RANGE // SUB):
            best = tl.full((), NONE, tl.int32)
            for start in range(part * SUB, (part + 1) * SUB, TILE):  # not all at once, which takes many registers
                at = start + tl.arange(0, TILE)
                score = shared_memory.read(room, at, at < RANGE, RANGE, GAP) if SHARED != "" else tl.load(own + at)
                if ALIVE:
                    score = tl.where(tl.load(alive + at, mask=at < size, other=0) != 0, score, -float("inf"))
                if ALIVE or (SHARED != ""):
                    tl.store(own + at, score)
                best = tl.maximum(best, tl.max(ordered(score), axis=0))
            if EVERY == 0:
                tl.store(maxima + part, best)
    elif EVERY == 0:
        tl.store(maxima + tl.arange(0, RANGE // SUB), tl.full((RANGE // SUB,), NONE, tl.int32))
