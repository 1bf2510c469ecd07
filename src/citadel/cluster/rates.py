"""Measured rates, each with machine and date, from which `citadel plan` estimates a collection's cost."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """A measured value; `source` is the file or page that has the measurement."""

    value: float
    unit: str
    machine: str
    date: str
    source: str


_EPYC, _H200 = "AMD EPYC, AVX-512 VNNI, one core", "NVIDIA H200"
ENCODE_CORE = Rate(
    30.3, "passages/s per core (128 tokens)", _EPYC, "2026-11-16", "benchmarks/results/encode-model.json"
)
ENCODE_GPU = Rate(
    23_967, "passages/s per GPU (128 tokens)", _H200, "2026-11-15", "benchmarks/results/train.json"
)
ENCODE_QUERY = Rate(
    5.18, "ms per query of 16 tokens", _EPYC, "2026-11-16", "benchmarks/results/encode-model.json"
)
WRITE = Rate(1.39e6, "postings/s per core", _EPYC, "2026-11-15", "benchmarks/results/build.json")
GRAPH_BUILD = Rate(0.18e-3, "core seconds per passage", _EPYC, "2026-11-18", "docs/how-it-works/search.md")
GRAPH_SEARCH = Rate(
    0.15, "ms for k = 10 in 76,000 passages", _EPYC, "2026-11-18", "docs/how-it-works/search.md"
)
GRAPH_SEARCH_PASSAGES = 76_000
GRAPH_BYTES = Rate(
    641, "bytes per passage of 60 postings", "any", "2026-11-18", "docs/how-it-works/search.md"
)
SEMANTIC_BYTES = Rate(386, "bytes per passage, 384 dimensions", "any", "2026-11-15", "docs/results.md")
POSTINGS = Rate(61, "postings per passage of MS MARCO", "any", "2026-11-15", "docs/results.md")
POSTING_BYTES = {
    codec: Rate(value, "bytes per posting", "any", "2026-11-15", "benchmarks/results/build.json")
    for codec, value in (("fp16", 66.432), ("int8", 36.432), ("pq2", 10.432), ("pq1", 6.432))
}
TEXT_BYTES = 400  # per passage; an assumption, not a measurement
MEASURED = (
    ENCODE_CORE, ENCODE_GPU, ENCODE_QUERY, WRITE, GRAPH_BUILD, GRAPH_SEARCH, GRAPH_BYTES, SEMANTIC_BYTES,
    POSTINGS, *POSTING_BYTES.values(),
)  # fmt: skip
