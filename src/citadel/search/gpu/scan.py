"""Triton kernel for the semantic scan: adds every document's semantic product to its token score."""

# ruff: noqa: N803 - Triton constants are upper case

from __future__ import annotations

import triton
import triton.language as tl

from citadel.search.gpu.kernels import NONE, ordered, products


@triton.jit  # type: ignore[untyped-decorator]
def scan_kernel(  # type: ignore[no-untyped-def]
    scores, alive, codes, scales, query, query_scale, maxima, borders, spans, queries, ranges,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CODEC: tl.constexpr, ALIVE: tl.constexpr, RANGE: tl.constexpr,
    SUB: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per part of a range and group of queries: final scores, and the part's best."""
    part, tile = tl.program_id(0), tl.program_id(1)
    border = tl.load(borders + part // (RANGE // SUB))
    first = border + (part % (RANGE // SUB)) * SUB
    end = tl.minimum(border + tl.load(spans + part // (RANGE // SUB)), first + SUB)
    shift = part.to(tl.int64) * SUB - first  # from a document number to the offset of its score
    number = tile * QUERIES + tl.arange(0, QUERIES)
    active = number < queries
    factor = tl.load(query_scale + number, mask=active, other=0.0)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    if CODEC == "int8":  # integers, so sums of the tensor cores are exact
        given = query + number[None, :] * WIDTH + column[:, None]
        rows = tl.load(given, mask=active[None, :] & inside[:, None], other=0)
    best = tl.full((QUERIES,), NONE, tl.int32)
    for start in tl.range(first, end, BLOCK, num_stages=STAGES):
        at = start + tl.arange(0, BLOCK)
        valid = at < end
        if CODEC == "int8":
            pointers = codes + at[:, None] * WIDTH + column[None, :]
            dots = tl.dot(tl.load(pointers, mask=valid[:, None] & inside[None, :], other=0), rows).to(
                tl.float32
            )
            value = (
                dots * tl.load(scales + at, mask=valid, other=0.0).to(tl.float32)[:, None] * factor[None, :]
            )
        else:
            value = products(codes, scales, query + tile * WIDTH, at, valid, WIDTH, PADDED, CODEC)[:, None]
        own = scores + number.to(tl.int64)[None, :] * (ranges * RANGE) + (at + shift)[:, None]
        mask = valid[:, None] & active[None, :]
        score = tl.load(own, mask=mask, other=0.0)
        score = tl.where(score == -float("inf"), 0.0, score) + value
        if ALIVE:
            score = tl.where(tl.load(alive + at, mask=valid, other=0)[:, None] != 0, score, -float("inf"))
        score = tl.where(mask, score, -float("inf"))
        tl.store(own, score, mask=mask)
        best = tl.maximum(best, tl.max(ordered(score), axis=0))
    tl.store(maxima + number.to(tl.int64) * (ranges * (RANGE // SUB)) + part, best, mask=active)
