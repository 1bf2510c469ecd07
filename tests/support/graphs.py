"""Small indexes with graphs: vectors around a few centres, as passages lie around topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import citadel
from tests.index.quick import Quick

DIMENSION, SEMANTIC, KEYS, CENTRES = 8, 24, 30, 12
DOCUMENTS = 600
_ROUTERS = {"vectors": "dynamic", "sparse": "sparse", "none": "none"}


def given(number: int, kind: str = "vectors", seed: int = 0) -> dict[str, Any]:
    """The vectors of document or query `number`."""
    centres = np.random.default_rng(1).normal(size=(CENTRES, SEMANTIC))
    random = np.random.default_rng([seed, number])
    rows: dict[str, Any] = {}
    if kind != "none":
        rows["keys"] = random.choice(KEYS, 6, replace=False)
        rows["weights"] = (random.random(6) * 2 + 0.8).round(2)
    if kind == "vectors":
        rows["vectors"] = random.normal(size=(6, DIMENSION)).astype(np.float32) / 4
    semantic = centres[random.integers(CENTRES)] + 0.6 * random.normal(size=SEMANTIC)
    return rows | {"semantic": semantic.astype(np.float32)}


def query(number: int, kind: str = "vectors") -> dict[str, Any]:
    return given(number, kind, seed=99)


def document(number: int, kind: str = "vectors") -> dict[str, Any]:
    fields = {"id": f"d{number}", "text": f"text {number}", "number": number, "parity": number % 2}
    return {**fields, **given(number, kind)}


def create(folder: Path, kind: str = "vectors", codec: str = "int8", graph: bool = True) -> citadel.Index:
    fields: dict[str, Any] = {"semantic": {"dimension": SEMANTIC, "codec": "int8"}}
    if kind == "vectors":
        fields["lexical"] = {"dimension": DIMENSION, "codec": codec}
    elif kind == "sparse":
        fields["lexical"] = {"dimension": 0, "codec": "fp16"}
    router = _ROUTERS[kind]
    return citadel.Index.create(
        Quick(folder), fields=fields, router=router, fingerprint="by hand", graph=graph
    )


def build(folder: Path, kind: str = "vectors", codec: str = "int8") -> citadel.Index:
    """An index of one segment with a graph."""
    index = create(folder, kind, codec)
    index.add_vectors([document(number, kind) for number in range(DOCUMENTS)])
    assert index.optimize(min_documents=1) == 1
    return index


def graph_path(folder: Path) -> Path:
    (path,) = folder.glob("graph-*")
    return path
