"""Times of a search and of the paper's pipeline, taken in turns: what slows the host down slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from citadel.search.plan import Plan

WARM_UPS = 3  # queries: recording and compiling are done then
Ask = Callable[[Plan], Any]  # a search of one query


def wait(device: torch.device) -> None:
    """Until everything that was started has ended."""
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
    """Seconds of each query."""

    alone: Sequence[float]  # one search after the other
    ours: Sequence[float] = ()  # in turn with the paper's pipeline
    paper: Sequence[float] = ()

    def figures(self) -> dict[str, float]:
        """Milliseconds, and how many times faster than the paper's pipeline: the medians of what was taken in turn."""
        p50, p95 = (1e3 * np.percentile(self.alone, [50, 95])).tolist()
        found = {"p50_ms": p50, "p95_ms": p95}
        if len(self.paper):
            ours, ours_p95 = (1e3 * np.percentile(self.ours, [50, 95])).tolist()
            paper = 1e3 * float(np.median(self.paper))
            found |= {"turn_p50_ms": ours, "turn_p95_ms": ours_p95, "paper_ms": paper, "times_paper": paper / ours}
        return found


def alone(search: Ask, plans: Sequence[Plan], device: torch.device) -> list[float]:
    """Seconds of each query."""
    for plan in plans[:WARM_UPS]:
        search(plan)
    return [timed(lambda plan=plan: search(plan), device)[0] for plan in plans]  # type: ignore[misc]


def in_turn(
    search: Ask, paper: Ask, plans: Sequence[Plan], device: torch.device, size: int
) -> tuple[list[float], list[float]]:
    """Seconds of each query, ours and the paper's; a turn takes `size` queries.

    In turns of one, each finds the caches full of what the other has read."""
    for plan in plans[:WARM_UPS]:
        search(plan)
        paper(plan)
    ours, theirs = list[float](), list[float]()
    for start in range(0, len(plans), size):
        for found, ask in ((ours, search), (theirs, paper)):
            for plan in plans[start : start + size]:
                found += timed(lambda ask=ask, plan=plan: ask(plan), device)  # type: ignore[misc]
    return ours, theirs


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each figure's median over rounds."""
    return {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
