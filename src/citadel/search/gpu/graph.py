"""Record device work as a CUDA graph, which launches its kernels at once and not one by one from Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import torch

WARM_UPS = 2  # runs before a recording, so that kernels are compiled and libraries have allocated

_recording = threading.Lock()  # one recording per process: starting one empties torch's cache under the other


def record(
    device: torch.device, run: Callable[[], None], beside: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """Record what `run` starts on a device, which must be the current one.

    Other threads may use the device meanwhile: the limits of a recording apply to this thread only. The graph
    shares its memory with `beside`: the two must never run at once, and tensors of a run are invalid after
    it.
    """
    current = torch.cuda.current_stream(device)
    with _recording, torch.cuda.stream(current):  # torch does not restore the stream after a failed recording
        stream = _stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = None if beside is None else beside.pool()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            run()
        return graph


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all warm-ups and recordings: cuBLAS keeps a 32 MiB workspace per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def device_ordinal(device: torch.device) -> int | None:
    """The number of a GPU; None for any other device.

    >>> device_ordinal(torch.device("cpu")), device_ordinal(torch.device("cuda:1"))
    (None, 1)
    """
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index
