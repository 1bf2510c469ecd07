"""Times of a search and of the paper's pipeline, alternating, so that a slow host slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from citadel.search.plan import Plan

WARM_UPS = 3  # queries that record and compile
SearchOne = Callable[[Plan], Any]


def wait(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(run: Callable[[], Any], device: torch.device, rounds: int = 1) -> list[float]:
    """Seconds of each round."""
    seconds = []
    for _ in range(rounds):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True)
class Times:
    """Seconds per query."""

    alone: Sequence[float]  # one search after the other
    ours: Sequence[float] = ()  # alternating with the paper's pipeline
    paper: Sequence[float] = ()

    def figures(self) -> dict[str, float]:
        """Percentiles in milliseconds, and the ratio of the alternating medians, paper ÷ ours."""
        p50, p95 = (1e3 * np.percentile(self.alone, [50, 95])).tolist()
        figures = {"p50_ms": p50, "p95_ms": p95}
        if len(self.paper):
            ours, ours_p95 = (1e3 * np.percentile(self.ours, [50, 95])).tolist()
            paper = 1e3 * float(np.median(self.paper))
            figures |= {
                "turn_p50_ms": ours,
                "turn_p95_ms": ours_p95,
                "paper_ms": paper,
                "times_paper": paper / ours,
            }
        return figures


def alone(search: SearchOne, plans: Sequence[Plan], device: torch.device) -> list[float]:
    """Seconds per query."""
    for plan in plans[:WARM_UPS]:
        search(plan)
    return [timed(lambda plan=plan: search(plan), device)[0] for plan in plans]  # type: ignore[misc]


def in_turn(
    search: SearchOne, paper: SearchOne, plans: Sequence[Plan], device: torch.device, size: int
) -> tuple[list[float], list[float]]:
    """Seconds per query, ours and the paper's, alternating every `size` queries.

    With turns of one query, each runs with the caches full of the other's data."""
    for plan in plans[:WARM_UPS]:
        search(plan)
        paper(plan)
    ours, theirs = list[float](), list[float]()
    for start in range(0, len(plans), size):
        for seconds, run in ((ours, search), (theirs, paper)):
            for plan in plans[start : start + size]:
                seconds += timed(lambda run=run, plan=plan: run(plan), device)  # type: ignore[misc]
    return ours, theirs


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over all rounds."""
    return {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
