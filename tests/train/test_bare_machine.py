"""Training commands on a machine with few packages besides torch and typer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import sys
HIDDEN = sys.argv.pop(1).split(",")
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else real(name, package)
import runpy
sys.argv = ["citadel", *sys.argv[1:]]
runpy.run_module("citadel", run_name="__main__")
"""


def run(hidden: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m citadel` with these packages hidden."""
    command = [sys.executable, "-c", HIDE, hidden, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_dense_mining_without_rich_and_the_engine(folder: Path, backbone: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[train]`")
    out = folder / "negatives.jsonl"
    options = ["--passages", folder / "passages.jsonl", "--pairs", folder / "pairs.jsonl", "--out", out]
    done = run("rich,Stemmer,backports", "mine", "--model", f"dense:{backbone}", *options, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 4


def test_missing_typer_says_what_to_install() -> None:
    done = run("typer", "train", "none.toml", "--out", "model")
    assert done.returncode == 2
    assert done.stderr == "citadel: the command line needs typer: run `pip install typer`\n"
