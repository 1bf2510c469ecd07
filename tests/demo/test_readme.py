"""The Python of the README's first screen runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
FIRST_SCREEN = 45  # lines


@pytest.fixture(scope="module")
def first_screen() -> str:
    return "\n".join(README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN])


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def run(code: str, folder: Path) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    plain = {name: value for name, value in os.environ.items() if name != "CITADEL_MODEL"}  # as a reader has it
    done = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_first_screen_names_both_commands(first_screen):
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_the_first_six_lines_run_and_find_the_document(first_screen, tmp_path):
    (code,) = python_blocks(first_screen)
    assert len([line for line in code.splitlines() if line.strip()]) == 6
    (line,) = run(code, tmp_path)
    assert line.startswith("d1 ")


def test_every_other_python_block_runs(tmp_path):
    pages = [README, README.parent / "docs" / "python.md"]
    blocks = [code for page in pages for code in python_blocks(page.read_text(encoding="utf-8"))]
    assert len(blocks) >= 3
    for number, code in enumerate(blocks[1:]):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(code, folder)
