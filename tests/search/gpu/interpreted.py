"""Compare the kernels in Triton's interpreter with the numpy engine; runs in its own process."""

from __future__ import annotations

from unittest import mock

import torch

from citadel.index.codebook import Codebook
from citadel.search.gpu import shared_memory, skip_table, triton_search
from citadel.search.gpu.lists import CodedRows
from citadel.search.gpu.pq_kernel import table_kernel
from citadel.search.gpu.pq_tables import allocate_tables, load_centroids
from citadel.search.plan import Options
from citadel.types import Floats
from tests.property.worlds import World
from tests.search.gpu import pq_definition, ptx
from tests.search.gpu.same import check, check_mixed

CPU = torch.device("cpu")
CASES = (
    (World("static", "int8", 8, "int8", seed=3, count=20, tied=True), Options(3, "rerank", 4, 4)),
    (World("dynamic", "fp16", 33, "fp16", seed=1, count=20), Options(5, "exact", 9, 9, weight_floor=40)),
    (World("all_to_all", "pq2", 8, None, seed=2, count=12), Options(1000)),
    (World("dynamic", "pq1", 8, "int8", seed=5, count=12), Options(4, "exact")),
    (World("sparse", "fp16", 1, None, seed=4, count=20), Options(7)),
    (World("none", "int8", 1, "int8", seed=6, count=20), Options(2, "rerank", 3, 3)),
)

WORDS = (
    (World("dynamic", "int8", 32, "int8", seed=7, count=20), Options(5, "exact", weight_floor=40)),
    (World("static", "int8", 20, "int8", seed=8, count=20), Options(3, "rerank", 4, 4)),
    (World("dynamic", "int8", 64, None, seed=9, count=20), Options(4)),
)


def as_words(rows: CodedRows) -> CodedRows:
    """View int8 codes as words of four, on any device."""
    if rows.codec != "int8" or rows.codes.shape[1] % 4:
        return rows
    return CodedRows("int8x4", rows.codes.view(torch.int32), rows.scales)


def check_tables(book: Codebook, vectors: Floats) -> None:
    """Compare the kernel's tables with their definition; the last token is padding."""
    tables, centroids = (
        allocate_tables(torch.from_numpy(vectors), len(book.centroids)),
        load_centroids(CPU, book),
    )
    assert centroids is not None
    tables.rows.fill_(7)
    ends, (parts, sub, _) = torch.tensor([0, 1, len(vectors) - 1]), centroids.shape
    table_kernel[(len(vectors),)](
        centroids, tables.vectors, ends, tables.rows, tables.steps, 2, PARTS=parts, SUB=sub
    )
    for token, vector in enumerate(vectors[:-1]):
        rows, step = pq_definition.table(book, vector)
        assert tables.rows[token].tolist() == rows.reshape(-1).tolist(), (token, centroids.shape)
        assert tables.steps[token].item() == step, (token, centroids.shape)
    assert set(tables.rows[-1].tolist()) == {7}


if __name__ == "__main__":
    for parts, sub in pq_definition.SHAPES:
        check_tables(pq_definition.book(parts, parts, sub), pq_definition.vectors(sub, 8, parts * sub))
    half_book, one = pq_definition.halves()
    check_tables(half_book, one.repeat(2, axis=0))
    check_mixed(World("static", "pq2", 12, "int8", seed=8, count=14), Options(6, "rerank", 4, 4))
    for threshold in (3, 512):  # skips in most lists, and in none
        skip_table.LONG = threshold
        for world, options in CASES:
            check(world, options, cuts=[11], deleted=[3, 12], width=32)
    gpu_paths = mock.patch.multiple(
        triton_search,
        _as_words=as_words,
        _shared_memory_of=lambda index: shared_memory.declaration(index.width),
    )
    with ptx.emulated(), gpu_paths:
        for world, options in (*WORDS, *CASES[:4]):
            check(world, options, cuts=[11], deleted=[3, 12], width=64)
    print("equal")
