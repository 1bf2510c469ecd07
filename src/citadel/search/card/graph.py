"""Recording what a card does as a CUDA graph: its kernels are then started together, not one by one from Python."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

WARM_UPS = 2  # before a recording, so that kernels are compiled and libraries have their room

_recording = threading.Lock()  # in the process: to begin one empties torch's cache, which another would not survive


def record(device: torch.device, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """What `run` starts on a card, which must be the current one, as a graph.

    Other threads may use the card meanwhile: what is forbidden in a recording is forbidden to this thread alone.
    """
    with _recording:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        return graph


def index_of(device: torch.device) -> int | None:
    """The number of a GPU; None for any other device.

    >>> index_of(torch.device("cpu")), index_of(torch.device("cuda:1"))
    (None, 1)
    """
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index
