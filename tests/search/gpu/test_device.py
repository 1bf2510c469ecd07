"""What is said where no card can be used: one sentence with the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
from citadel.errors import ResourceError, UsageError  # noqa: E402
from citadel.search.gpu import device  # noqa: E402
from citadel.search.gpu.device import card_memory, find_card, use_triton  # noqa: E402


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make torch say that it has so many cards."""

    def set_(cards: int, trouble: str = "") -> None:
        def init() -> None:
            if trouble:
                raise RuntimeError(trouble)

        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
        monkeypatch.setattr(torch.cuda, "init", init)

    return set_


def test_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UsageError, match="built without CUDA: install one for CUDA, or search with --device cpu"):
        find_card("cuda")


def test_no_card(cuda: Callable[..., None]) -> None:
    cuda(0)
    with pytest.raises(UsageError, match=r"no CUDA card can be used.* --device cpu"):
        find_card("cuda")


def test_an_old_driver(cuda: Callable[..., None]) -> None:
    cuda(1, "The NVIDIA driver on your system is too old (found version 11040).\nPlease update")
    with pytest.raises(UsageError, match=r"driver is too old .*11040\)\): update it, .* --device cpu") as error:
        find_card("cuda")
    assert "\n" not in str(error.value)


def test_another_card_than_there_is(cuda: Callable[..., None]) -> None:
    cuda(2)
    assert find_card("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match="no cuda:2, only 2"):
        find_card("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "cuda:-1"])
def test_an_unknown_name(name: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        find_card(name)


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"Triton is missing: .*CITADEL_KERNELS=torch \(slower\), or .*--device cpu"):
        use_triton(torch.device("cuda"))
    monkeypatch.setenv("CITADEL_KERNELS", "torch")
    assert use_triton(torch.device("cuda")) is False
    monkeypatch.setenv("CITADEL_KERNELS", "opencl")
    with pytest.raises(UsageError, match="set it to triton or torch"):
        use_triton(torch.device("cuda"))


def test_out_of_memory_is_one_sentence() -> None:
    words = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139 GiB"
    sentence = r"idx: the card's memory is full.*smaller codec.*--device cpu"
    with pytest.raises(ResourceError, match=sentence), card_memory("idx"):
        raise torch.cuda.OutOfMemoryError(words)


def test_other_errors_of_the_card_and_of_the_program() -> None:
    with pytest.raises(ResourceError, match="idx: CUDA does not start"), card_memory("idx"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    with pytest.raises(RuntimeError, match="a bug"), card_memory("idx"):
        raise RuntimeError("a bug")
