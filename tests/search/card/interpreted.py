"""A program for a process of its own: the kernels in Triton's interpreter against the numpy engine."""

from __future__ import annotations

from citadel.search.card import skips
from citadel.search.plan import Options
from tests.property.worlds import World
from tests.search.card.same import check

CASES = (
    (World("static", "int8", 8, "int8", seed=3, count=20, tied=True), Options(3, "rerank", 4, 4)),
    (World("dynamic", "fp16", 33, "fp16", seed=1, count=20), Options(5, "exact", 9, 9, weight_floor=40)),
    (World("all_to_all", "pq2", 8, None, seed=2, count=12), Options(1000)),
    (World("dynamic", "pq1", 8, "int8", seed=5, count=12), Options(4, "exact")),
    (World("sparse", "fp16", 1, None, seed=4, count=20), Options(7)),
    (World("none", "int8", 1, "int8", seed=6, count=20), Options(2, "rerank", 3, 3)),
)

if __name__ == "__main__":
    for long in (3, 512):  # with skips in most lists, and in none
        skips.LONG = long
        for world, options in CASES:
            check(world, options, cuts=[11], gone=[3, 12], width=32)
    print("equal")
