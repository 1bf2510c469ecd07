"""The scripts in examples/ are short, run and print the expected output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

EXPECTED = {
    "quickstart.py": [
        "who proposed relativity -> d1",
        "myocardial infarction -> d3",
        "2 documents, now: Wallace",
    ],
    "rag.py": ["[1] The coronary arteries", "(matched: ", "Question: What causes"],
    "given_vectors.py": ["['d42', "],
    "evaluate.py": ["small-en nDCG@10 ", "bm25 nDCG@10 "],
    "serve_and_client.py": ["['d2']"],
}
MAX_LINES = 40


def test_every_example_is_listed() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / name
    assert len(script.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CITADEL_")}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for part in EXPECTED[name]:
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []  # no files are left
