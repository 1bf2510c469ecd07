"""Tiny training runs in child processes."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from citadel.train.config import TrainConfig
from tests.support.children import start

Configs = Callable[..., TrainConfig]
TINY: dict[str, dict[str, Any]] = {  # logs and saves every step
    "model": {"token_dimension": 4, "semantic_dimension": 4, "query_length": 16, "document_length": 32},
    "optimizer": {"steps": 5, "batch": 2, "lr": 1e-3, "average": 0.5},
    "run": {"log_every": 1, "checkpoint_every": 1, "device": "cpu"},
}


def tiny_run(config: Configs, **changes: dict[str, Any]) -> TrainConfig:
    """Config of a run of five steps over five passages, with some values changed."""
    return config(**{name: TINY.get(name, {}) | changes.get(name, {}) for name in {*TINY, *changes}})


class Trainer:
    """Client of the process in `tests.support.trainer`."""

    def __init__(self) -> None:
        self._process = start("tests.support.trainer")

    def run(self, *orders: dict[str, Any]) -> list[int]:
        """Run the orders concurrently; return the exit code of each."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@cache
def the_trainer() -> Trainer:
    """The trainer shared by all tests, because its imports take seconds."""
    trainer = Trainer()
    atexit.register(trainer.close)
    return trainer


def order(config: TrainConfig, out: Path, **more: Any) -> dict[str, Any]:
    """An order to run a config; `more` says when to kill the run."""
    file = out.parent / f"{out.name}.toml"
    file.write_text(config.to_toml())
    return {"config": str(file), "out": str(out), **more}


def complaint(out: Path) -> str:
    """Standard error of a run."""
    return Path(f"{out}.stderr").read_text()
