"""Download backbones and teachers from the Hugging Face hub: safetensors, config and tokenizer only."""

from __future__ import annotations

import os
from pathlib import Path

from citadel.errors import InputError
from citadel.model.safety import refuse_pickled

FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "tokenizer.json", "vocab.txt"]


# Of a model to import. `*` also matches folders.
MODEL_FILES = [*FILES, "*config.json", "modules.json", "config_sentence_transformers.json"]
MODEL_FILES += ["sentence_*_config.json", "artifact.metadata", "router_config.json", "*/tokenizer.json"]


def fetch(name: str, files: list[str] = FILES) -> Path:
    """The local copy of a repository, downloaded if needed; `org/name@REVISION` selects a revision."""
    repository, _, revision = name.partition("@")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not repository:
        raise InputError("no such folder: name a backbone's folder or its hub id", name)
    try:
        from huggingface_hub import list_repo_files, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise InputError("no such folder, and the hub needs `pip install citadel-ir[train]`", name) from None
    try:
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=files))
        if not any(folder.glob("*.safetensors")):  # pickled files are named in the error, never downloaded
            refuse_pickled(list_repo_files(repository, revision=folder.name), name)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        advice = "check the name, or name a local folder"
        raise InputError(
            f"no such folder, and the hub did not provide it ({reason}): {advice}", name
        ) from None
    return folder


def pinned(name: str, folder: Path) -> str:
    """Add the downloaded revision to a hub name, so that a run can be repeated; a folder name is unchanged.

    >>> pinned("org/name", Path("snapshots/1a2b"))
    'org/name@1a2b'
    """
    return name if os.path.isdir(name) else f"{name.partition('@')[0]}@{folder.name}"
