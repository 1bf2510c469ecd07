"""The chunked router and its kernels against the plain formula: values and gradients."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from citadel.model.router import GROUP, Routed, route, route_top
from citadel.routing.dynamic import top_keys
from tests.support.children import ROOT, environment

WITH_GRADIENT = ("weights", "pooled", "mass", "l1")


def plain(x: Tensor, word: Tensor, bias: Tensor, routed: Tensor, keys: int) -> Routed:
    """The routing formulas on all of z at once."""
    z = x @ word.T + bias  # [n, T, V]
    mask = routed[..., None]
    phi = torch.log1p(z.relu()) * mask
    weights, actual = phi.topk(keys, -1)
    mass = (z.softmax(-1) * mask).sum((0, 1))
    return Routed(weights, actual, phi.amax(1), mass, phi.sum(), (phi > 0).sum())


def world(
    seed: int, n: int, length: int, hidden: int, vocabulary: int, shift: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    new: dict[str, Any] = {"dtype": torch.float64, "requires_grad": True}
    x, word = torch.randn(n, length, hidden, **new), torch.randn(vocabulary, hidden, **new)
    bias = (torch.randn(vocabulary, dtype=torch.float64) - shift).requires_grad_()
    return x, word, bias, torch.rand(n, length) > 0.3


def weighted_sum(actual: Routed, seed: int) -> Tensor:
    """A scalar that depends on every output with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    pulls = [getattr(actual, name) for name in WITH_GRADIENT]
    terms = [(t * torch.randn(t.shape, dtype=t.dtype, generator=generator)).sum() for t in pulls]
    return torch.stack(terms).sum()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 20),
    n=st.integers(1, 5),
    length=st.integers(1, 6),
    vocabulary=st.sampled_from([7, GROUP - 1, GROUP, 3 * GROUP + 5]),
    keys=st.integers(1, 7),
    chunk=st.sampled_from([1, 2000, 1 << 20]),
    shift=st.sampled_from([0.0, 4.0]),
)
def test_values_and_gradients_equal_the_plain_formula(
    seed: int, n: int, length: int, vocabulary: int, keys: int, chunk: int, shift: float
) -> None:
    x, word, bias, routed = world(seed, n, length, 4, vocabulary, shift)
    wanted, actual = plain(x, word, bias, routed, keys), route(x, word, bias, routed, keys, chunk)
    for name in (*WITH_GRADIENT, "active"):
        torch.testing.assert_close(getattr(actual, name), getattr(wanted, name))
    mask = wanted.weights > 0
    assert torch.equal(actual.keys[mask], wanted.keys[mask])
    inputs = (x, word, bias)
    for one, other in zip(
        torch.autograd.grad(weighted_sum(actual, seed), inputs),
        torch.autograd.grad(weighted_sum(wanted, seed), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_gradcheck() -> None:
    x, word, bias, _ = world(3, 2, 2, 3, 5, 0.0)
    routed = torch.tensor([[True, True], [True, False]])

    def differentiable(x: Tensor, word: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        actual = route(x, word, bias, routed, 2, chunk=1)
        return tuple(getattr(actual, name) for name in WITH_GRADIENT)

    z = (x @ word.T + bias)[routed].detach()
    assert z.abs().min() > 1e-3 and torch.pdist(z.flatten()[:, None]).min() > 1e-4  # no ties, none near 0
    assert torch.autograd.gradcheck(differentiable, (x, word, bias))


def test_small_example() -> None:
    word, bias = torch.eye(3), torch.tensor([0.0, 0.0, 1.0])
    x = torch.tensor([[[3.0, -1.0, 0.0], [1.0, 7.0, 9.0]]])  # the second token is not routed
    actual = route(x, word, bias, torch.tensor([[True, False]]), keys=2)
    log = torch.log
    four, two = log(torch.tensor(4.0)), log(torch.tensor(2.0))
    torch.testing.assert_close(actual.weights, torch.stack([torch.stack([four, two]), torch.zeros(2)])[None])
    assert actual.keys[0, 0].tolist() == [0, 2] and int(actual.active) == 2
    torch.testing.assert_close(actual.pooled, torch.stack([four, torch.tensor(0.0), two])[None])
    torch.testing.assert_close(actual.l1, four + two)
    torch.testing.assert_close(actual.mass, torch.tensor([3.0, -1.0, 1.0]).softmax(-1))


def test_z_is_not_saved_for_backward() -> None:
    n, length, vocabulary = 6, 8, 5 * GROUP
    x, word, bias, routed = world(0, n, length, 4, vocabulary, 0.0)
    sizes: list[int] = []

    def note(kept: Tensor) -> Tensor:
        sizes.append(kept.numel())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        actual = route(x, word, bias, routed, 5, chunk=1)
    assert sizes and max(sizes) <= n * vocabulary < n * length * vocabulary
    assert actual.weights.requires_grad


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_route_top_equals_route(chunk: int) -> None:
    x, word, bias, routed = world(1, 5, 6, 4, 300, 2.0)
    wanted = route(x, word, bias, routed, 5, chunk=1 << 20)
    weights, keys = route_top(x, word, bias, routed, 5, chunk)
    torch.testing.assert_close(weights, wanted.weights.detach())
    assert torch.equal(keys, wanted.keys) and not weights.requires_grad


def test_bf16_sums_in_fp32() -> None:
    x, word, bias, routed = (t.detach() for t in world(2, 3, 4, 8, 200, 0.0))
    half = [t.bfloat16() for t in (x, word, bias)]
    actual = route(half[0], half[1], half[2], routed, 5)
    assert {actual.weights.dtype, actual.pooled.dtype, actual.mass.dtype, actual.l1.dtype} == {torch.float32}
    wanted = plain(half[0].float(), half[1].float(), half[2].float(), routed, 5)
    torch.testing.assert_close(actual.l1, wanted.l1, rtol=0.01, atol=0.1)
    torch.testing.assert_close(actual.pooled, wanted.pooled, rtol=0.02, atol=0.02)


KERNELS = """
import torch
from citadel.model import router, router_triton
for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    z = (torch.randn(3, 5, 2304) * 2).to(dtype)  # 18 groups, more than one block
    z[..., -20:] = float("-inf")  # padded keys
    routed = torch.rand(3, 5) > 0.3
    routed[0] = False  # a text without any routed token
    routed[1, 1] = True
    actual, wanted = router_triton.reduce(z, routed), router._reduce_plain(z, routed)
    for name, one, other in zip(router._Reduced._fields, actual, wanted):
        if name == "argmax":
            continue
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4, msg=f"{dtype} {name}")
    present = routed.any(1)  # tied tokens may differ in argmax, but not in value
    tokens = (actual[1], wanted.argmax)
    best = [z.float()[present].gather(1, argmax[present][:, None].long()) for argmax in tokens]
    torch.testing.assert_close(*best)
    pulls = (wanted.lse, actual[1].int(), torch.randn(3, 2304), torch.randn(2304), torch.tensor(0.7))
    other = router._to_logits_plain(z, routed, *pulls)
    one = router_triton.to_logits(z.clone(), routed, *pulls)
    torch.testing.assert_close(one.float(), other.float(), rtol=1e-2, atol=1e-2 if dtype == torch.bfloat16
    else 1e-5)
    few = torch.randint(-2, 3, (3, 5, 2304)).to(dtype)  # ties, also across groups
    few[..., -20:] = float("-inf")
    for logits in (z, few):
        for keys in (1, 5, 16):
            values, top = router_triton.top(logits, keys)
            weights, chosen = router._top(logits, router._group_best(logits), keys, routed)
            assert torch.equal(top, chosen), (dtype, keys)
            assert torch.equal(torch.log1p(values.clamp(min=0)) * routed[..., None], weights)
print("equal")
"""


def test_kernels_in_the_interpreter() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed here")
    command = [sys.executable, "-c", KERNELS]
    variables = environment() | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.stdout == "equal\n", process.stderr


@pytest.mark.parametrize("num_keys", [1, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_ties_are_ordered_by_lower_key(dtype: torch.dtype, num_keys: int) -> None:
    """Small integer logits give every token ties, also across groups."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (4, 6, 3), generator=draw).to(dtype)
    word = torch.randint(-2, 3, (500, 3), generator=draw).to(dtype)
    actual = route(
        x, word, torch.zeros(500, dtype=dtype), torch.ones(4, 6, dtype=torch.bool), num_keys, chunk=500 * 6
    )
    phi = torch.log1p((x @ word.T).float().relu())  # [4, 6, 500]
    for keys, weights, row in zip(
        actual.keys.flatten(0, 1), actual.weights.flatten(0, 1), phi.flatten(0, 1), strict=True
    ):
        assert keys[weights > 0].tolist() == top_keys(row.numpy(), num_keys).tolist()
