"""R16: building, merging and searching stay within the memory they were given."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import ROOT, environment
from tests.support.seeds import NIGHT

POSTINGS = 50_000_000 if NIGHT else 1_000_000


@pytest.mark.parametrize(
    ("megabytes", "postings", "dimension"),
    [(64, POSTINGS, 32), (128, POSTINGS, 32), (64, POSTINGS // 16, 512)],
)
def test_the_memory_bound_holds(megabytes: int, postings: int, dimension: int) -> None:
    if not Path("/proc/self/status").is_file():
        pytest.skip("/proc/self/status shows a process's memory on Linux only")
    found = run(megabytes << 20, postings, dimension)
    assert found["documents"] >= postings // 40
    for what, peak in found["peaks"].items():
        allowed = 1.1 * ((megabytes << 20) + found["baseline"])
        assert peak <= allowed, f"{what} took {(peak - found['baseline']) >> 20} MB, it was given {megabytes}"


def run(bound: int, postings: int, dimension: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = (str(number) for number in (bound, postings, dimension))
        command = [sys.executable, "-m", "tests.crash.memory_child", folder, *numbers]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(found)
    return found
