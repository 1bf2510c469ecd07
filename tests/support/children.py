"""Writers and readers in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import citadel

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Environment of a child process that imports this package and these tests."""
    source = Path(citadel.__file__).resolve().parents[1]
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "OPENBLAS_NUM_THREADS": "1"}


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start `python -m tests.…` with pipes."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Nursery:
    """A process with all imports done that forks a writer per order, which takes milliseconds."""

    def __init__(self) -> None:
        self._process = start("tests.support.nursery")

    def run(self, **order: Any) -> dict[str, Any]:
        """Fork a writer; return what it acknowledged and its exit status."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
