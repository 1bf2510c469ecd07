"""Which card to search on, and what to say where there is none that can be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from citadel.errors import ResourceError, UsageError

KERNELS = "CITADEL_KERNELS"  # triton (the default) or torch
_AWAY = "or search with --device cpu"


def find_card(name: str) -> torch.device:
    """The device of that name: `cuda`, `cuda:1`, or `cpu`, where the same steps run for tests.

    >>> find_card("cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind not in ("cuda", "cpu") or (number and not number.isdecimal()):
        raise UsageError(f"unknown device {name!r}: choose cuda, cuda:1, {_AWAY[3:]}")
    if kind == "cuda":
        _check_cuda(int(number or 0))
    return torch.device(name)


def _check_cuda(number: int) -> None:
    """torch's own words for these are a page long, or come at the first kernel."""
    if torch.version.cuda is None:
        raise UsageError(f"this torch was built without CUDA: install one for CUDA, {_AWAY}")
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count:
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UsageError(f"{_cuda_trouble(error)}, {_AWAY}") from None
    if count == 0:
        raise UsageError(f"no CUDA card can be used here: look what nvidia-smi says of it and its driver, {_AWAY}")
    if number >= count:
        raise UsageError(f"there is no cuda:{number}, only {count}, counted from 0: name another, {_AWAY}")


def _cuda_trouble(error: RuntimeError) -> str:
    words = str(error).split("\n", 1)[0].rstrip(". ")
    if "driver" in words.lower():
        return f"the NVIDIA driver is too old for this torch ({words}): update it, install a torch for its version"
    return f"CUDA does not start ({words}): look what nvidia-smi says"


def use_triton(device: torch.device) -> bool:
    """Whether the kernels are Triton's; without a GPU only its interpreter can run them."""
    wanted = os.environ.get(KERNELS, "triton")
    if wanted not in ("triton", "torch"):
        raise UsageError(f"{KERNELS} is {wanted!r}: set it to triton or torch")
    if device.type == "cpu":
        return wanted == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if wanted == "triton" and find_spec("triton") is None:
        raise UsageError(f"Triton is missing: pip install triton, set {KERNELS}=torch (slower), {_AWAY}")
    return wanted == "triton"


@contextmanager
def card_memory(what: str) -> Iterator[None]:
    """Out of memory on the card, as one sentence; what the card's driver refuses for another reason too."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        words = str(error).split(". ", 1)[0].removeprefix("CUDA out of memory").strip()
        raise ResourceError(
            f"{what}: the card's memory is full{f' ({words})' if words else ''}: build the index with a smaller codec "
            f"(pq2 takes a quarter of int8), keep rare lists in the machine's memory with --card-memory SIZE, {_AWAY}"
        ) from None
    except RuntimeError as error:
        if "CUDA" not in str(error):
            raise
        raise ResourceError(f"{what}: {_cuda_trouble(error)}, {_AWAY}") from None
