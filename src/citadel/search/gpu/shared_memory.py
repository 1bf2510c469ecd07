"""A multiprocessor's shared memory as room for the scores of a range, by PTX: Triton has no scatter into it.

A sum that a program makes of a few hundred postings is read and written once for each; in shared memory that is a few
cycles, in the caches it is a whole sector through the second one. Only a GPU has it: elsewhere, and in Triton's
interpreter, scores stay in the card's memory (kernels.py).
"""

# ruff: noqa: N803 - Triton's constants are written in capitals

from __future__ import annotations

import triton
import triton.language as tl

SKEW = 8  # words between the quarters of a range, so that neither single nor fourfold accesses in a row meet in a bank

TABLE = 16  # whole numbers that each of two tables holds


def declaration(width: int) -> str:
    """PTX that makes room for the scores of so many documents, behind it for two tables, and gives its address.

    >>> declaration(256)
    '{ .shared .align 16 .b8 own[1408]; mov.u32 $0, own; }'
    """
    return f"{{ .shared .align 16 .b8 own[{4 * (width + 4 * SKEW) + 2 * 8 * TABLE}]; mov.u32 $0, own; }}"


@triton.jit  # type: ignore[untyped-decorator]
def reserve(DECLARATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """The address of the room."""
    return tl.inline_asm_elementwise(
        DECLARATION, "=r,r", [tl.full((), 0, tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def clear(room, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """No document has a score: −∞, four at a time."""
    four = tl.arange(0, WIDTH // 4)
    place = room + (four // (WIDTH // 16) * (WIDTH // 4 + GAP) + four % (WIDTH // 16) * 4) * 4
    tl.inline_asm_elementwise(
        "{ .reg .f32 n; mov.f32 n, 0fFF800000; st.shared.v4.f32 [$1], {n, n, n, n}; mov.b32 $0, $1; }",
        "=r,r", [place], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _address(room, at, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    return room + ((at & 3) * (WIDTH // 4 + GAP) + (at >> 2)) * 4


@triton.jit  # type: ignore[untyped-decorator]
def read(room, at, there, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The scores of documents `at` of the range; 0 where nobody is there."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.shared.f32 $0, [$1]; }",
        "=f,r,r", [_address(room, at, WIDTH, GAP), there.to(tl.int32)], dtype=tl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def write(room, at, score, there, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Set the scores of documents `at` of the range."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.shared.f32 [$1], $2; mov.b32 $0, $1; }",
        "=r,r,f,r", [_address(room, at, WIDTH, GAP), score, there.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _entry(room, at, NUMBER: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, ENTRIES: tl.constexpr):  # type: ignore[no-untyped-def]
    return room + 4 * (WIDTH + 4 * GAP) + (NUMBER * ENTRIES + at) * 8


@triton.jit  # type: ignore[untyped-decorator]
def note(  # type: ignore[no-untyped-def]
    room, value, NUMBER: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, ENTRIES: tl.constexpr
):
    """Fill a table with 64-bit numbers [ENTRIES]."""
    place = _entry(room, tl.arange(0, ENTRIES), NUMBER, WIDTH, GAP, ENTRIES)
    tl.inline_asm_elementwise(
        "st.shared.b64 [$1], $2; mov.b32 $0, $1;", "=r,r,l", [place, value], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def noted(  # type: ignore[no-untyped-def]
    room, at, NUMBER: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, ENTRIES: tl.constexpr
):
    """Entries of a table."""
    place = _entry(room, at, NUMBER, WIDTH, GAP, ENTRIES)
    return tl.inline_asm_elementwise("ld.shared.b64 $0, [$1];", "=l,r", [place], dtype=tl.int64, is_pure=False, pack=1)
