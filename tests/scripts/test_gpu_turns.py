"""Timing in turn with the paper's pipeline, as in benchmarks/gpu.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import gpu_turns

from citadel.search.plan import Plan

CPU = torch.device("cpu")


def plan(key: int) -> Plan:
    return Plan(np.array([key], np.uint32), np.ones(1, np.float32))


@pytest.mark.parametrize(
    ("size", "order"), [(1, "ours 1 paper 1 ours 2 paper 2"), (2, "ours 1 ours 2 paper 1 paper 2")]
)
def test_both_search_the_same_queries_in_turn_after_a_warm_up(size: int, order: str) -> None:
    searches: list[str] = []

    def recorder(who: str) -> gpu_turns.SearchOne:
        return lambda one: searches.append(f"{who} {one.keys[0]}")

    ours, paper = gpu_turns.in_turn(recorder("ours"), recorder("paper"), [plan(1), plan(2)], CPU, size)
    assert " ".join(searches) == "ours 1 paper 1 ours 2 paper 2 " + order
    assert len(ours) == len(paper) == 2


def test_ratio_of_the_medians_in_turn() -> None:
    figures = gpu_turns.Times([0.001, 0.002, 0.003], [0.002, 0.004, 0.009], [0.04, 0.008, 0.02]).figures()
    assert figures == pytest.approx(
        {"p50_ms": 2, "p95_ms": 2.9, "turn_p50_ms": 4, "turn_p95_ms": 8.5, "paper_ms": 20, "times_paper": 5}
    )
    assert set(gpu_turns.Times([0.001]).figures()) == {"p50_ms", "p95_ms"}


def test_medians_over_rounds() -> None:
    rounds = [
        {"p50_ms": 3.0, "times_paper": 7.0},
        {"p50_ms": 1.0, "times_paper": 9.0},
        {"p50_ms": 2.0, "times_paper": 8.0},
    ]
    assert gpu_turns.medians(rounds) == {"p50_ms": 2.0, "times_paper": 8.0}
