"""The kernels compile for the card they are written for, without one: what the interpreter lets pass, this refuses."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.children import ROOT, environment

COMPILE = """
import warnings
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from citadel.search.card import kernels

F, I, N = "*fp32", "*i64", "*i32"
TYPES = {
    "documents": N, "starts": I, "stops": I, "bounds": I, "token_starts": I, "query": F, "query_scale": F,
    "list_scale": F, "scores": F, "met": N, "weights": "*u8", "scales": "*fp16", "alive": "*u8", "histogram": N,
    "thresholds": N, "found": N, "candidates": I, "borders": I, "spans": I, "values": F, "centroids": F,
}
CODES = {"int8": "*i8", "fp16": "*fp16", "pq": "*u8"}

def compiled(kernel, **given):
    types = dict(TYPES, codes=CODES[given.get("CODEC", "int8")])
    if kernel is kernels.semantic_kernel:
        types["documents"] = I
    if kernel in (kernels.count_kernel, kernels.collect_kernel):
        types["documents"] = "i32"
    signature = {name: "constexpr" if name in given else types.get(name, "i32") for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    source = ASTSource(kernel, signature, fixed)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    assert "fma.rn.f32" not in made.asm["ptx"], kernel  # a product is rounded before it is added

compiled(kernels.slices_kernel, BLOCK=256)
for codec, width, row in (("int8", 32, 32), ("fp16", 32, 32), ("pq", 8, 2048)):
    compiled(kernels.score_kernel, WIDTH=width, PADDED=width, ROW=row, CODEC=codec, FLOOR=True, WEIGHTS=True, BLOCK=256)
for semantic, block in ((True, 128), (False, 1024)):
    shape = dict(WIDTH=128, PADDED=128, CODEC="int8", BINS=4096, BLOCK=block)
    compiled(kernels.count_kernel, SEMANTIC=semantic, ALIVE=True, **shape)
compiled(kernels.threshold_kernel, BINS=4096)
compiled(kernels.collect_kernel, EVERY=False, COLLECT=True, RESET=True, BLOCK=1024)
compiled(kernels.semantic_kernel, WIDTH=128, PADDED=128, CODEC="fp16", BLOCK=128)
compiled(kernels.probe_kernel, WIDTH=128, BLOCK=64)
print("compiled")
"""


def test_for_hopper() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed here")
    command = [sys.executable, "-c", COMPILE]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.stdout == "compiled\n", ended.stderr
