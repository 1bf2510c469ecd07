"""The scores of a range in a GPU's shared memory, in PTX: Triton has no scatter into it.

A score is read and written once per posting, which takes a few cycles in shared memory and a whole sector of
the L2 cache otherwise. Without a GPU, as in Triton's interpreter, scores stay in global memory (kernels.py).
"""

# ruff: noqa: N803 - Triton constants are upper case

from __future__ import annotations

import triton
import triton.language as tl

SKEW = 8  # words between the quarters of a range; avoids bank conflicts of scalar and vector accesses

TABLE = 16  # entries per table; there are two


def declaration(width: int) -> str:
    """PTX that declares the scores of `width` documents and two tables, and returns their address.

    >>> declaration(256)
    '{ .shared .align 16 .b8 own[1408]; mov.u32 $0, own; }'
    """
    return f"{{ .shared .align 16 .b8 own[{4 * (width + 4 * SKEW) + 2 * 8 * TABLE}]; mov.u32 $0, own; }}"


@triton.jit  # type: ignore[untyped-decorator]
def reserve(DECLARATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Declare the shared memory; return its address."""
    return tl.inline_asm_elementwise(
        DECLARATION, "=r,r", [tl.full((), 0, tl.int32)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def clear(base, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Set all scores to −∞, four per store."""
    four = tl.arange(0, WIDTH // 4)
    address = base + (four // (WIDTH // 16) * (WIDTH // 4 + GAP) + four % (WIDTH // 16) * 4) * 4
    tl.inline_asm_elementwise(
        "{ .reg .f32 n; mov.f32 n, 0fFF800000; st.shared.v4.f32 [$1], {n, n, n, n}; mov.b32 $0, $1; }",
        "=r,r", [address], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _address(base, at, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    return base + ((at & 3) * (WIDTH // 4 + GAP) + (at >> 2)) * 4


@triton.jit  # type: ignore[untyped-decorator]
def load(base, at, mask, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The scores of documents `at` of the range; 0 where the mask is off."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.shared.f32 $0, [$1]; }",
        "=f,r,r", [_address(base, at, WIDTH, GAP), mask.to(tl.int32)],
        dtype=tl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def store(base, at, score, mask, WIDTH: tl.constexpr, GAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the scores of documents `at` of the range."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.shared.f32 [$1], $2; mov.b32 $0, $1; }",
        "=r,r,f,r", [_address(base, at, WIDTH, GAP), score, mask.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _entry(base, at, NUMBER: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, ENTRIES: tl.constexpr):  # type: ignore[no-untyped-def]
    return base + 4 * (WIDTH + 4 * GAP) + (NUMBER * ENTRIES + at) * 8


@triton.jit  # type: ignore[untyped-decorator]
def store_table(  # type: ignore[no-untyped-def]
    base, value, NUMBER: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, ENTRIES: tl.constexpr
):
    """Fill a table with int64 values [ENTRIES]."""
    address = _entry(base, tl.arange(0, ENTRIES), NUMBER, WIDTH, GAP, ENTRIES)
    tl.inline_asm_elementwise(
        "st.shared.b64 [$1], $2; mov.b32 $0, $1;",
        "=r,r,l",
        [address, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def load_table(  # type: ignore[no-untyped-def]
    base, at, NUMBER: tl.constexpr, WIDTH: tl.constexpr, GAP: tl.constexpr, ENTRIES: tl.constexpr
):
    """Read entries of a table."""
    address = _entry(base, at, NUMBER, WIDTH, GAP, ENTRIES)
    return tl.inline_asm_elementwise(
        "ld.shared.b64 $0, [$1];", "=l,r", [address], dtype=tl.int64, is_pure=False, pack=1
    )
