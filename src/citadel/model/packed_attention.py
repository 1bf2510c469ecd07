"""Attention within texts that follow each other in one sequence, without padding; on a GPU only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # versions of torch without it
    varlen_attn: Any = None  # type: ignore[no-redef]


def can_attend(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device can attend over packed texts in this precision."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and varlen_attn is not None
    )


def attend(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:
    """Attention within each text: q, k and v are [N, heads, h/heads], and text i has rows starts[i] to
    starts[i + 1].
    """
    mixed: Any = varlen_attn(q, k, v, starts, starts, longest, longest)
    assert isinstance(mixed, Tensor)
    return mixed
