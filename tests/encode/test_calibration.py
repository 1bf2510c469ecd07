"""`calibration.json`: what is read, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel.encode.calibration import CALIBRATION_FILE, Calibration, load_calibration, save_calibration
from citadel.errors import InputError

GIVEN = Calibration(2.0, -1.5, -0.25, 3.0, np.array([0.5, -0.25]))


def test_a_saved_calibration_is_read_back(tmp_path: Path) -> None:
    save_calibration(str(tmp_path), "model", GIVEN)
    read = load_calibration(str(tmp_path), "model", 2)
    assert read is not None
    assert (read.score, read.common, read.weight, read.constant) == (2.0, -1.5, -0.25, 3.0)
    assert read.mean.tolist() == [0.5, -0.25]


def test_a_folder_without_the_file_has_no_calibration(tmp_path: Path) -> None:
    assert load_calibration(str(tmp_path), "model", 2) is None


def test_relevance_rises_with_the_score_and_stays_within_0_and_1() -> None:
    scores = np.array([-1e30, -5.0, 0.0, 5.0, 1e30], np.float32)
    relevance = GIVEN.relevance(scores, 0.0)
    assert relevance[0] == 0.0
    assert relevance[-1] == 1.0
    assert (np.diff(relevance) > 0).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format 1"),
        ({"fingerprint": "other"}, "another model"),
        ({"score": 0}, "above 0"),
        ({"score": -1.0}, "above 0"),
        ({"score": True}, "finite"),
        ({"common": "1"}, "finite"),
        ({"constant": float("nan")}, "finite"),
        ({"weight": float("inf")}, "finite"),
        ({"weight": 10**400}, "finite"),
        ({"mean": [1.0]}, "2 finite numbers"),
        ({"mean": [1.0, None]}, "2 finite numbers"),
        ({"mean": {}}, "2 finite numbers"),
    ],
)
def test_a_wrong_calibration_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    save_calibration(str(tmp_path), "model", GIVEN)
    path = tmp_path / CALIBRATION_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=reason):
        load_calibration(str(tmp_path), "model", 2)


@pytest.mark.parametrize("contents", [b"", b"[]", b"\xff", b"[" * 100_000, b"{"])
def test_a_damaged_calibration_is_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / CALIBRATION_FILE).write_bytes(contents)
    with pytest.raises(InputError, match=CALIBRATION_FILE):
        load_calibration(str(tmp_path), "model", 2)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / CALIBRATION_FILE)
    with pytest.raises(InputError, match="not a regular file"):
        load_calibration(str(tmp_path), "model", 2)
