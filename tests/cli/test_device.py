"""`--device cuda` without a GPU: exit 2 and one sentence of advice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import citadel
from tests.support.children import environment


@pytest.mark.parametrize(
    "more",
    [["--device", "cuda"], ["--device", "opencl"], ["--gpu-memory", "much"], ["--card-memory", "much"]],
)
def test_unusable_device_is_exit_2_with_advice(more: list[str], tmp_path: Path) -> None:
    fields = {"lexical": citadel.Field(0, "fp16")}
    with citadel.Index.create(
        tmp_path / "index", router="sparse", fields=fields, fingerprint="test"
    ) as index:
        index.add_vectors([{"id": "d1", "keys": [1], "weights": [1.0]}])
        index.commit()
    command = [sys.executable, "-m", "citadel", "search", str(tmp_path / "index"), "rome", *more]
    hidden = environment() | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, env=hidden, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "--device cpu" in ended.stderr or "--gpu-memory 'much' is not a size" in ended.stderr
    assert "Traceback" not in ended.stderr
