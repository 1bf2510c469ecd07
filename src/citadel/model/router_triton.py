"""Triton kernels for the router's passes over one chunk of z, which read z once or twice at memory speed.

Compiled from the plain formulas, the passes run at a third of that speed and take half of a training step.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUP = 128
_BLOCK = 2048  # keys per iteration of a row pass
_COLUMNS = 256  # keys per program of a column pass


@triton.jit  # type: ignore[untyped-decorator]
def _rows_kernel(  # type: ignore[no-untyped-def]
    z, routed, lse, l1, active, group_best, width, groups, BLOCK: tl.constexpr, GROUP: tl.constexpr  # noqa: N803
):  # fmt: skip
    """One program per token: logsumexp, Σ φ, number of φ > 0, and the largest z of each group of keys."""
    row = tl.program_id(0).to(tl.int64)
    lives = tl.load(routed + row).to(tl.float32)
    largest = -float("inf")
    total, shrink, alive = 0.0, 0.0, 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(z + row * width + at, mask=at < width, other=-float("inf")).to(tl.float32)  # [BLOCK]
        best = tl.max(tl.reshape(values, (BLOCK // GROUP, GROUP)), axis=1)  # [groups of the block]
        number = start // GROUP + tl.arange(0, BLOCK // GROUP)
        tl.store(group_best + row * groups + number, best, mask=number < groups)
        now = tl.maximum(largest, tl.max(values, axis=0))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(values - now), axis=0)
        largest = now
        shrink += tl.sum(tl.log(1.0 + tl.maximum(values, 0.0)), axis=0)
        alive += tl.sum((values > 0).to(tl.float32), axis=0)
    tl.store(lse + row, largest + tl.log(total))
    tl.store(l1 + row, shrink * lives)
    tl.store(active + row, alive * lives)


@triton.jit  # type: ignore[untyped-decorator]
def _columns_kernel(z, routed, lse, pooled, argmax, mass, length, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """One program per text and block of keys: Φ, its argmax token, and the summed softmax."""
    text = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = at < width
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    token = tl.zeros((BLOCK,), tl.int32)
    summed = tl.zeros((BLOCK,), tl.float32)
    for t in range(length):
        row = text * length + t
        if tl.load(routed + row) != 0:
            values = tl.load(z + row * width + at, mask=valid, other=-float("inf")).to(tl.float32)  # [BLOCK]
            summed += tl.exp(values - tl.load(lse + row))
            token = tl.where(values > best, t, token)
            best = tl.maximum(best, values)
    tl.store(pooled + text * width + at, tl.log(1.0 + tl.maximum(best, 0.0)), mask=valid)
    tl.store(argmax + text * width + at, token, mask=valid)
    tl.atomic_add(mass + at, summed, mask=valid)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_kernel(z, routed, lse, argmax, to_pooled, to_mass, to_l1, length, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """One program per token: replace z by its gradient. The second read of the row hits the cache."""
    row = tl.program_id(0).to(tl.int64)
    text, token = row // length, row % length
    lives = tl.load(routed + row).to(tl.float32)
    total, pull = tl.load(lse + row), tl.load(to_l1)
    mean = 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(z + row * width + at, mask=at < width, other=-float("inf")).to(tl.float32)  # [BLOCK]
        mean += tl.sum(tl.exp(values - total) * tl.load(to_mass + at, mask=at < width, other=0.0), axis=0)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        valid = at < width
        values = tl.load(z + row * width + at, mask=valid, other=-float("inf")).to(tl.float32)  # [BLOCK]
        gradient = tl.exp(values - total) * (tl.load(to_mass + at, mask=valid, other=0.0) - mean)
        gradient += tl.where(values > 0, pull / (1.0 + tl.maximum(values, 0.0)), 0.0)
        chosen = tl.load(argmax + text * width + at, mask=valid, other=-1) == token
        gradient = gradient * lives + tl.where(
            chosen, tl.load(to_pooled + text * width + at, mask=valid, other=0.0), 0.0
        )
        tl.store(z + row * width + at, gradient.to(z.dtype.element_ty), mask=valid)


def reduce(z: Tensor, routed: Tensor) -> tuple[Tensor, ...]:
    """The fields of `router._Reduced` for one chunk z [c, T, V'], as `router._reduce_plain`."""
    texts, length, width = z.shape
    groups = width // GROUP
    new: Any = {"device": z.device, "dtype": torch.float32}
    lse, l1, active = (torch.empty(texts, length, **new) for _ in range(3))
    group_best = torch.empty(texts, length, groups, **new)
    pooled, mass = torch.empty(texts, width, **new), torch.zeros(width, **new)
    argmax = torch.empty(texts, width, device=z.device, dtype=torch.int32)
    marked = routed.to(torch.int8).contiguous()
    _rows_kernel[(texts * length,)](
        z, marked, lse, l1, active, group_best, width, groups, BLOCK=_BLOCK, GROUP=GROUP, num_warps=4
    )
    _columns_kernel[(texts, triton.cdiv(width, _COLUMNS))](
        z, marked, lse, pooled, argmax, mass, length, width, BLOCK=_COLUMNS, num_warps=2
    )
    return pooled, argmax, lse, mass, l1, active, group_best


def to_logits(
    z: Tensor, routed: Tensor, lse: Tensor, argmax: Tensor, to_pooled: Tensor, to_mass: Tensor, to_l1: Tensor
) -> Tensor:
    """Overwrite z with its gradient, as `router._to_logits_plain`."""
    texts, length, width = z.shape
    marked = routed.to(torch.int8).contiguous()
    _gradient_kernel[(texts * length,)](
        z, marked, lse, argmax, to_pooled.contiguous(), to_mass.contiguous(), to_l1, length, width,
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return z
