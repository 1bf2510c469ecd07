"""The notebooks in examples/notebooks are committed without output and run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
TRAINS = {"train-on-your-own-data"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CITADEL_")}


def test_there_are_three() -> None:
    names = ["evaluate-and-compare", "first-steps", "train-on-your-own-data"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_output(path: Path) -> None:
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem not in TRAINS], ids=lambda path: path.stem
)
def test_code_runs_as_a_script(path: Path, tmp_path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_in_jupyter(path: Path, tmp_path: Path) -> None:
    for package in ("nbclient", "ipykernel", *(["torch"] if path.stem in TRAINS else [])):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: the extra [notebooks]")
    for folder in ("scripts", "configs", "models"):  # a notebook that trains writes below the repository
        if path.stem in TRAINS:
            shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copyfile(path, tmp_path / path.name)
    program = (
        "import nbformat, sys\nfrom nbclient import NotebookClient\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "NotebookClient(notebook, timeout=600, kernel_name='python3').execute()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path.name],
        cwd=tmp_path, env=environment() | {"IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
