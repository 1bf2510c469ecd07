"""A build on a cluster: what decides the contents and the names of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from citadel.index.container import FORMAT
from citadel.index.storage import Storage, as_storage
from citadel.settings import EncodeOn

WORK_PREFIX = ".build-"
GPU = "cuda"  # the device of an encoder; Ray decides which GPU that is
UNIT_DOCUMENTS, UNIT_BYTES = 2_000, 4 << 20


@dataclass(frozen=True)
class Job:
    """A sharded index to be built.

    `settings` are arguments of `Index.create`; `options` describe them as texts, with the fingerprint of the
    model instead of its path. Everything but memory, graphs and the device decides names, so a rerun finds
    its files.
    """

    root: str
    source: str
    shards: int
    settings: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    generation: int = 1
    unit_documents: int = UNIT_DOCUMENTS
    unit_bytes: int = UNIT_BYTES
    memory: int = 1 << 30
    graph: bool = True
    encode_on: EncodeOn = field(default_factory=EncodeOn)

    @cached_property
    def key(self) -> str:
        """32 hex digits that identify the job."""
        parts = (FORMAT, self.source, self.shards, self.generation, self.unit_documents, self.unit_bytes)
        return digest(json.dumps([*parts, sorted(self.options.items())]))

    @property
    def uses_gpus(self) -> bool:
        """Whether each encoder takes a GPU of the cluster."""
        return self.encode_on.device == GPU

    @property
    def target(self) -> Storage:
        """The folder of the sharded index."""
        return as_storage(self.root)

    @property
    def work(self) -> Storage:
        """The folder of finished and unfinished units."""
        return self.target.inside(f"{WORK_PREFIX}{self.key}")


def digest(*parts: str) -> str:
    """32 hex digits of a hash of texts.

    >>> digest("a", "b") == digest("ab")
    False
    """
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
