"""Read all measurements below a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from citadel.errors import InputError
from citadel.eval.significance import Comparison, compare
from citadel.paper.packs import unpacked
from citadel.paper.record import QUERIES, Measurement, beside, read_json, read_measurement

# The order of the paper's Table 1; other systems come after these.
ORDER = (
    "BM25", "DPR-128", "DPR-384", "DPR-768", "SPLADE", "COIL-tok", "COIL-full", "ColBERT", "CITADEL-tok",
    "CITADEL", "coCondenser", "SPLADE-v2", "ColBERT-v2", "ColBERT-PLAID", "CITADEL+", "CITADEL+ w/o reg.",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One measurement and its file; its per-query values are in a file beside it."""

    file: Path
    record: Measurement

    @cached_property
    def values(self) -> dict[str, dict[str, float]]:
        """Measure → query → value; empty if the file is missing."""
        queries = beside(self.file, QUERIES)
        data = read_json(queries) if queries.is_file() else {}
        values: dict[str, dict[str, float]] = data.get("measures", {}) if isinstance(data, dict) else {}
        return values

    def against(self, other: Measured, measure: str) -> Comparison | None:
        """Compare with another measurement; None if one of them lacks the measure."""
        if measure not in self.values or measure not in other.values:
            return None
        return compare(self.values[measure], other.values[measure])


Measurements = Sequence[Measured]


def read_folder(folder: str | os.PathLike[str]) -> list[Measured]:
    """Read every measurement below a folder or in its packs, systems in the paper's order."""
    if not os.path.isdir(folder):
        raise InputError("no such folder: name one with files of `citadel measure`", os.fspath(folder))
    files = [file for file in sorted(unpacked(folder).rglob("*.json")) if not file.name.endswith(QUERIES)]
    measurements = [Measured(file, read_measurement(file)) for file in files if _is_measurement(file)]
    if not measurements:
        raise InputError(
            "no measurement below this folder: make some with `citadel measure`", os.fspath(folder)
        )
    return sorted(measurements, key=lambda each: (each.record.collection, table_order(each.record.system)))


def _is_measurement(file: Path) -> bool:
    data = read_json(file)
    return isinstance(data, dict) and "system" in data and "collection" in data


def table_order(system: str) -> tuple[int, str]:
    """Sort key: position of a system in a table.

    >>> table_order("CITADEL") < table_order("CITADEL+") < table_order("something else")
    True
    """
    names = [name.lower() for name in ORDER]
    return (names.index(system.lower()) if system.lower() in names else len(ORDER), system.lower())
