"""Errors of missing or unusable GPUs: one sentence with what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
from citadel.errors import ResourceError, UsageError  # noqa: E402
from citadel.search.gpu import device  # noqa: E402
from citadel.search.gpu.device import device_errors, parse_device, use_triton  # noqa: E402


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make torch report a number of GPUs."""

    def set_(devices: int, problem: str = "") -> None:
        def init() -> None:
            if problem:
                raise RuntimeError(problem)

        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "init", init)

    return set_


def test_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(
        UsageError, match="built without CUDA: install one for CUDA, or search with --device cpu"
    ):
        parse_device("cuda")


def test_no_gpu(cuda: Callable[..., None]) -> None:
    cuda(0)
    with pytest.raises(UsageError, match=r"no usable CUDA device: .* --device cpu"):
        parse_device("cuda")


def test_old_driver(cuda: Callable[..., None]) -> None:
    cuda(1, "The NVIDIA driver on your system is too old (found version 11040).\nPlease update")
    with pytest.raises(
        UsageError, match=r"driver is too old .*11040\)\): update it, .* --device cpu"
    ) as error:
        parse_device("cuda")
    assert "\n" not in str(error.value)


def test_device_number_out_of_range(cuda: Callable[..., None]) -> None:
    cuda(2)
    assert parse_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match="no device cuda:2: this machine has 2,"):
        parse_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "cuda:-1"])
def test_unknown_device(name: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        parse_device(name)


def test_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"Triton is missing: .*CITADEL_KERNELS=torch \(slower\), or .*--device cpu"
    ):
        use_triton(torch.device("cuda"))
    monkeypatch.setenv("CITADEL_KERNELS", "torch")
    assert use_triton(torch.device("cuda")) is False
    monkeypatch.setenv("CITADEL_KERNELS", "opencl")
    with pytest.raises(UsageError, match="set it to triton or torch"):
        use_triton(torch.device("cuda"))


def test_out_of_memory_message() -> None:
    words = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139 GiB"
    sentence = r"idx: the GPU is out of memory.*smaller codec.*--gpu-memory SIZE.*--device cpu"
    with pytest.raises(ResourceError, match=sentence), device_errors("idx"):
        raise torch.cuda.OutOfMemoryError(words)


def test_only_cuda_errors_are_converted() -> None:
    with pytest.raises(ResourceError, match="idx: CUDA failed"), device_errors("idx"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    with pytest.raises(RuntimeError, match="a bug"), device_errors("idx"):
        raise RuntimeError("a bug")
