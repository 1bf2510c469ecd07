"""The table of all systems, from measurements written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from citadel.errors import InputError
from citadel.paper.family import family_table
from citadel.paper.measured import read_folder
from citadel.paper.record import QUERIES, Measurement, beside, write_measurement


def keep(folder: Path, system: str, values: list[float], products: float, **changes: Any) -> Path:
    file = folder / f"{system}.json"
    mean = round(sum(values) / len(values), 6)
    named = {f"q{number}": value for number, value in enumerate(values, 1)}
    defaults: dict[str, Any] = {
        "documents": 10,
        "queries": len(values),
        "measures": {"nDCG@10": mean},
        "stages": {"dot_products": products},
        "postings": 600,
        "list_sizes": [[100, 2], [50, 8]],
        "bytes": 21_930,
        "settings": {"router": "static", "engine": "native"},
        "machine": {"date": "2026-11-15"},
    }
    write_measurement(file, Measurement(system, "tiny", **{**defaults, **changes}))
    beside(file, QUERIES).write_text(json.dumps({"measures": {"nDCG@10": named}}))
    return file


def test_rows_in_paper_order_with_p_values(tmp_path: Path) -> None:
    keep(tmp_path, "CITADEL", [0.5, 0.7, 0.9], 100)
    keep(tmp_path, "ColBERT", [0.4, 0.5, 0.6], 10_100)
    keep(tmp_path, "mine", [0.5, 0.7, 0.9], 100)
    lines = family_table(read_folder(tmp_path)).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[4:7]] == ["ColBERT", "CITADEL", "mine"]
    # A difference of 0.2 with deviation 0.1 over three queries: t = 2√3, p = 0.074
    assert lines[4] == "| ColBERT | 0.5000 | 0.074 | – | – | 10,100 | 60 | 100 | 2,193 |"
    assert lines[5] == "| CITADEL | 0.7000 | – | – | – | 100 | 60 | 100 | 2,193 |"
    assert lines[6].split(" | ")[2] == "1.000"


def test_claim_holds_or_does_not_hold(tmp_path: Path) -> None:
    keep(tmp_path, "CITADEL", [0.5, 0.7, 0.9], 100)
    colbert = keep(tmp_path, "ColBERT", [0.4, 0.5, 0.6], 10_100)
    assert "1/101 of its dot products" in family_table(read_folder(tmp_path))
    assert "holds here" in family_table(read_folder(tmp_path))
    colbert.unlink()
    keep(tmp_path, "ColBERT", [0.6, 0.8, 1.0], 10_100)
    assert "worse than ColBERT" in family_table(read_folder(tmp_path))
    assert "does not hold here" in family_table(read_folder(tmp_path))


def test_systems_with_a_teacher_have_their_own_table(tmp_path: Path) -> None:
    """Both are compared on equal terms: CITADEL with ColBERT, CITADEL+ with ColBERT-v2."""
    keep(tmp_path, "CITADEL", [0.5, 0.7, 0.9], 100)
    keep(tmp_path, "ColBERT", [0.4, 0.5, 0.6], 10_100)
    keep(tmp_path, "CITADEL+", [0.6, 0.7, 0.9], 100)
    assert "with a teacher" not in family_table(read_folder(tmp_path))
    assert "CITADEL+ is at least as good as ColBERT (" in family_table(read_folder(tmp_path))
    keep(tmp_path, "ColBERT-v2", [0.7, 0.8, 0.9], 10_100)
    plain, taught = family_table(read_folder(tmp_path)).split("### tiny, with a teacher (")
    assert "### tiny, without a teacher (" in plain
    assert "CITADEL is at least as good as ColBERT (" in plain and "CITADEL+" not in plain
    assert "CITADEL+ is worse than ColBERT-v2 (" in taught and "against CITADEL+" in taught
    assert "| ColBERT-v2 | 0.8000 |" in taught
    assert "a teacher" not in family_table(read_folder(tmp_path), "ColBERT")


def test_missing_values_are_dashes(tmp_path: Path) -> None:
    keep(tmp_path, "DPR-128", [0.5, 0.5], 10, measures={}, stages={}, postings=0, list_sizes=[], bytes=0)
    assert "| DPR-128 | – | – | – | – | – | – | – | – |" in family_table(read_folder(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"system": "x", "collection": "c", "format": 2}', "not a measurement of format 1"),
        ('{"system": "x", "collection": "c", "format": 1}', "incomplete measurement"),
        ('{"system": "x", "collection": "c", "format": 1, "weight": 3}', "unknown field 'weight'"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=rf"x\.json: .*{message}"):
        read_folder(tmp_path)


def test_folder_without_measurements(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(InputError, match="no measurement below this folder"):
        read_folder(tmp_path)
