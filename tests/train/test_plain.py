"""Without typer the verbs of training still work, through argparse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from citadel.cli.plain import main

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "Stemmer", "backports"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("typer", "rich") else found(name, package)
import runpy
sys.argv = ["citadel", *sys.argv[1:]]
runpy.run_module("citadel", run_name="__main__")
"""


def test_dense_mining_without_typer_and_rich(folder: Path, backbone: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[train]`")
    out = folder / "negatives.jsonl"
    options = ["--passages", str(folder / "passages.jsonl"), "--pairs", str(folder / "pairs.jsonl"), "--out", str(out)]
    command = [sys.executable, "-c", HIDE, "mine", "--model", f"dense:{backbone}", *options, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 4


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["mine", "--model", "bm25", "--data", "none.toml", "--out", str(tmp_path / "x")]) == 4
    assert capsys.readouterr().err.startswith("citadel: none.toml: cannot be opened")
    with pytest.raises(SystemExit) as caught:
        main(["mine"])
    assert caught.value.code == 2
