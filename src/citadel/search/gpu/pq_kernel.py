"""What makes the tables of pq, as a Triton kernel: pq_tables.py in one launch, equal to the last bit."""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

from citadel.index import codebook
from citadel.search.gpu import pq_tables

CENTROIDS = tl.constexpr(codebook.CENTROIDS)
TINY = tl.constexpr(pq_tables.TINY)
MOST = tl.constexpr(pq_tables.MOST)
TOGETHER = tl.constexpr(8)  # sub-vectors that a program looks at together
WHOLE = tl.constexpr(1.5 * 2**23)  # a number below 2²² loses what is behind its point, half to even, when added to it


@triton.jit  # type: ignore[untyped-decorator]
def _entries(centroids, vector, part, PARTS: tl.constexpr, SUB: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sub-vectors `part` [n] times their centroids, dimensions in order: [n, 256]; 0 behind the last sub-vector."""
    there = part < PARTS
    place = centroids + part[:, None] * (SUB * CENTROIDS) + tl.arange(0, CENTROIDS)[None, :]
    own = vector + part * SUB
    found = tl.load(place, mask=there[:, None], other=0.0) * tl.load(own, mask=there, other=0.0)[:, None]
    for dimension in tl.static_range(1, SUB):
        asked = tl.load(own + dimension, mask=there, other=0.0)
        found += tl.load(place + dimension * CENTROIDS, mask=there[:, None], other=0.0) * asked[:, None]
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _total(centroids, vector, PARTS: tl.constexpr, SUB: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest entry of each sub-vector, added up in order."""
    lane, total = tl.arange(0, TOGETHER), 0.0
    for first in range(0, PARTS, TOGETHER):
        largest = tl.max(tl.abs(_entries(centroids, vector, first + lane, PARTS, SUB)), axis=1)
        for part in tl.static_range(TOGETHER):
            total += tl.sum(tl.where(lane == part, largest, 0.0), axis=0)  # one number and zeros: exact
    return total


@triton.jit  # type: ignore[untyped-decorator]
def table_kernel(  # type: ignore[no-untyped-def]
    centroids, vectors, token_starts, rows, steps, queries, PARTS: tl.constexpr, SUB: tl.constexpr
):
    """One program a token: its table in whole steps, and the step."""
    token = tl.program_id(0).to(tl.int64)
    if token < tl.load(token_starts + queries):  # behind it there are no tokens, only room for them
        vector = vectors + token * (PARTS * SUB)
        step = tl.div_rn(_total(centroids, vector, PARTS, SUB), float(MOST - PARTS))
        step = tl.where(step < TINY, 0.0, step)
        tl.store(steps + token, step)
        divisor = tl.where(step > 0.0, step, float("inf"))
        for first in range(0, PARTS, TOGETHER):
            part = first + tl.arange(0, TOGETHER)
            entry = _entries(centroids, vector, part, PARTS, SUB)
            whole = tl.div_rn(entry, tl.zeros_like(entry) + divisor) + WHOLE - WHOLE
            own = rows + (token * PARTS + part[:, None]) * CENTROIDS + tl.arange(0, CENTROIDS)[None, :]
            tl.store(own, whole.to(tl.int16), mask=part[:, None] < PARTS)
