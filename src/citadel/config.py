"""What an index is made of: its fields, router, codec and the bounds it works under."""

from __future__ import annotations

import os
from dataclasses import dataclass

from citadel.errors import UsageError

ROUTERS = ("all_to_all", "bm25", "dynamic", "none", "sparse", "static")
CODECS = ("fp16", "int8", "pq2", "pq1")
SUBVECTOR = {"pq2": 4, "pq1": 8}  # dimensions a code byte stands for
MAX_DIMENSION = 1024
DEFAULT_MEMORY = 1 << 30
WEIGHT_STEP = 0.02  # of the u8 weights: 255 steps reach 5.1, log(1 + 163)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an index: its vectors' dimension (0: weights alone) and codec.

    >>> Field(dimension=32, codec="pq2").subvectors
    8
    """

    dimension: int
    codec: str = "int8"

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise UsageError(f"unknown codec {self.codec!r}: choose one of {', '.join(CODECS)}")
        if not 0 <= self.dimension <= MAX_DIMENSION:
            raise UsageError(f"dimension {self.dimension} is out of range: 1 to {MAX_DIMENSION} can be stored")
        width = SUBVECTOR.get(self.codec, 1)
        if self.dimension % width:
            raise UsageError(
                f"{self.codec} needs a dimension divisible by {width}, not {self.dimension}: choose int8 or pad"
            )

    @property
    def subvectors(self) -> int:
        """How many code bytes a vector has under product quantisation."""
        return self.dimension // SUBVECTOR.get(self.codec, 1)


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides what a document's postings look like; written into every manifest.

    >>> Settings(router="bm25", fingerprint="english", analyser="english").has_text_queries
    True
    """

    router: str
    fingerprint: str
    lexical: Field | None = None
    semantic: Field | None = None
    tau: float = 0.0
    weight_step: float = WEIGHT_STEP
    analyser: str | None = None
    k1: float = 0.9
    b: float = 0.4
    model: str | None = None  # the name of the model that encodes text; its fingerprint says which one it is

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise UsageError(f"unknown router {self.router!r}: choose one of {', '.join(ROUTERS)}")
        if self.semantic is not None and self.semantic.codec not in ("fp16", "int8"):
            raise UsageError(f"the semantic field is stored as fp16 or int8, not {self.semantic.codec}")

    @property
    def has_text_queries(self) -> bool:
        """Whether this index can turn text into postings by itself."""
        return self.analyser is not None or self.model is not None


def available_threads() -> int:
    """The cores this process may use.

    >>> available_threads() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
