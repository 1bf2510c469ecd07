"""Parse device names and turn CUDA's errors into one sentence each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from citadel.errors import ResourceError, UsageError

KERNELS = "CITADEL_KERNELS"  # triton (the default) or torch
_OR_CPU = "or search with --device cpu"


def parse_device(name: str) -> torch.device:
    """The device `cuda`, `cuda:1` or `cpu`; tests run the GPU engine on `cpu`.

    >>> parse_device("cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind not in ("cuda", "cpu") or (number and not number.isdecimal()):
        raise UsageError(f"unknown device {name!r}: choose cuda, cuda:1, {_OR_CPU[3:]}")
    if kind == "cuda":
        _check_cuda(int(number or 0))
    return torch.device(name)


def _check_cuda(number: int) -> None:
    """Check early: torch's own message is a page long, or comes at the first kernel."""
    if torch.version.cuda is None:
        raise UsageError(f"this torch was built without CUDA: install one for CUDA, {_OR_CPU}")
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count:
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UsageError(f"{_cuda_problem(error)}, {_OR_CPU}") from None
    if count == 0:
        raise UsageError(f"no usable CUDA device: check the GPU and its driver with nvidia-smi, {_OR_CPU}")
    if number >= count:
        raise UsageError(
            f"no device cuda:{number}: this machine has {count}, numbered from 0; name another, {_OR_CPU}"
        )


def _cuda_problem(error: RuntimeError) -> str:
    words = str(error).split("\n", 1)[0].rstrip(". ")
    if "driver" in words.lower():
        return f"the NVIDIA driver is too old for this torch ({words}): update it, install an older torch"
    return f"CUDA failed ({words}): check the GPU with nvidia-smi"


def use_triton(device: torch.device) -> bool:
    """Whether to use the Triton kernels; without a GPU only Triton's interpreter runs them."""
    kernels = os.environ.get(KERNELS, "triton")
    if kernels not in ("triton", "torch"):
        raise UsageError(f"{KERNELS} is {kernels!r}: set it to triton or torch")
    if device.type == "cpu":
        return kernels == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if kernels == "triton" and find_spec("triton") is None:
        raise UsageError(f"Triton is missing: pip install triton, set {KERNELS}=torch (slower), {_OR_CPU}")
    return kernels == "triton"


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn out-of-memory and other CUDA errors into a ResourceError about `what`."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        words = str(error).split(". ", 1)[0].removeprefix("CUDA out of memory").strip()
        raise ResourceError(
            f"{what}: the GPU is out of memory{f' ({words})' if words else ''}: build the index with a "
            f"smaller codec (pq2 takes a quarter of int8), keep rare lists in host memory with "
            f"--gpu-memory SIZE, {_OR_CPU}"
        ) from None
    except RuntimeError as error:
        if "CUDA" not in str(error):
            raise
        raise ResourceError(f"{what}: {_cuda_problem(error)}, {_OR_CPU}") from None
