"""A synthetic index generated in device memory, in the layout of a loaded segment.

List sizes are those of a real index (the default model over the Python documentation, τ 0.9), scaled to the
number of postings; query keys are drawn by a power of list size, chosen so that a query costs the paper's
token products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.search.gpu.device_index import DeviceIndex, make_ranges, range_width
from citadel.search.gpu.lists import TYPES, CodedRows, DeviceLists
from citadel.search.gpu.probes import DeviceProbe
from citadel.search.gpu.skip_table import Ranges, make_skips, skip_rows
from citadel.search.plan import Plan
from citadel.settings import SUBVECTOR

# (rank ÷ lists, size ÷ mean size) of the real index's 5,932 lists
REAL = (
    (0, 192.8), (0.0005, 62.8), (0.001, 44.4), (0.002, 28.6), (0.005, 17.0), (0.01, 11.7), (0.02, 7.89),
    (0.05, 4.34),
    (0.1, 2.3), (0.2, 0.99), (0.3, 0.524), (0.5, 0.175), (0.7, 0.058), (0.9, 0.029), (1, 0.029),
)  # fmt: skip
REPEATED = 0.2  # share of postings in the same document as the one before
CHUNK = 1 << 24


@dataclass(frozen=True)
class IndexSize:
    """Size of the index and its queries; the defaults are MS MARCO passages and the paper's query."""

    documents: int = 8_841_823
    postings: int = 540_000_000
    lists: int = 30_522
    dimension: int = 32
    semantic: int = 128
    products: int = 1_660_000  # token products per query
    tokens: int = 9  # per query


def list_sizes(size: IndexSize) -> NDArray[np.int64]:
    """Postings of each list, largest first."""
    ranks, shares = (np.array(column) for column in zip(*REAL, strict=True))
    wanted = np.exp(np.interp(np.linspace(0, 1, size.lists), ranks, np.log(shares)))
    sizes: NDArray[np.int64] = np.maximum(1, wanted / wanted.sum() * size.postings).astype(np.int64)
    return sizes


def query_keys(size: IndexSize, sizes: NDArray[np.int64], count: int, seed: int = 0) -> NDArray[np.int64]:
    """Lists of the query tokens [count, tokens], drawn by a power of size that gives `size.products`."""
    low, high = -1.0, 2.0
    for _ in range(50):
        power = (low + high) / 2
        share = sizes.astype(float) ** power
        mean = float((share * sizes).sum() / share.sum()) * size.tokens
        low, high = (power, high) if mean < size.products else (low, power)
    drawn = np.random.default_rng(seed).choice(len(sizes), (count, size.tokens), p=share / share.sum())
    return np.sort(drawn, axis=1)


def make_queries(size: IndexSize, sizes: NDArray[np.int64], count: int) -> list[Plan]:
    """Random vectors under drawn keys."""
    random = np.random.default_rng(1)
    return [
        Plan(
            keys.astype(np.uint32),
            np.ones(size.tokens, np.float32),
            random.standard_normal((size.tokens, size.dimension), np.float32),
            random.standard_normal(size.semantic, np.float32),
        )
        for keys in query_keys(size, sizes, count)
    ]


def make_device_index(size: IndexSize, device: torch.device, codec: str = "int8") -> DeviceIndex:
    """Generate the index."""
    sizes = list_sizes(size)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    total, width = int(starts[-1]), size.dimension // SUBVECTOR.get(codec, 1)
    span, documents, rows = (
        range_width(size.documents),
        _documents(size.documents, starts, device),
        skip_rows(sizes),
    )
    ranges = Ranges(-(-size.documents // span), span)
    lists = DeviceLists(
        np.arange(size.lists, dtype=np.uint32),
        starts[:-1],
        sizes,
        np.ones(size.lists, np.float32),
        documents,
        CodedRows(
            codec, _codes(codec, total, width, device), _scales(total, device) if codec == "int8" else None
        ),
        torch.empty(total, dtype=torch.uint8, device=device).random_(1, 255),
        rows,
        make_skips(rows, ranges, device, [(documents, sizes)]),
    )
    pooled = CodedRows(
        "int8", _codes("int8", size.documents, size.semantic, device), _scales(size.documents, device)
    )
    borders = make_ranges([0], [size.documents], span, device)
    probe = _probe(size, device)
    one = (0,), (size.documents,), (lists,), pooled, (probe,), None
    return DeviceIndex(device, size.documents, 0, *one, span, *borders, _centroids(size, codec, device))


def _centroids(size: IndexSize, codec: str, device: torch.device) -> Tensor | None:
    """Random centroids: search takes the same time as with good ones."""
    if codec not in SUBVECTOR:
        return None
    return torch.randn(size.dimension // SUBVECTOR[codec], SUBVECTOR[codec], 256, device=device)


def _codes(codec: str, rows: int, width: int, device: torch.device) -> Tensor:
    codes = torch.empty(rows, width, dtype=TYPES[codec], device=device)
    for start in range(0, rows, CHUNK):
        part = codes[start : start + CHUNK]
        if codec == "fp16":
            part.normal_()
        else:
            part.random_(*((-127, 128) if codec == "int8" else (0, 256)))
    return codes


def _scales(rows: int, device: torch.device) -> Tensor:
    return torch.empty(rows, dtype=torch.float16, device=device).uniform_(0.005, 0.015)


def _documents(documents: int, starts: NDArray[np.int64], device: torch.device) -> Tensor:
    """Ascending document numbers per list, drawn as gaps; a share of the gaps is 0."""
    numbers = torch.empty(int(starts[-1]), dtype=torch.int32, device=device)
    for first, stop in _groups(starts):
        sizes = torch.from_numpy(np.diff(starts[first : stop + 1])).to(device)
        count = int(starts[stop] - starts[first])
        gaps = torch.empty(count, dtype=torch.float64, device=device).exponential_()
        gaps[torch.rand(count, device=device) < REPEATED] = 0
        sums = torch.cumsum(gaps, 0)
        ends = torch.cumsum(sizes, 0) - 1
        before = torch.cat([sums.new_zeros(1), sums[ends[:-1]]])
        owner = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
        share = (sums - before[owner]) / (sums[ends] - before + 1e-9)[owner]
        numbers[int(starts[first]) : int(starts[stop])] = (share * (documents - 1)).to(torch.int32)
    return numbers


def _groups(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(starts) - 1:
        stop = max(int(np.searchsorted(starts, starts[first] + CHUNK, side="right")) - 1, first + 1)
        yield first, stop
        first = stop


def _probe(size: IndexSize, device: torch.device) -> DeviceProbe:
    """Groups of random documents, as large as in a real index: the same work at search time."""
    count = max(1, int(2 * np.sqrt(size.documents)))
    starts = torch.from_numpy(np.linspace(0, size.documents, count + 1).astype(np.int64))
    centroids = torch.randn(count, size.semantic, device=device)
    members = torch.randperm(size.documents, device=device)
    return DeviceProbe(centroids, starts.to(device), members, int((starts[1:] - starts[:-1]).max()))
