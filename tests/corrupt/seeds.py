"""Reproducible random choices: CITADEL_SEED sets the seed, CITADEL_NIGHT=1 makes many more."""

from __future__ import annotations

import os
import random

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"


def chosen_seed() -> int:
    """The seed of this run, printed for reproduction; random at night unless CITADEL_SEED is set."""
    given = os.environ.get("CITADEL_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32) if NIGHT else 0
    print(f"CITADEL_SEED={seed}")
    return seed


def generator(*more: object) -> random.Random:
    """A random generator for one test, from the run's seed and the test's name."""
    return random.Random(":".join(map(str, (chosen_seed(), *more))))


def often(day: int, night: int) -> int:
    return night if NIGHT else day
