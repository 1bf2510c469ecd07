"""int8 dot products on 32-bit words of four codes, in PTX; Triton's interpreter has neither instruction."""

# ruff: noqa: N803 - Triton constants are upper case

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot4(row, query):  # type: ignore[no-untyped-def]
    """Sum of the four int8 products of each pair of words."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [row, query], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def load4(pointers, mask):  # type: ignore[no-untyped-def]
    """Load four words from each pointer [n] in one request per lane; 0 where the mask is off."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        "@p ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4]; }",
        "=r,=r,=r,=r,l,r", [pointers.to(tl.int64), mask.to(tl.int32)],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def products(codes, query, at, mask, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Integer dot products of rows `at` [n] with a query vector each; WORDS is a multiple of four.

    A lane reads its whole row, so lanes exchange nothing."""
    pointers = codes + at.to(tl.int64) * WORDS
    total = tl.zeros(at.shape, tl.int32)
    for start in tl.static_range(0, WORDS, 8):
        r0, r1, r2, r3 = load4(pointers + start, mask)
        more = mask & (start + 4 < WORDS)
        r4, r5, r6, r7 = load4(pointers + start + 4, more)
        tl.debug_barrier()  # all loads are issued before the first result is used
        q0, q1, q2, q3 = load4(query + start, mask)
        q4, q5, q6, q7 = load4(query + start + 4, more)
        total += dot4(r0, q0) + dot4(r1, q1) + dot4(r2, q2) + dot4(r3, q3)
        total += dot4(r4, q4) + dot4(r5, q5) + dot4(r6, q6) + dot4(r7, q7)
    return total
