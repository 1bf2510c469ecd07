"""The kernels compile for a GPU; the compiler is stricter than Triton's interpreter."""

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
from citadel.search.gpu import topk_kernels, kernels, scan, shared_memory, pq_kernel

F, I, N = "*fp32", "*i64", "*i32"
TYPES = {
    "documents": N, "starts": I, "stops": I, "token_starts": I, "query": F, "query_scale": F, "list_scale": F,
    "scores": F, "dirty": N, "maxima": N, "weights": "*u8", "scales": "*fp16", "alive": "*u8", "limits": N,
    "counts": N, "reported": N, "candidates": I, "ranked": I, "borders": I, "spans": I, "values": N,
    "centroids": F, "packed": I, "skip_rows": I, "skips": N, "nearest": I, "ends": N, "members": I,
    "by_tokens": I, "near_values": N, "near_documents": N, "vectors": F, "rows": "*i16", "steps": F, "result":
    I,
}
CODES = {"int8": "*i8", "int8x4": "*i32", "fp16": "*fp16", "pq": "*u8"}

def compiled(kernel, warps, **given):
    codec = given.get("CODEC", "int8")
    types = dict(TYPES, codes=CODES[codec], query={"fp16": F, "pq": "*i16"}.get(codec, CODES[codec]))
    if kernel is topk_kernels.probe_kernel:
        types["query"] = F
    signature = {name: "constexpr" if name in given else types.get(name, "i32") for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    source = ASTSource(kernel, signature, fixed)
    options = {"enable_fp_fusion": False, "num_warps": warps}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert "fma.rn.f32" not in made.asm["ptx"], kernel  # a product is rounded before it is added
    if kernel is pq_kernel.table_kernel:
        assert "div.rn.f32" in made.asm["ptx"]
        assert "div.full" not in made.asm["ptx"]
        assert ".ftz" not in made.asm["ptx"]  # no flush to zero

part = dict(RANGE=2048, SUB=512)
for codec, width, row in (("int8", 32, 32), ("int8x4", 32, 32), ("fp16", 32, 32), ("pq", 8, 2048)):
    shape = dict(WIDTH=width, PADDED=width, ROW=row, CODEC=codec, FLOOR=True, WEIGHTS=True)
    for room in ("", shared_memory.declaration(2048)):
        made = dict(ALIVE=True, EVERY=False, TILE=512, BLOCK=64, SHARED=room)
        compiled(kernels.score_kernel, 1, **shape, **part, **made)
for codec, queries in (("int8", 16), ("fp16", 1)):
    shape = dict(WIDTH=128, PADDED=128, CODEC=codec, ALIVE=True)
    compiled(scan.scan_kernel, 4, **shape, **part, BLOCK=128, QUERIES=queries, STAGES=3)
for codec in ("int8", "int8x4", "fp16"):
    shape = dict(WIDTH=128, PADDED=128, CODEC=codec)
    compiled(topk_kernels.members_kernel, 2, **shape, ALIVE=True, BLOCK=32)
    compiled(topk_kernels.combine_kernel, 1, **shape, RANGE=2048, BLOCK=32)
for parts, sub in ((8, 4), (3, 8)):
    compiled(pq_kernel.table_kernel, 8, PARTS=parts, SUB=sub)
compiled(topk_kernels.limit_kernel, 32, PADDED=16384, BLOCK=1024)
compiled(topk_kernels.collect_kernel, 1, **part, TILE=512)
compiled(topk_kernels.pick_kernel, 4, BLOCK=512)
compiled(topk_kernels.copy_kernel, 4, BLOCK=256)
compiled(topk_kernels.rank_kernel, 4, BLOCK=16, OTHERS=1024)
compiled(topk_kernels.select_kernel, 32, PADDED=16384)
compiled(topk_kernels.probe_kernel, 1, WIDTH=128, BLOCK=32)
compiled(topk_kernels.groups_kernel, 4, PADDED=64)
print("compiled")
"""


def test_kernels_compile_for_hopper() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed here")
    command = [sys.executable, "-c", COMPILE]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.stdout == "compiled\n", ended.stderr
