"""How good is the model on pairs it was not trained on? Their queries are searched over all passages, exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from citadel.model.citadel import Citadel
from citadel.model.encoder import FlatTexts, TorchEncoder
from citadel.routing import get_router
from citadel.search.exact_torch import ExactSearch, Texts
from citadel.train.data import Data, Examples
from citadel.train.inputs import Marker
from citadel.train.meter import Meter, silent

DEPTH = 100
_QUERIES = {"cuda": 256, "cpu": 16}  # at a time


def evaluate(
    model: Citadel, data: Data, marker: Marker, queries: int = 0, tau: float | None = None, meter: Meter = silent
) -> dict[str, float]:
    """nDCG@10, RR@10, R@100 of held-out pairs, of each unseen source and over these; postings a passage.

    `queries` bounds the pairs of each, 0 for all."""
    asked = {"": data.held_out} | {f"unseen {name} ": some for name, some in data.unseen.items()}
    asked = {kind: some.some(np.arange(min(queries or len(some), len(some)))) for kind, some in asked.items()}
    if not any(map(len, asked.values())):
        return {}
    encoder = TorchEncoder(model, marker, data.special.pad, model.config.tau if tau is None else tau)
    with meter("Encoding for evaluation", "passages", len(data.passages)) as progress:
        passages = encoder.encode([data.passages[row] for row in range(len(data.passages))], progress=progress)
    search = ExactSearch(Texts(*passages), get_router(model.config.router).floor)
    figures = {"postings": len(passages.keys) / max(1, passages.size)}
    for kind, some in asked.items():
        if len(some):
            encoded = encoder.encode([data.queries[int(row)] for row in some.query], query=True)
            found = measures(_ranks(search, encoded, data, some))
            figures |= {kind + name: value for name, value in found.items()}
    if unseen := [value for name, value in figures.items() if name.startswith("unseen ") and name.endswith(" nDCG@10")]:
        figures["unseen nDCG@10"] = sum(unseen) / len(unseen)  # every source counts the same
    return figures


def _ranks(search: ExactSearch, asked: FlatTexts, data: Data, held: Examples) -> Tensor:
    """The rank of each held-out positive, or of a twin of it, from 1; 0 where it is not among the first."""
    device = asked.vectors.device
    twin, known = torch.from_numpy(data.twin).to(device), data.known
    found = []
    step = _QUERIES.get(device.type, 16)
    for at in range(0, asked.size, step):
        chosen = torch.arange(at, min(at + step, asked.size), device=device)
        _, numbers = search.search(Texts(*asked.pick(chosen)), DEPTH + 32)  # room for other answers, taken out below
        tops = torch.where(numbers >= 0, twin[numbers.clamp(min=0)], -1).tolist()
        for top, example in zip(tops, chosen.tolist(), strict=True):
            others = set(known[int(held.query[example])].tolist())
            found.append(rank_of(int(data.twin[held.positive[example]]), top, others))
    return torch.tensor(found)


def rank_of(positive: int, top: list[int], answers: set[int]) -> int:
    """Where the positive stands once other known answers and repetitions are taken out; 0 for nowhere.

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
    """The measures of queries with one answer each.

    >>> {name: round(value, 3) for name, value in measures(torch.tensor([1, 2, 0])).items()}
    {'nDCG@10': 0.544, 'RR@10': 0.5, 'R@100': 0.667}
    """
    ranks = ranks.double()
    near, there = (ranks > 0) & (ranks <= 10), (ranks > 0) & (ranks <= DEPTH)
    gain = torch.where(near, 1 / torch.log2(ranks + 1), 0)
    return {
        "nDCG@10": float(gain.mean()),
        "RR@10": float(torch.where(near, 1 / ranks, 0).mean()),
        "R@100": float(there.double().mean()),
    }
