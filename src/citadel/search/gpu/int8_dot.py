"""int8 codes four to a 32-bit word, as a GPU multiplies them, by PTX; Triton's interpreter has neither instruction."""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fours(row, asked):  # type: ignore[no-untyped-def]
    """Products of whole numbers, four a word, added up."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [row, asked], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def four(place, there):  # type: ignore[no-untyped-def]
    """Four words from each place on [n], one lane's in one request; 0 where nobody is there."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        "@p ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4]; }",
        "=r,=r,=r,=r,l,r", [place.to(tl.int64), there.to(tl.int32)],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def products(codes, query, at, there, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows `at` of a multiple of four words, each with its own query vector: whole numbers [n].

    A row is one lane's, so that lanes hold what they need and nothing passes between them."""
    place = codes + at.to(tl.int64) * WORDS
    whole = tl.zeros(at.shape, tl.int32)
    for start in tl.static_range(0, WORDS, 8):
        r0, r1, r2, r3 = four(place + start, there)
        more = there & (start + 4 < WORDS)
        r4, r5, r6, r7 = four(place + start + 4, more)
        tl.debug_barrier()  # or the first would be waited for before the last is asked for
        q0, q1, q2, q3 = four(query + start, there)
        q4, q5, q6, q7 = four(query + start + 4, more)
        whole += fours(r0, q0) + fours(r1, q1) + fours(r2, q2) + fours(r3, q3)
        whole += fours(r4, q4) + fours(r5, q5) + fours(r6, q6) + fours(r7, q7)
    return whole
