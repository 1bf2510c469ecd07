"""Downloading backbones by name, from a local hub server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed: `pip install citadel-ir[train]`"
)

from citadel.model.hub import pinned
from scripts.smoke_data import write_backbone
from tests.support.hub import REVISION, serve, settings

CHILD = """
import sys
from citadel.errors import InputError
from citadel.model.hub import pinned
from citadel.model.load import load_pretrained
try:
    pretrained = load_pretrained(sys.argv[1])
    print(pretrained.config.vocabulary, pinned(sys.argv[1], pretrained.folder))
    print(*sorted(file.name for file in pretrained.folder.iterdir()))
except InputError as error:
    print("refused", error)
"""


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A repository with files that must not be downloaded."""
    folder = tmp_path / "repository"
    folder.mkdir()
    write_backbone(folder, 30, np.random.default_rng(0))
    (folder / "vocab.txt").write_text("[PAD]\n")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


def load(name: str, url: str, home: Path) -> str:
    """Load in a child process, because huggingface_hub reads its settings at import."""
    command = [sys.executable, "-c", CHILD, name]
    return subprocess.run(command, env=settings(url, home), capture_output=True, text=True, check=True).stdout


def test_only_safe_files_are_downloaded(backbone: Path, tmp_path: Path) -> None:
    with serve({"org/tiny": backbone}) as hub:
        output = load("org/tiny", hub.url, tmp_path / "home")
        assert output.splitlines() == [f"30 org/tiny@{REVISION}", "config.json model.safetensors vocab.txt"]
        assert not any(path.endswith((".bin", ".py")) for path in hub.requests)
        before = len(hub.requests)
        again = load(f"org/tiny@{REVISION}", hub.url, tmp_path / "home")
        assert again == output and not any("/resolve/" in path for path in hub.requests[before:])
    assert load("org/tiny", hub.url, tmp_path / "home") == output  # from the local copy, without the hub


def test_pickled_weights_are_rejected_and_not_downloaded(backbone: Path, tmp_path: Path) -> None:
    (backbone / "model.safetensors").unlink()
    with serve({"org/tiny": backbone}) as hub:
        output = load("org/tiny", hub.url, tmp_path / "home")
        assert output.startswith(
            "refused org/tiny/pytorch_model.bin: a pickled checkpoint can run code when read"
        )
        assert "save_pretrained(OUT, safe_serialization=True)" in output
        assert not any(path.endswith(".bin") for path in hub.requests)


def test_unknown_repository_is_an_error(backbone: Path, tmp_path: Path) -> None:
    with serve({"org/tiny": backbone}) as hub:
        output = load("org/other", hub.url, tmp_path / "home")
    assert output.startswith("refused org/other: no such folder, and the hub did not provide it (")
    assert output.count("\n") == 1 and "check the name, or name a local folder" in output


def test_pinned_keeps_a_folder_name(backbone: Path) -> None:
    assert pinned(str(backbone), backbone) == str(backbone)
