"""Reproducible random tests: the seed is printed, and CITADEL_SEED sets it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"


def seeded(what: str) -> random.Random:
    """A generator for one test; pytest shows the printed seed if the test fails."""
    seed = os.environ.get("CITADEL_SEED") or str(time.time_ns() & 0xFFFFFFFF)
    print(f"{what}: CITADEL_SEED={seed}")
    return random.Random(f"{seed} {what}")


def fast_folder() -> str | None:
    """A folder in memory if there is one, else None; tests that kill processes need no real disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() and os.access("/dev/shm", os.W_OK) else None
