"""A backbone by its name on the hub, from a hub on this machine: what is fetched, what is refused, what is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: `pip install citadel-ir[train]`")

from citadel.model.hub import pinned
from scripts.smoke_data import write_backbone
from tests.support.hub import REVISION, serve, settings

CHILD = """
import sys
from citadel.errors import InputError
from citadel.model.hub import pinned
from citadel.model.load import load_pretrained
try:
    found = load_pretrained(sys.argv[1])
    print(found.config.vocabulary, pinned(sys.argv[1], found.folder))
    print(*sorted(file.name for file in found.folder.iterdir()))
except InputError as error:
    print("refused", error)
"""


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A repository with more in it than is wanted."""
    folder = tmp_path / "repository"
    folder.mkdir()
    write_backbone(folder, 30, np.random.default_rng(0))
    (folder / "vocab.txt").write_text("[PAD]\n")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


def load(name: str, url: str, home: Path) -> str:
    """What a process of its own says: huggingface_hub reads its settings when it is imported."""
    command = [sys.executable, "-c", CHILD, name]
    return subprocess.run(command, env=settings(url, home), capture_output=True, text=True, check=True).stdout


def test_safetensors_are_fetched_and_nothing_that_could_run(backbone: Path, tmp_path: Path) -> None:
    with serve({"org/tiny": backbone}) as hub:
        said = load("org/tiny", hub.url, tmp_path / "home")
        assert said.splitlines() == [f"30 org/tiny@{REVISION}", "config.json model.safetensors vocab.txt"]
        assert not any(path.endswith((".bin", ".py")) for path in hub.asked)
        before = len(hub.asked)
        again = load(f"org/tiny@{REVISION}", hub.url, tmp_path / "home")
        assert again == said and not any("/resolve/" in path for path in hub.asked[before:])
    assert load("org/tiny", hub.url, tmp_path / "home") == said  # the hub is gone, the copy is not


def test_pickled_weights_are_refused_and_not_fetched(backbone: Path, tmp_path: Path) -> None:
    (backbone / "model.safetensors").unlink()
    with serve({"org/tiny": backbone}) as hub:
        said = load("org/tiny", hub.url, tmp_path / "home")
        assert said.startswith("refused org/tiny/pytorch_model.bin: a pickled checkpoint can run code when read")
        assert "save_pretrained(OUT, safe_serialization=True)" in said
        assert not any(path.endswith(".bin") for path in hub.asked)


def test_a_name_that_the_hub_does_not_know(backbone: Path, tmp_path: Path) -> None:
    with serve({"org/tiny": backbone}) as hub:
        said = load("org/other", hub.url, tmp_path / "home")
    assert said.startswith("refused org/other: no such folder, and the hub did not provide it (")
    assert said.count("\n") == 1 and "check the name, or name a local folder" in said


def test_a_folder_has_no_revision(backbone: Path) -> None:
    assert pinned(str(backbone), backbone) == str(backbone)
