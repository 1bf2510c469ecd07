"""Triton kernels for token scores, one range of documents at a time.

One program owns a range of documents for one query and processes the query's tokens in order, so sums are
made in the order of the CPU engine and need no atomics: scores are bit-equal. Programs of the same range run
side by side, so a list shared by several queries is read from memory once and from the cache afterwards. A
score of −∞ means "no match"; only ranges with a match are reset to it.
"""

# ruff: noqa: N803 - Triton constants are upper case

from __future__ import annotations

import triton
import triton.language as tl

from citadel.search.gpu import int8_dot, shared_memory, workspace

NONE = tl.constexpr(workspace.NONE)
GAP = tl.constexpr(shared_memory.SKEW)
SEARCHED = tl.constexpr(shared_memory.TABLE)  # query tokens whose spans in a range are searched together


@triton.jit
def ordered(score):  # type: ignore[no-untyped-def]
    """Map a float to an int32 of the same order; −0 is 0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _later(left_document, left, right_document, right):  # type: ignore[no-untyped-def]
    """Combine for a scan: the running maximum within a document."""
    same = left_document == right_document
    return right_document, tl.where(same, tl.maximum(left, right), right)


@triton.jit
def _query_columns(query, column, inside, valid):  # type: ignore[no-untyped-def]
    """Some columns of a query vector [1, columns], or of each row's own [n, columns]."""
    if len(query.shape) == 0:
        columns = tl.load(query + column, mask=inside, other=0)[None, :]
    else:
        columns = tl.load(query[:, None] + column[None, :], mask=valid[:, None] & inside[None, :], other=0)
    return columns


@triton.jit  # type: ignore[untyped-decorator]
def products(codes, scales, query, at, valid, WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Dot products of coded rows `at` [n] with one query vector or table, or with one each."""
    offset = at.to(tl.int64) * WIDTH
    if CODEC == "int8":  # integers below 2²⁴: exact in any order
        column = tl.arange(0, PADDED)
        inside = column < WIDTH
        row = tl.load(
            codes + offset[:, None] + column[None, :], mask=valid[:, None] & inside[None, :], other=0
        )
        values = _query_columns(query, column, inside, valid).to(tl.int32)
        product = tl.sum(row.to(tl.int32) * values, axis=1).to(tl.float32)
        product = product * tl.load(scales + at, mask=valid, other=0.0).to(tl.float32)
    elif CODEC == "int8x4":  # four codes per 32-bit word
        scale = tl.load(scales + at, mask=valid, other=0.0).to(tl.float32)
        if (len(query.shape) == 1) and (WIDTH % 16 == 0) and (WIDTH <= 64):
            whole = int8_dot.products(codes, query, at, valid, WIDTH // 4)
        else:
            column = tl.arange(0, PADDED // 4)
            inside = column < WIDTH // 4
            pointers = codes + at.to(tl.int64)[:, None] * (WIDTH // 4) + column[None, :]
            row = tl.load(pointers, mask=valid[:, None] & inside[None, :], other=0)
            whole = tl.sum(int8_dot.dot4(row, _query_columns(query, column, inside, valid)), axis=1)
        product = whole.to(tl.float32) * scale
    elif CODEC == "fp16":
        lane = tl.arange(0, 16)
        lanes = tl.zeros((at.shape[0], 16), tl.float32)
        for start in range(0, WIDTH, 16):
            inside = start + lane < WIDTH
            row = tl.load(
                codes + offset[:, None] + (start + lane)[None, :],
                mask=valid[:, None] & inside[None, :],
                other=0.0,
            )
            lanes += row.to(tl.float32) * _query_columns(query, start + lane, inside, valid)
        halves = tl.sum(tl.reshape(lanes, (at.shape[0], 2, 8)), axis=1)
        halves = tl.sum(tl.reshape(halves, (at.shape[0], 2, 4)), axis=1)
        halves = tl.sum(tl.reshape(halves, (at.shape[0], 2, 2)), axis=1)
        product = tl.sum(halves, axis=1)
    else:  # sums of integer steps, at most 32,767
        steps = tl.zeros((at.shape[0],), tl.int32)
        for part in range(WIDTH):
            code = tl.load(codes + offset + part, mask=valid, other=0).to(tl.int32)
            steps += tl.load(query + part * 256 + code, mask=valid, other=0).to(tl.int32)
        product = steps.to(tl.float32)
    return product


@triton.jit  # type: ignore[untyped-decorator]
def _bounds(  # type: ignore[no-untyped-def]
    documents, starts, stops, skip_rows, skips, chunk, end, owned, ranges, search_steps, RANGE: tl.constexpr
):
    """Start and end of a range in the lists of the next tokens [2 · SEARCHED], interleaved."""
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
    for _ in range(some * search_steps):  # binary search in short lists, which have no skips
        middle = (low + high) // 2
        open_ = low < high
        before = tl.load(documents + middle, mask=open_, other=0) < border
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _empty(own, RANGE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Set all scores of the range to −∞."""
    for start in range(0, RANGE, TILE):
        tl.store(own + start + tl.arange(0, TILE), tl.full((TILE,), -float("inf"), tl.float32))


@triton.jit  # type: ignore[untyped-decorator]
def _entries(table, shared, at, NUMBER: tl.constexpr, RANGE: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Entries of a table [SEARCHED], read from shared memory where available."""
    return (
        shared_memory.load_table(shared, at, NUMBER, RANGE, GAP, SEARCHED)
        if SHARED != ""
        else tl.gather(table, at, 0)
    )


@triton.jit  # type: ignore[untyped-decorator]
def _token(ends, shared, flat, RANGE: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The token of each flat position in the concatenated spans; token t's positions end at ends[t]."""
    token = tl.zeros(flat.shape, tl.int32)
    for level in tl.static_range(4):
        step = SEARCHED // 2 >> level
        token += tl.where(_entries(ends, shared, token + step - 1, 0, RANGE, SHARED) <= flat, step, 0)
    return token


@triton.jit  # type: ignore[untyped-decorator]
def _add_lists(  # type: ignore[no-untyped-def]
    own, shared, first, documents, codes, scales, weights, query, query_scale, list_scale, low, high,
    weight_floor,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROW: tl.constexpr, CODEC: tl.constexpr, FLOOR: tl.constexpr,
    WEIGHTS: tl.constexpr, RANGE: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add each document's best product in postings low … high of each token's list [SEARCHED] to its score.

    The spans are processed as one concatenation, so that short ones share a block and its memory latency; the
    tokens of a block then add one after the other."""
    ends = tl.cumsum(high - low, axis=0)
    shifts = high - ends  # from a flat position to a posting
    total = tl.max(ends, axis=0).to(tl.int32)
    if SHARED != "":
        shared_memory.store_table(shared, ends, 0, RANGE, GAP, SEARCHED)
        shared_memory.store_table(shared, shifts, 1, RANGE, GAP, SEARCHED)
        tl.debug_barrier()
    turn, carried_key, carried = 0, -1, -float("inf")
    for start in range(0, total, BLOCK):
        flat = start + tl.arange(0, BLOCK)
        valid = flat < total
        token = _token(ends, shared, flat, RANGE, SHARED)
        at = flat + _entries(shifts, shared, token, 1, RANGE, SHARED)
        end = _entries(ends, shared, token, 0, RANGE, SHARED)
        document = tl.load(documents + at, mask=valid, other=-1)
        after = tl.load(documents + at + 1, mask=valid & (flat + 1 < end), other=-1)
        factor = tl.load(query_scale + token, mask=valid, other=0.0)
        value = products(codes, scales, query + token * ROW, at, valid, WIDTH, PADDED, CODEC)
        if CODEC != "fp16":
            value = value * factor
        if CODEC == "pq":
            value = value * tl.load(list_scale + token, mask=valid, other=0.0)
        if WEIGHTS:
            kept = tl.load(weights + at, mask=valid, other=0).to(tl.int32) > weight_floor
            value = tl.where(kept, value, -float("inf"))
        value = tl.where(valid, value, -float("inf"))
        key = tl.where(valid, token * RANGE + document - first, -1)  # ascending by token and document
        value = tl.where(key == carried_key, tl.maximum(value, carried), value)
        _, best = tl.associative_scan((key, value), 0, _later)
        last = valid & (document != after) & (best > -float("inf"))
        gain = tl.maximum(best, 0.0) if FLOOR else best
        carried_key = tl.max(key, axis=0)
        carried = tl.max(tl.where(flat == start + BLOCK - 1, best, -float("inf")), axis=0)
        for adding in range(turn, carried_key // RANGE + 1):
            _add(own, shared, document - first, gain, last & (token == adding), RANGE, SHARED)
        turn = carried_key // RANGE


@triton.jit  # type: ignore[untyped-decorator]
def _add(own, shared, at, gain, valid, RANGE: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add gains to the scores of documents `at` of the range, which are distinct."""
    if SHARED != "":
        so_far = shared_memory.load(shared, at, valid, RANGE, GAP)
        shared_memory.store(
            shared, at, tl.where(so_far == -float("inf"), gain, so_far + gain), valid, RANGE, GAP
        )
    else:
        so_far = tl.load(own + at, mask=valid, other=0.0)
        tl.store(own + at, tl.where(so_far == -float("inf"), gain, so_far + gain), mask=valid)
    tl.debug_barrier()  # the next token reads these scores


@triton.jit  # type: ignore[untyped-decorator]
def score_kernel(  # type: ignore[no-untyped-def]
    documents, codes, scales, weights, alive, starts, stops, skip_rows, skips, token_starts, query,
    query_scale, list_scale, scores, dirty, maxima, queries, before, own_ranges, ranges, size, base,
    weight_floor, search_steps,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROW: tl.constexpr, CODEC: tl.constexpr, FLOOR: tl.constexpr,
    WEIGHTS: tl.constexpr, ALIVE: tl.constexpr, EVERY: tl.constexpr, RANGE: tl.constexpr, SUB: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One program per range and query: products, maximum per document, floor, sum over query tokens (Eq. 5).

    Then the best score of each part of the range, as an ordered int32; with EVERY the scan kernel does that.
    """
    program = tl.program_id(0)
    number, owned = program % queries, program // queries
    row = number.to(tl.int64) * ranges + before + owned
    own = scores + row * RANGE
    shared = shared_memory.reserve(SHARED) if SHARED != "" else 0
    was_dirty = tl.load(dirty + row)
    matched = 0
    end = tl.load(token_starts + number + 1)
    for chunk in range(tl.load(token_starts + number), end, SEARCHED):
        bound = _bounds(
            documents, starts, stops, skip_rows, skips, chunk, end, owned, own_ranges, search_steps, RANGE
        )
        low, high = tl.split(tl.reshape(bound, (SEARCHED, 2)))
        if tl.sum(high - low, axis=0) > 0:
            if matched == 0:
                if SHARED != "":
                    shared_memory.clear(shared, RANGE, GAP)
                else:
                    _empty(own, RANGE, TILE)
                tl.debug_barrier()
            matched = 1
            _add_lists(
                own, shared, owned * RANGE, documents, codes, scales, weights, query + chunk * ROW,
                query_scale + chunk, list_scale + chunk, low, high, weight_floor,
                WIDTH, PADDED, ROW, CODEC, FLOOR, WEIGHTS, RANGE, SHARED, BLOCK,
            )  # fmt: skip
    if (matched == 0) & ((was_dirty != 0) | EVERY):
        _empty(own, RANGE, TILE)
    tl.store(dirty + row, matched)
    first = owned * RANGE
    own_maxima = maxima + row * (RANGE // SUB)
    _finish(
        own,
        shared,
        alive + base + first,
        own_maxima,
        matched,
        size - first,
        ALIVE,
        EVERY,
        RANGE,
        SUB,
        TILE,
        SHARED,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    own, shared, alive, maxima, matched, size, ALIVE: tl.constexpr, EVERY: tl.constexpr, RANGE: tl.constexpr,
    SUB: tl.constexpr, TILE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Drop deleted documents, store scores from shared memory, and write the best score of each part."""
    if matched != 0:
        for part in range(RANGE // SUB):
            best = tl.full((), NONE, tl.int32)
            for start in range(part * SUB, (part + 1) * SUB, TILE):  # tiled to save registers
                at = start + tl.arange(0, TILE)
                score = (
                    shared_memory.load(shared, at, at < RANGE, RANGE, GAP)
                    if SHARED != ""
                    else tl.load(own + at)
                )
                if ALIVE:
                    score = tl.where(tl.load(alive + at, mask=at < size, other=0) != 0, score, -float("inf"))
                if ALIVE or (SHARED != ""):
                    tl.store(own + at, score)
                best = tl.maximum(best, tl.max(ordered(score), axis=0))
            if EVERY == 0:
                tl.store(maxima + part, best)
    elif EVERY == 0:
        tl.store(maxima + tl.arange(0, RANGE // SUB), tl.full((RANGE // SUB,), NONE, tl.int32))
