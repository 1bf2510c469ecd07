"""The README: commands and code on the first screen, quality table and layout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FIRST_SCREEN = 45  # lines


@pytest.fixture(scope="module")
def first_screen() -> str:
    return "\n".join(README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN])


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def run(code: str, folder: Path) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {name: value for name, value in os.environ.items() if name != "CITADEL_MODEL"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_first_screen_names_both_commands(first_screen: str) -> None:
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_first_six_lines_run_twice(first_screen: str, tmp_path: Path) -> None:
    (code,) = python_blocks(first_screen)
    assert len([line for line in code.splitlines() if line.strip()]) == 6
    once, again = run(code, tmp_path), run(code, tmp_path)
    assert once == again and once[0].startswith("d1 ")


def test_first_screen_states_the_limits_of_the_model(first_screen: str) -> None:
    config = (ROOT / "models" / "small-en" / "config.json").read_text(encoding="utf-8")
    document, query = (re.search(rf'"{side}_length": (\d+)', config) for side in ("document", "query"))
    assert document is not None and query is not None
    assert f"{document.group(1)} tokens per text and {query.group(1)} per query" in first_screen


def test_quality_table_matches_results() -> None:
    """Every nDCG@10 in the README agrees with docs/results.md to three digits."""
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\w+), nDCG@10 \| \*\*([\d.]+)\*\* \| ([\d.]+) \| ([\d.]+) \|", README.read_text(), re.M
    )
    assert [row[0] for row in rows] == ["SciFact", "Cranfield", "Vaswani"]
    for name, *values in rows:
        row = re.search(
            rf"^\| {name} \| [\d, ]+ \| \*\*([\d.]+)\*\* \| ([\d.]+) \| ([\d.]+) \|", results, re.M
        )
        assert row is not None
        assert all(abs(float(a) - float(b)) <= 0.00051 for a, b in zip(values, row.groups(), strict=True))


def test_layout_names_every_folder() -> None:
    text = README.read_text(encoding="utf-8")
    layout = text[text.index("## Layout") : text.index("## Benchmarks")]
    named = set(re.findall(r"`([a-z_]+)`", layout))
    folders = {path.parent.name for path in (ROOT / "src" / "citadel").glob("*/__init__.py")}
    assert folders - named == set()


def test_layout_names_the_folders_that_use_torch() -> None:
    text = README.read_text(encoding="utf-8")
    sentence = re.search(r"^torch is used in (.*?);", text, re.M | re.S)
    assert sentence is not None
    source = ROOT / "src" / "citadel"
    using = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if re.search(r"^\s*(?:import torch|from torch)\b", path.read_text(encoding="utf-8"), re.M)
    }
    assert {name.partition("/")[0] for name in re.findall(r"`([\w/]+)`", sentence.group(1))} == using
