"""Recording of CUDA graphs; replaying one needs a GPU (`tests/model/test_recorded.py`)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
import torch

from citadel.search.gpu import graph


@pytest.fixture
def cuda() -> Any:
    """A mock of torch.cuda."""
    graph._stream.cache_clear()
    with mock.patch.object(torch, "cuda") as cuda:
        yield cuda
    graph._stream.cache_clear()


def test_warm_ups_and_recording_share_a_stream(cuda: Any) -> None:
    """Each further stream would cost another cuBLAS workspace."""
    run, device = mock.Mock(), torch.device("cuda:0")
    first = graph.record(device, run)
    assert run.call_count == graph.WARM_UPS + 1
    graph.record(device, run, beside=first)
    assert cuda.Stream.call_count == 1
    stream = cuda.Stream.return_value
    assert [call.kwargs["stream"] for call in cuda.graph.call_args_list] == [stream, stream]
    assert [call.kwargs["pool"] for call in cuda.graph.call_args_list] == [None, first.pool()]


def test_recording_does_not_block_other_threads(cuda: Any) -> None:
    graph.record(torch.device("cuda:0"), mock.Mock())
    assert cuda.graph.call_args.kwargs["capture_error_mode"] == "thread_local"


def test_failed_recording_releases_lock_and_stream(cuda: Any) -> None:
    with pytest.raises(RuntimeError, match="full"):
        graph.record(torch.device("cuda:0"), mock.Mock(side_effect=RuntimeError("full")))
    assert not graph._recording.locked()
    outermost = cuda.stream.call_args_list[0]
    assert outermost.args == (cuda.current_stream.return_value,)  # restored after the recording
