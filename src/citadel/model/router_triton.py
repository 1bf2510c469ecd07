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
_MAX_GROUPS = 512  # of keys, whose logits one program holds in registers
_MAX_TOP = 16


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


@triton.jit  # type: ignore[untyped-decorator]
def _top_kernel(z, values, top, width, groups, K: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """One program per token: its K largest z and their keys, best first; ties by lower key.

    What is left after (value, key) was taken are the smaller values, and equal ones of higher keys.
    """
    row = tl.program_id(0).to(tl.int64)
    group, lane = tl.arange(0, GROUPS), tl.arange(0, GROUP)
    at = group[:, None] * GROUP + lane[None, :]  # [GROUPS, GROUP]
    tile = tl.load(z + row * width + at, mask=group[:, None] < groups, other=-float("inf"))
    best = tl.max(tile.to(tl.float32), axis=1)  # [GROUPS]
    last_value, last_key = float("inf"), -1
    for number in tl.static_range(K):
        value = tl.max(best, axis=0)
        chosen = tl.min(tl.where(best == value, group, GROUPS - 1), axis=0)
        near = tl.load(z + row * width + chosen * GROUP + lane).to(tl.float32)  # [GROUP]
        keys = chosen * GROUP + lane
        is_left = (near < last_value) | ((near == last_value) & (keys > last_key))
        key = tl.min(tl.where(is_left & (near == value), keys, GROUPS * GROUP), axis=0)
        tl.store(values + row * K + number, value)
        tl.store(top + row * K + number, key.to(tl.int64))
        is_left = (near < value) | ((near == value) & (keys > key))
        rest = tl.max(tl.where(is_left, near, -float("inf")), axis=0)
        best = tl.where(group == chosen, rest, best)
        last_value, last_key = value, key


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


def holds(z: Tensor, keys: int) -> bool:
    """Whether `top` can find this many keys."""
    return z.shape[-1] <= _MAX_GROUPS * GROUP and keys <= min(_MAX_TOP, z.shape[-1])


def top(z: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """The largest z of each token and their keys, best first, each [c, T, keys]; ties go to the lower key."""
    texts, length, width = z.shape
    groups = width // GROUP
    values = torch.empty(texts, length, keys, device=z.device, dtype=torch.float32)
    chosen = torch.empty(texts, length, keys, device=z.device, dtype=torch.int64)
    size = triton.next_power_of_2(groups)
    _top_kernel[(texts * length,)](
        z, values, chosen, width, groups, K=keys, GROUPS=size, GROUP=GROUP, num_warps=16
    )
    return values, chosen
