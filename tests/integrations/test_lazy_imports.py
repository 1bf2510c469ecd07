"""Importing citadel imports no framework, and the table of packages lists every extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from conftest import FRAMEWORKS
from scripts.install_sizes import DEVELOPMENT, installed_bytes, requirements

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import citadel, citadel.cli.main, citadel.integrations
from citadel import Document, Index, Searcher, Hybrid, fuse
print(" ".join(name for name in sys.argv[1].split() if name in sys.modules))
"""


def test_importing_citadel_imports_no_framework() -> None:
    heavy = {
        *FRAMEWORKS.values(),
        "dspy",
        "fastapi",
        "pandas",
        "pydantic",
        "sentence_transformers",
        "torch",
        "txtai",
    }
    command = [sys.executable, "-c", PROGRAM, " ".join(heavy)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_table_of_packages_lists_every_extra() -> None:
    table = (ROOT / "docs" / "reference" / "packages.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `\[([\w-]+)\]` \|", table, re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert listed == set(extras) - DEVELOPMENT


def test_sizes_of_packages() -> None:
    needed = requirements("citadel-ir", ())
    assert {"numpy", "onnxruntime"} <= needed.keys() and "torch" not in needed
    assert (installed_bytes("numpy") or 0) > 1e6 and installed_bytes("no-such-package") is None
