"""Triton kernel for the tables of pq: pq_tables.py in one launch, bit-equal."""

# ruff: noqa: N803 - Triton constants are upper case

from __future__ import annotations

import triton
import triton.language as tl

from citadel.index import codebook
from citadel.search.gpu import pq_tables

CENTROIDS = tl.constexpr(codebook.CENTROIDS)
TINY = tl.constexpr(pq_tables.TINY)
MAX_SUM = tl.constexpr(pq_tables.MAX_SUM)
BLOCK = tl.constexpr(8)  # sub-vectors per step of a program
ROUND = tl.constexpr(1.5 * 2**23)  # adding and subtracting it rounds numbers below 2²² half to even


@triton.jit  # type: ignore[untyped-decorator]
def _entries(centroids, vector, part, PARTS: tl.constexpr, SUB: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products of sub-vectors `part` [n] with their centroids, summed in order: [n, 256]; 0 past the last."""
    valid = part < PARTS
    pointers = centroids + part[:, None] * (SUB * CENTROIDS) + tl.arange(0, CENTROIDS)[None, :]
    own = vector + part * SUB
    entries = tl.load(pointers, mask=valid[:, None], other=0.0) * tl.load(own, mask=valid, other=0.0)[:, None]
    for dimension in tl.static_range(1, SUB):
        value = tl.load(own + dimension, mask=valid, other=0.0)
        entries += tl.load(pointers + dimension * CENTROIDS, mask=valid[:, None], other=0.0) * value[:, None]
    return entries


@triton.jit  # type: ignore[untyped-decorator]
def _total(centroids, vector, PARTS: tl.constexpr, SUB: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest entry of each sub-vector, added up in order."""
    lane, total = tl.arange(0, BLOCK), 0.0
    for first in range(0, PARTS, BLOCK):
        largest = tl.max(tl.abs(_entries(centroids, vector, first + lane, PARTS, SUB)), axis=1)
        for part in tl.static_range(BLOCK):
            total += tl.sum(tl.where(lane == part, largest, 0.0), axis=0)  # one number and zeros: exact
    return total


@triton.jit  # type: ignore[untyped-decorator]
def table_kernel(  # type: ignore[no-untyped-def]
    centroids, vectors, token_starts, rows, steps, queries, PARTS: tl.constexpr, SUB: tl.constexpr
):
    """One program per token: its table in integer steps, and the step."""
    token = tl.program_id(0).to(tl.int64)
    if token < tl.load(token_starts + queries):  # the rest is padding
        vector = vectors + token * (PARTS * SUB)
        step = tl.div_rn(_total(centroids, vector, PARTS, SUB), float(MAX_SUM - PARTS))
        step = tl.where(step < TINY, 0.0, step)
        tl.store(steps + token, step)
        divisor = tl.where(step > 0.0, step, float("inf"))
        for first in range(0, PARTS, BLOCK):
            part = first + tl.arange(0, BLOCK)
            entry = _entries(centroids, vector, part, PARTS, SUB)
            rounded = tl.div_rn(entry, tl.zeros_like(entry) + divisor) + ROUND - ROUND
            own = rows + (token * PARTS + part[:, None]) * CENTROIDS + tl.arange(0, CENTROIDS)[None, :]
            tl.store(own, rounded.to(tl.int16), mask=part[:, None] < PARTS)
