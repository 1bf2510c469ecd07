"""A run from a backbone on the Hugging Face Hub records its revision."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed: `pip install citadel-ir[train]`"
)

from tests.support.hub import REVISION, serve, settings
from tests.support.training import Configs, tiny_run


def test_config_records_the_revision(config: Configs, backbone: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(tiny_run(config, optimizer={"steps": 1}).with_backbone("org/tiny").to_toml())
    command = [sys.executable, "-m", "citadel", "train", str(file), "--out", str(out)]
    with serve({"org/tiny": backbone}) as hub:
        options: Any = {"env": settings(hub.url, tmp_path / "home"), "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr
    written = tomllib.loads((out / "train.toml").read_text())
    assert written["model"]["backbone"] == f"org/tiny@{REVISION}"
