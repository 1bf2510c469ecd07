"""Recording what a card does as a CUDA graph: its kernels are then started together, not one by one from Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import torch

WARM_UPS = 2  # before a recording, so that kernels are compiled and libraries have their room

_recording = threading.Lock()  # in the process: to begin one empties torch's cache, which another would not survive


def record(
    device: torch.device, run: Callable[[], None], beside: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """What `run` starts on a card, which must be the current one, as a graph.

    Other threads may use the card meanwhile: what is forbidden in a recording is forbidden to this thread alone.
    It shares its memory with `beside`: they must never run at once, and tensors of a run are worth nothing after it.
    """
    here = torch.cuda.current_stream(device)
    with _recording, torch.cuda.stream(here):  # which torch itself does not return to from a recording that fails
        stream = _stream(device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        here.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = None if beside is None else beside.pool()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            run()
        return graph


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all warm-ups and recordings: the matrix library keeps 32 MiB for every stream that it has ever met."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def index_of(device: torch.device) -> int | None:
    """The number of a GPU; None for any other device.

    >>> index_of(torch.device("cpu")), index_of(torch.device("cuda:1"))
    (None, 1)
    """
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index
