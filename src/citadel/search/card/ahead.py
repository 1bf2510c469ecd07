"""Asking for what will be read soon, by PTX: it is then in the second cache, and nobody has waited for it.

A program reads its parts of a query's lists one block after the other, and each block would wait for the card's memory;
all of them are asked for at once before the first is read. Only a GPU has it; what is read stays the same without.
"""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

POSTINGS = tl.constexpr(64)  # of a list's part, that are asked for line by line: those behind them are read unasked
LINE = tl.constexpr(128)  # bytes


@triton.jit  # type: ignore[untyped-decorator]
def fetch(  # type: ignore[no-untyped-def]
    documents, codes, scales, weights, low, high,
    WIDTH: tl.constexpr, CODEC: tl.constexpr, WEIGHTS: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """Ask for postings low … high of some lists [n]: "bulk", in one request a column, or in "lines"."""
    wide: tl.constexpr = WIDTH // 4 if CODEC == "int8x4" else WIDTH  # elements
    _column(codes + low * wide, codes + high * wide, WIDTH * (2 if CODEC == "fp16" else 1), HOW)
    _column(documents + low, documents + high, 4, HOW)
    if (CODEC == "int8x4") or (CODEC == "int8"):
        _column(scales + low, scales + high, 2, HOW)
    if WEIGHTS:
        _column(weights + low, weights + high, 1, HOW)


@triton.jit  # type: ignore[untyped-decorator]
def _column(begin, end, BYTES: tl.constexpr, HOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ask for what lies between two places of the card's memory; a posting takes so many bytes."""
    begin, end = begin.to(tl.int64), end.to(tl.int64)
    if HOW == "bulk":  # Hopper and later
        _bulk(begin, end)
    else:
        pair = tl.arange(0, 2) * LINE
        for start in tl.static_range(0, POSTINGS * BYTES, 2 * LINE):
            at = (begin & -LINE)[:, None] + (start + pair)[None, :]
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.lt.s64 p, $1, $2; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
                "=r,l,l", [at, end[:, None]], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip


@triton.jit
def _bulk(begin, end):  # type: ignore[no-untyped-def]
    """Addresses and sizes are whole sixteens; lanes that ask for the same ask once."""
    size = tl.where(begin < end, (end - (begin & -16) + 15) & -16, 0).to(tl.int32)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, $2; }",
        "=r,l,r", [begin & -16, size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
