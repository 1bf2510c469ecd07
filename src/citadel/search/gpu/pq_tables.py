"""Tables of pq: products of a query token with every centroid, in integer steps.

docs/how-it-works/search.md has the definition. Tables are computed on the device, because a token's vector
takes 128 bytes and its table 4,096. This is the torch version; pq_kernel.py computes the same bits in one
launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from citadel.index.codebook import CENTROIDS, Codebook

MAX_SUM = 32767  # limit for the sum of a posting's entries
TINY = float(np.finfo(np.float32).tiny)  # a smaller step is subnormal and too imprecise


@dataclass(frozen=True)
class Tables:
    """Vectors of query tokens on the device, and the buffers of their tables."""

    vectors: Tensor  # [T, d]
    rows: Tensor  # [T, S · 256], int16
    steps: Tensor  # [T]


def allocate_tables(vectors: Tensor, subvectors: int) -> Tables:
    """Allocate the tables of these vectors, uninitialized."""
    rows = torch.empty(len(vectors), subvectors * CENTROIDS, dtype=torch.int16, device=vectors.device)
    return Tables(vectors, rows, torch.empty(len(vectors), device=vectors.device))


def load_centroids(device: torch.device, book: Codebook | None) -> Tensor | None:
    """A codebook's centroids on a device, transposed to the order of table entries [S, sub, 256].

    >>> no_keys, no_scales = np.zeros(0, np.uint32), np.zeros(0, np.float32)
    >>> book = Codebook(np.zeros((2, 256, 4), np.float32), no_keys, no_scales, 1.0)
    >>> tuple(load_centroids(torch.device("cpu"), book).shape)
    (2, 4, 256)
    """
    if book is None:
        return None
    return torch.tensor(np.ascontiguousarray(book.centroids.transpose(0, 2, 1))).to(device)


def tabulate(tables: Tables, centroids: Tensor) -> None:
    """Compute the tables of all vectors, including unused rows after the last token.

    >>> tables = allocate_tables(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), 1)
    >>> tabulate(tables, torch.tensor([[[1.0] + [-0.5] * 255, [9.0] * 256]]))
    >>> tables.rows[:, :2].tolist(), (tables.steps * 32766).tolist()
    ([[32766, -16383], [0, 0]], [2.0, 0.0])
    """
    parts, sub, _ = centroids.shape
    vectors = tables.vectors.view(-1, parts, sub, 1)
    table = centroids[:, 0] * vectors[:, :, 0]
    for dimension in range(1, sub):
        table = table + centroids[:, dimension] * vectors[:, :, dimension]  # [T, S, 256]
    largest = table.abs().amax(2)  # [T, S]
    total = largest[:, 0]
    for part in range(1, parts):
        total = total + largest[:, part]
    steps = total / torch.full_like(total, MAX_SUM - parts)  # a GPU would multiply by the inverse of a scalar
    steps = torch.where(steps < TINY, 0.0, steps)
    whole = torch.round(table / torch.where(steps > 0, steps, float("inf"))[:, None, None])  # half to even
    tables.rows.copy_(whole.view_as(tables.rows))
    tables.steps.copy_(steps)
