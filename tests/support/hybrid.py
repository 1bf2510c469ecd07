"""Hybrid indexes of given vectors, as if a model had made them: quick, and the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from citadel import Field, Index
from citadel.index.create import create_index
from citadel.index.storage import Storage, as_storage
from citadel.settings import DEFAULT_MEMORY, WordSettings, vector_settings
from citadel.text.analyser import get_analyser

FIELDS = {"lexical": Field(4), "semantic": Field(2)}


def create_hybrid(
    folder: Storage | Path | str,
    fields: Mapping[str, Field] | None = None,
    fingerprint: str = "test",
    memory: int = DEFAULT_MEMORY,
    analyser: str = "plain",
    tau: float | None = None,
) -> Index:
    """An empty index of vectors with BM25 lists of the documents' texts."""
    settings = vector_settings(fields or FIELDS, None, fingerprint, tau)
    words = WordSettings(get_analyser(analyser).fingerprint, analyser)
    storage = as_storage(folder)
    create_index(storage, replace(settings, model="by hand", words=words), graphs=False)
    return Index(storage, memory)
