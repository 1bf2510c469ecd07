"""All measurements below a folder, by system and collection."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from citadel.errors import InputError
from citadel.eval.significance import Comparison, compare
from citadel.paper.packs import unpacked
from citadel.paper.record import QUERIES, Measurement, beside, read_json, read_measurement

# In the order of the paper's Table 1; systems it does not know stand after these.
ORDER = (
    "BM25", "DPR-128", "DPR-384", "DPR-768", "SPLADE", "COIL-tok", "COIL-full", "ColBERT", "CITADEL-tok", "CITADEL",
    "coCondenser", "SPLADE-v2", "ColBERT-v2", "CITADEL+", "CITADEL+ w/o reg.",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One measurement with its file, beside which its per-query values are."""

    file: Path
    record: Measurement

    @cached_property
    def values(self) -> dict[str, dict[str, float]]:
        """Measure → query → value; empty where they were not kept."""
        queries = beside(self.file, QUERIES)
        found = read_json(queries) if queries.is_file() else {}
        values: dict[str, dict[str, float]] = found.get("measures", {}) if isinstance(found, dict) else {}
        return values

    def against(self, other: Measured, measure: str) -> Comparison | None:
        """This one minus the other, where both have the measure."""
        if measure not in self.values or measure not in other.values:
            return None
        return compare(self.values[measure], other.values[measure])


def read_folder(folder: str | os.PathLike[str]) -> list[Measured]:
    """Every measurement below a folder or in its packs, systems in the paper's order."""
    if not os.path.isdir(folder):
        raise InputError("there is no such folder: name one with files of `citadel measure`", os.fspath(folder))
    files = [file for file in sorted(unpacked(folder).rglob("*.json")) if not file.name.endswith(QUERIES)]
    found = [Measured(file, read_measurement(file)) for file in files if _is_measurement(file)]
    if not found:
        raise InputError("no measurement below this folder: make some with `citadel measure`", os.fspath(folder))
    return sorted(found, key=lambda each: (each.record.collection, place(each.record.system)))


def _is_measurement(file: Path) -> bool:
    found = read_json(file)
    return isinstance(found, dict) and "system" in found and "collection" in found


def place(system: str) -> tuple[int, str]:
    """Where a system stands in a table.

    >>> place("CITADEL") < place("CITADEL+") < place("something else")
    True
    """
    names = [name.lower() for name in ORDER]
    return (names.index(system.lower()) if system.lower() in names else len(ORDER), system.lower())
