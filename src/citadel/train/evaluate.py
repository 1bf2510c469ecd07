"""Evaluate a model on held-out pairs by exact search over all passages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from citadel.bench.exact import ExactSearch, RoutedRows
from citadel.model.citadel import Citadel
from citadel.model.encoder import FlatTexts, TokenRows, TorchEncoder
from citadel.progress import Meter, silent
from citadel.routing import get_router
from citadel.train.data import Data, Examples
from citadel.train.inputs import Marker
from citadel.train.ragged import Ragged, Rows

DEPTH = 100
NUM_KEPT = DEPTH + 32  # room for other known answers, which are removed
PASSAGES = {"cuda": 1 << 19, "cpu": 1 << 15}  # per chunk
_QUERIES = {"cuda": 256, "cpu": 16}  # per chunk


class TopPassages(NamedTuple):
    """The best passages of each query so far, best first, padded with −1."""

    scores: Tensor  # [n, ≤ NUM_KEPT]
    numbers: Tensor  # [n, ≤ NUM_KEPT]

    def better(self, other: TopPassages, start: int) -> TopPassages:
        """Merge with the best of further passages, numbered from `start`; ties go to the lower number.

        >>> kept = TopPassages(torch.tensor([[3.0, 1.0]]), torch.tensor([[0, 1]]))
        >>> more = TopPassages(torch.tensor([[3.0, 2.0]]), torch.tensor([[1, 0]]))
        >>> kept.better(more, start=2).numbers.tolist()
        [[0, 3, 2, 1]]
        """
        numbers = torch.where(other.numbers >= 0, other.numbers + start, -1)
        scores, order = torch.cat([self.scores, other.scores], 1).sort(dim=1, descending=True, stable=True)
        return TopPassages(
            scores[:, :NUM_KEPT], torch.cat([self.numbers, numbers], 1).gather(1, order)[:, :NUM_KEPT]
        )


def evaluate(
    model: Citadel,
    data: Data,
    marker: Marker,
    queries: int = 0,
    tau: float | None = None,
    meter: Meter = silent,
    documents: Citadel | None = None,
    passages: int = 0,
) -> dict[str, float]:
    """Measure nDCG@10, RR@10 and R@100 on held-out pairs and unseen sources, and postings per passage.

    `queries` limits the number of pairs of each, and `passages` searches only a sample and the positives;
    0 means all. `documents` is the model that encodes
    passages, if it is another one of the same space.
    """
    selected = {"": data.held_out} | {f"unseen {name} ": some for name, some in data.unseen.items()}
    selected = {
        kind: some.some(np.arange(min(queries or len(some), len(some)))) for kind, some in selected.items()
    }
    if not any(map(len, selected.values())):
        return {}
    tau = model.config.tau if tau is None else tau
    encoder = TorchEncoder(model, marker, data.special.pad, tau)
    query_rows = np.concatenate([some.query for some in selected.values()])
    encoded = encoder.encode([data.queries[int(row)] for row in query_rows], query=True)
    if documents is not None:
        encoder = TorchEncoder(documents, marker, data.special.pad, tau)
    positives = np.concatenate([some.positive for some in selected.values()])
    rows = searched(len(data.passages), positives, passages)
    numbers, postings = _search(encoder, data, rows, encoded, meter)
    figures = {"postings": postings / max(1, len(rows))}
    parts = torch.split(numbers, [len(some) for some in selected.values()])
    for (kind, some), part in zip(selected.items(), parts, strict=True):
        if len(some):
            figures |= {kind + name: value for name, value in measures(_ranks(part, data, some)).items()}
    if unseen := [
        value for name, value in figures.items() if name.startswith("unseen ") and name.endswith(" nDCG@10")
    ]:
        figures["unseen nDCG@10"] = sum(unseen) / len(unseen)  # every source counts the same
    return figures


def searched(passages: int, positives: Rows, sample: int) -> Rows:
    """Rows of the passages to search: all, or the positives and a sample of this size, always the same.

    >>> searched(3, np.array([2]), 0).tolist(), len(searched(100, np.array([2]), 10)) in (10, 11)
    ([0, 1, 2], True)
    """
    if not 0 < sample < passages:
        return np.arange(passages)
    return np.union1d(positives, np.random.default_rng(0).permutation(passages)[:sample])


def _search(
    encoder: TorchEncoder, data: Data, rows: Rows, selected: FlatTexts, meter: Meter
) -> tuple[Tensor, int]:
    """Find the best passages of each query and count all postings, one chunk of passages at a time."""
    device = selected.vectors.device
    kept = TopPassages(
        torch.empty(selected.size, 0, device=device),
        torch.empty(selected.size, 0, dtype=torch.int64, device=device),
    )
    size, postings = PASSAGES.get(device.type, 1 << 15), 0
    with meter("Encoding for evaluation", "passages", len(rows)) as progress:
        for start in range(0, len(rows), size):
            part = _part(data.passages, rows[start : start + size])
            top, count = _best(encoder, part, selected, partial(_shifted, progress, start))
            kept, postings = kept.better(top, start), postings + count
    found = torch.from_numpy(rows).to(device)[kept.numbers.clamp(min=0)]
    return torch.where(kept.numbers >= 0, found, -1), postings


def _part(passages: Ragged, rows: Rows) -> TokenRows:
    """Token ids of these passages, as a table if they are adjacent."""
    if len(rows) == rows[-1] + 1 - rows[0]:
        return passages.part(int(rows[0]), int(rows[-1]) + 1)
    return [passages[int(row)] for row in rows]


def _shifted(progress: Callable[[int], Any], start: int, done: int) -> None:
    progress(start + done)


def _best(
    encoder: TorchEncoder, part: TokenRows, selected: FlatTexts, progress: Callable[[int], Any]
) -> tuple[TopPassages, int]:
    """Find the best passages of a chunk for each query, and count its postings."""
    passages = encoder.encode(part, progress=progress)
    search = ExactSearch(RoutedRows(*passages), get_router(encoder.model.config.router).floor)
    step, device = _QUERIES.get(selected.vectors.device.type, 16), selected.vectors.device
    results = []
    for start in range(0, selected.size, step):
        chosen = torch.arange(start, min(start + step, selected.size), device=device)
        results.append(search.search(RoutedRows(*selected.pick(chosen)), NUM_KEPT))
    scores, numbers = zip(*results, strict=True)
    return TopPassages(torch.cat(scores), torch.cat(numbers)), len(passages.keys)


def _ranks(numbers: Tensor, data: Data, held: Examples) -> Tensor:
    """Rank of each held-out positive or its twin, counted from 1; 0 if it was not retrieved."""
    ranks = []
    for top, query, positive in zip(numbers.cpu().numpy(), held.query, held.positive, strict=True):
        twins = np.where(top >= 0, data.twin[top], -1).tolist()
        ranks.append(rank_of(int(data.twin[positive]), twins, set(data.known[int(query)].tolist())))
    return torch.tensor(ranks)


def rank_of(positive: int, top: list[int], answers: set[int]) -> int:
    """Rank of the positive after removing other known answers and duplicates; 0 if absent.

    >>> rank_of(7, [5, 4, 4, 7], answers={5, 7})
    2
    """
    seen: set[int] = set()
    for number in top:
        if number == positive:
            return len(seen) + 1
        if number not in answers:
            seen.add(number)
    return 0


def measures(ranks: Tensor) -> dict[str, float]:
    """Compute the measures for queries with one answer each.

    >>> {name: round(value, 3) for name, value in measures(torch.tensor([1, 2, 0])).items()}
    {'nDCG@10': 0.544, 'RR@10': 0.5, 'R@100': 0.667}
    """
    ranks = ranks.double()
    near, within_depth = (ranks > 0) & (ranks <= 10), (ranks > 0) & (ranks <= DEPTH)
    gain = torch.where(near, 1 / torch.log2(ranks + 1), 0)
    return {
        "nDCG@10": float(gain.mean()),
        "RR@10": float(torch.where(near, 1 / ranks, 0).mean()),
        "R@100": float(within_depth.double().mean()),
    }
