"""PQ tables: products of a query token with every centroid in whole steps, on the GPU (docs/how-it-works/search.md).

The host sends a token's vector, 128 bytes where its table takes 4,096. This is plain torch; the kernel that does the
same, to the last bit, is tabulate.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from citadel.index.codebook import CENTROIDS, Codebook

MOST = 32767  # that a posting's entries may add up to
TINY = float(np.finfo(np.float32).tiny)  # a step below it has too few bits left to count in


@dataclass(frozen=True)
class Tables:
    """The query tokens' vectors on the card, and where their tables are made."""

    vectors: Tensor  # [T, d]
    rows: Tensor  # [T, S · 256], int16
    steps: Tensor  # [T]


def room_for_tables(vectors: Tensor, subvectors: int) -> Tables:
    """Room for the tables of these vectors; nothing is in it yet."""
    rows = torch.empty(len(vectors), subvectors * CENTROIDS, dtype=torch.int16, device=vectors.device)
    return Tables(vectors, rows, torch.empty(len(vectors), device=vectors.device))


def centroids_on(device: torch.device, book: Codebook | None) -> Tensor | None:
    """A codebook's centroids, one dimension of all 256 after the other, as a table's entries stand [S, sub, 256].

    >>> book = Codebook(np.zeros((2, 256, 4), np.float32), np.zeros(0, np.uint32), np.zeros(0, np.float32), 1.0)
    >>> tuple(centroids_on(torch.device("cpu"), book).shape)
    (2, 4, 256)
    """
    return None if book is None else torch.tensor(np.ascontiguousarray(book.centroids.transpose(0, 2, 1))).to(device)


def tabulate(tables: Tables, centroids: Tensor) -> None:
    """Make the tables of all vectors; those behind the last token are made, too, and read by nobody.

    >>> tables = room_for_tables(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), 1)
    >>> tabulate(tables, torch.tensor([[[1.0] + [-0.5] * 255, [9.0] * 256]]))
    >>> tables.rows[:, :2].tolist(), (tables.steps * 32766).tolist()
    ([[32766, -16383], [0, 0]], [2.0, 0.0])
    """
    parts, sub, _ = centroids.shape
    vectors = tables.vectors.view(-1, parts, sub, 1)
    table = centroids[:, 0] * vectors[:, :, 0]
    for place in range(1, sub):
        table = table + centroids[:, place] * vectors[:, :, place]  # [T, S, 256]
    largest = table.abs().amax(2)  # [T, S]
    total = largest[:, 0]
    for part in range(1, parts):
        total = total + largest[:, part]
    steps = total / torch.full_like(total, MOST - parts)  # a plain number's inverse would be multiplied with on a GPU
    steps = torch.where(steps < TINY, 0.0, steps)
    whole = torch.round(table / torch.where(steps > 0, steps, float("inf"))[:, None, None])  # half to even
    tables.rows.copy_(whole.view_as(tables.rows))
    tables.steps.copy_(steps)
