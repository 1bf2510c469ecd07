"""Shared by all benchmarks: description of the machine, a table on standard output, the figures as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

REPEATS = 5  # runs per turn
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The machine and date of a measurement."""
    from citadel import _native
    from citadel.paper.record import machine as measured_on

    return {**measured_on(), "numpy": np.__version__, "instruction_set": _native.instruction_set()}


def one_core() -> None:
    """Pin the process to one core: not every library honours thread variables."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def alternate(runs: dict[Any, Callable[[], Any]], rounds: int, repeats: int = REPEATS) -> dict[Any, float]:
    """The minimum seconds of each run, alternating, so that a noisy machine affects all alike.

    Each turn repeats its run, so that the caches hold its own data and not the previous run's.
    """
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            for _ in range(repeats):
                start = time.perf_counter()
                run()
                least[name] = min(least[name], time.perf_counter() - start)
    return least


def report(
    name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], **figures: Any
) -> None:
    """Print one table and write it, with all other figures, to results/NAME.json."""
    table = Table(title=title)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(
            *(
                f"{value:,.4g}"
                if isinstance(value, float)
                else f"{value:,}"
                if isinstance(value, int)
                else str(value)
                for value in row
            )
        )
    Console(width=140).print(table)
    where = machine()
    print(f"{where['cpu']}, {where['cores']} cores, {where['instruction_set']}, {where['date']}")
    RESULTS.mkdir(exist_ok=True)
    record = {"machine": where, "columns": list(columns), "rows": [list(row) for row in rows], **figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
