"""The chunked router: top keys, Φ and the regularisers' sums of φ = log(1 + ReLU(z)) without keeping z.

For 1,024 passages of 128 tokens z [texts, tokens, V] would take 8 GB in bf16, several times over. Here only
one chunk of texts is in memory at a time; the backward pass recomputes it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 128  # keys per group in the search for the top keys
CHUNK_ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 22}  # of z: 0.5 GB in bf16; 16 MB in fp32, about a CPU cache


class Routed(NamedTuple):
    """Routed texts. Sums run over their routed tokens.

    `weights` and `keys` are the top keys of each token, best first; a weight of 0 is no key. `pooled` is Φ
    (Eq. 7).
    """

    weights: Tensor  # [n, T, L]
    keys: Tensor  # [n, T, L]
    pooled: Tensor  # [n, V]
    mass: Tensor  # [V], summed softmax
    l1: Tensor  # [], summed φ
    active: Tensor  # [], number of φ above 0; no gradient


def route(x: Tensor, word: Tensor, bias: Tensor, routed: Tensor, keys: int, chunk: int = 0) -> Routed:
    """Route texts: x [n, T, h] is the router head's output, `routed` [n, T] marks the tokens with keys.

    >>> word = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> x, routed = torch.tensor([[[0.0, 3.0]]]), torch.tensor([[True]])
    >>> texts = route(x, word, torch.zeros(3), routed, keys=2)
    >>> texts.keys.tolist(), texts.active.item()
    ([[[2, 1]]], 2)
    """
    vocabulary = len(word)
    word, bias = whole_groups(word, bias, x.dtype)
    step = _texts_at_once(x, len(word), chunk)
    parts = _ChunkedRouter.apply(x, word, bias, routed, keys, step)  # type: ignore[no-untyped-call]
    weights, top, pooled, mass, l1, active = parts
    return Routed(weights, top, pooled[:, :vocabulary], mass[:vocabulary], l1, active)


@torch.no_grad()
def route_top(
    x: Tensor, word: Tensor, bias: Tensor, routed: Tensor, keys: int, chunk: int = 0
) -> tuple[Tensor, Tensor]:
    """Weights and keys of the top keys only, each [n, T, L]; for inference.

    >>> word = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> x, routed = torch.tensor([[[0.0, 3.0]]]), torch.tensor([[True]])
    >>> route_top(x, word, torch.zeros(3), routed, keys=1)[1].item()
    2
    """
    word, bias = whole_groups(word, bias, x.dtype)
    step = _texts_at_once(x, len(word), chunk)
    parts = []
    for at in range(0, len(x), step):
        z = _logits(x[at : at + step], word, bias)  # [c, T, V']
        parts.append(_top_alone(z, keys, routed[at : at + step]))
    if len(parts) == 1:
        return parts[0]
    weights, top = (torch.cat(column) for column in zip(*parts, strict=True))
    return weights, top


def _texts_at_once(x: Tensor, width: int, chunk: int) -> int:
    """Number of texts per chunk of z; `chunk` is a number of elements, 0 for the device's default."""
    elements = chunk or CHUNK_ELEMENTS.get(x.device.type, CHUNK_ELEMENTS["cpu"])
    return max(1, elements // (x.shape[1] * width))


def whole_groups(word: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pad the keys to whole groups, which also aligns rows for tensor cores. A padded key is never active.

    >>> word, bias = whole_groups(torch.zeros(130, 2), torch.zeros(130), torch.float32)
    >>> len(word), bias[130].item(), whole_groups(word, bias, torch.float32)[0] is word
    (256, -inf, True)
    """
    pad = -len(word) % GROUP
    if not pad:
        return word.to(dtype), bias.to(dtype)
    return F.pad(word.to(dtype), (0, 0, 0, pad)), F.pad(bias.to(dtype), (0, pad), value=float("-inf"))


class _ChunkedRouter(torch.autograd.Function):
    """Routes `step` texts at a time; backward recomputes the z of each chunk."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, word: Tensor, bias: Tensor, routed: Tensor, keys: int, step: int) -> Any:
        wide = _wide(x.dtype)
        mass, l1 = word.new_zeros(len(word), dtype=wide), word.new_zeros((), dtype=wide)
        active = torch.zeros((), dtype=torch.int64, device=x.device)
        parts = []
        for at in range(0, len(x), step):
            z = _logits(x[at : at + step], word, bias)  # [c, T, V']
            part = _reduce(z, routed[at : at + step])
            mass += part.mass
            l1 += part.l1.sum()
            active += part.active.sum().long()
            parts.append(
                (*_top(z, part.group_best, keys, routed[at : at + step]), part.pooled, part.argmax, part.lse)
            )
        weights, top, pooled, argmax, lse = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(x, word, bias, routed, weights, top, pooled, argmax, lse)
        ctx.step = step
        ctx.mark_non_differentiable(top, active)
        return weights, top, pooled, mass, l1, active

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, word, bias, routed, weights, top, pooled, argmax, lse = ctx.saved_tensors
        to_weights, _, to_pooled, to_mass, to_l1, _ = grads
        # φ = log(1 + z) where z > 0, so dφ/dz = exp(-φ) where φ > 0, and 0 elsewhere.
        to_weights = to_weights * torch.exp(-weights) * (weights > 0)  # [n, T, L]
        to_pooled = to_pooled * torch.exp(-pooled) * (pooled > 0)  # [n, V']
        to_x = torch.empty_like(x)
        wide = _wide(x.dtype)
        to_word, to_bias = torch.zeros_like(word, dtype=wide), torch.zeros_like(bias, dtype=wide)
        for at in range(0, len(x), ctx.step):
            now = slice(at, at + ctx.step)
            z = _logits(x[now], word, bias)  # [c, T, V']
            to_z = _to_logits(z, routed[now], lse[now], argmax[now], to_pooled[now], to_mass, to_l1)
            to_z.scatter_add_(-1, top[now], to_weights[now].to(to_z.dtype))
            flat = to_z.flatten(0, 1)  # [c·T, V']
            to_x[now] = (flat @ word).view_as(x[now])
            if ctx.needs_input_grad[1]:  # False if the embeddings are frozen
                to_word += flat.T @ x[now].flatten(0, 1)
            to_bias += flat.sum(0, dtype=wide)
        return to_x, to_word.to(word.dtype), to_bias.to(bias.dtype), None, None, None


class _Reduced(NamedTuple):
    """Reductions over one chunk of z."""

    pooled: Tensor  # [c, V']
    argmax: Tensor  # [c, V'], the token that gave Φ
    lse: Tensor  # [c, T]
    mass: Tensor  # [V']
    l1: Tensor  # [c, T]
    active: Tensor  # [c, T]
    group_best: Tensor  # [c, T, V' / GROUP]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """At least fp32: sums and differences of φ (Eq. 9) need the precision."""
    return torch.promote_types(dtype, torch.float32)


def _logits(x: Tensor, word: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, word, bias)


def _group_best(z: Tensor) -> Tensor:
    return z.view(*z.shape[:-1], -1, GROUP).amax(-1)  # [c, T, groups]


def _reduce_plain(z: Tensor, routed: Tensor) -> _Reduced:
    wide = z.to(_wide(z.dtype))
    lse = wide.logsumexp(-1)  # [c, T]
    mask = routed[..., None]  # [c, T, 1]
    best, argmax = torch.where(mask, wide, float("-inf")).max(1)  # [c, V']
    mass = torch.where(mask, torch.exp(wide - lse[..., None]), 0).sum((0, 1))  # [V']
    positive = torch.where(mask, wide, 0).clamp(min=0)
    group_best = _group_best(wide)
    pooled = torch.log1p(best.clamp(min=0))
    # Sum by row first: a single long sum leaves a GPU mostly idle.
    l1, active = torch.log1p(positive).sum(-1), (positive > 0).sum(-1)  # [c, T]
    return _Reduced(pooled, argmax, lse, mass, l1, active, group_best)


def _to_logits_plain(
    z: Tensor, routed: Tensor, lse: Tensor, argmax: Tensor, to_pooled: Tensor, to_mass: Tensor, to_l1: Tensor
) -> Tensor:
    """Gradient with respect to z, without the part of the top keys."""
    wide = z.to(_wide(z.dtype))
    p = torch.exp(wide - lse[..., None])  # [c, T, V']
    mean = (p * to_mass).sum(-1, keepdim=True)  # [c, T, 1]
    of_mass = p * (to_mass - mean)
    of_l1 = torch.where(wide > 0, to_l1 / (1 + wide), 0)
    gradient = torch.where(routed[..., None], of_mass + of_l1, 0)
    token = torch.arange(z.shape[1], device=z.device)[None, :, None]
    return (gradient + torch.where(argmax[:, None] == token, to_pooled[:, None], 0)).to(z.dtype)


@cache
def _kernels() -> Any:
    """The Triton kernels, or None if Triton is not installed."""
    try:
        from citadel.model import router_triton
    except ImportError:
        return None
    return router_triton


def _fast(z: Tensor) -> bool:
    return z.is_cuda and z.dtype != torch.float64 and _kernels() is not None


def _reduce(z: Tensor, routed: Tensor) -> _Reduced:
    return _Reduced(*_kernels().reduce(z, routed)) if _fast(z) else _reduce_plain(z, routed)


def _to_logits(z: Tensor, *rest: Tensor) -> Tensor:
    gradient: Tensor = (_kernels().to_logits if _fast(z) else _to_logits_plain)(z, *rest)
    return gradient


def _top(z: Tensor, group_best: Tensor, keys: int, routed: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and keys of the `keys` largest φ per token; ties go to the lower key.

    They are in the `keys` groups with the largest maxima, so the rest of z is not sorted.
    """
    best = group_best.to(z.dtype)  # exact: a maximum of z's own numbers
    groups = largest(best, min(keys, best.shape[-1])).sort(-1).values  # [c, T, k], ascending like the keys
    near = (groups[..., None] * GROUP + torch.arange(GROUP, device=z.device)).flatten(-2)  # [c, T, k·GROUP]
    values = z.gather(-1, near)
    at = largest(values, keys)  # [c, T, k]
    weights = torch.log1p(values.gather(-1, at).to(_wide(z.dtype)).clamp(min=0)) * routed[..., None]
    return weights, near.gather(-1, at)


def _top_alone(z: Tensor, keys: int, routed: Tensor) -> tuple[Tensor, Tensor]:
    """`_top` where nothing else of z is needed: on a GPU in one pass."""
    if not _fast(z) or not _kernels().holds(z, keys):
        return _top(z, _group_best(z), keys, routed)
    values, top = _kernels().top(z, keys)
    return torch.log1p(values.clamp(min=0)) * routed[..., None], top


_INTEGERS = {torch.bfloat16: (torch.int16, torch.int32), torch.float16: (torch.int16, torch.int32)}
_INTEGERS[torch.float32] = (torch.int32, torch.int64)


def largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest values in the last dimension, best first; ties by lower index on every device.

    `topk` does not order ties, which are frequent in bf16, so value and index are packed into one integer.
    For k = 1 `argmax` returns the first maximum with a single kernel.

    >>> largest(torch.tensor([1.0, 3.0, -2.0, 3.0, 3.0]), 4).tolist()
    [1, 3, 4, 0]
    """
    if k == 1:
        return values.argmax(-1, keepdim=True)
    if values.dtype not in _INTEGERS or values.shape[-1] > 1 << 16:
        return values.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    narrow, wide = _INTEGERS[values.dtype]
    bits = values.contiguous().view(narrow).to(wide)
    ordered = torch.where(
        bits < 0, bits ^ torch.iinfo(narrow).max, bits
    )  # integers in the order of the floats
    last = (1 << 16) - 1
    index = torch.arange(values.shape[-1], device=values.device, dtype=wide)
    packed = (ordered << 16) | (last - index)
    return last - (packed.topk(k, dim=-1).values & last)
