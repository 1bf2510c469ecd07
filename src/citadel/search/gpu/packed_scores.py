"""A score and a document number in one int64: larger is better, equal scores by lower number."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.types import Floats

NOTHING = -(1 << 63)
_LOW = 0xFFFFFFFF


def pack(scores: Tensor, documents: Tensor) -> Tensor:
    """Pack scores with document numbers; NOTHING for a document below 0 or a score of −∞.

    >>> packed = pack(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([7, 9, 4]))
    >>> unpack(torch.sort(packed, descending=True).values.numpy())[0].tolist()
    [4, 9, 7]
    """
    bits = torch.where(scores == 0, 0.0, scores).view(torch.int32)
    order = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).long()
    packed = (order << 32) | (_LOW - documents)
    return torch.where((documents >= 0) & ~torch.isneginf(scores), packed, NOTHING)


def documents_of(packed: Tensor) -> Tensor:
    """Document numbers; -1 for NOTHING."""
    return torch.where(packed == NOTHING, -1, _LOW - (packed & _LOW))


def unpack(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
    """Document numbers and scores of a sorted row, without NOTHING at its end.

    >>> numbers, scores = unpack(pack(torch.tensor([-1.5]), torch.tensor([3])).numpy())
    >>> numbers.tolist(), scores.tolist()
    ([3], [-1.5])
    """
    if len(packed) and packed[-1] == NOTHING:
        packed = packed[packed != NOTHING]
    return decode(packed)


def decode(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
    """Document numbers and scores of sorted rows without NOTHING."""
    halves = packed.view(np.int32)  # little-endian: the low half, the document, comes first
    numbers = np.invert(halves[..., ::2]).view(np.uint32).astype(np.int64)
    order = halves[..., 1::2].copy()  # the buffer is reused by the next search
    has_negative = packed.size and (packed[-1] if packed.ndim == 1 else packed[:, -1].min()) < 0
    if has_negative:
        order ^= (order >> 31) & 0x7FFFFFFF
    return numbers, order.view(np.float32)


def top(packed: Tensor, k: int) -> Tensor:
    """The k largest values of each row, or all, largest first."""
    return torch.topk(packed, min(k, packed.shape[1]), dim=1, sorted=True).values
