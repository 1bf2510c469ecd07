"""`calibration.json` of a model folder: from scores to the probability that a hit is relevant."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.model_files import MAX_CONFIG, read_model_file
from citadel.errors import InputError
from citadel.types import Floats

FORMAT = 1
CALIBRATION_FILE = "calibration.json"
_NUMBERS = ("score", "common", "weight", "constant")
_ADVICE = "fit it again with scripts/calibrate.py, or remove it"


@dataclass(frozen=True)
class Calibration:
    """A logistic function of a hit's score, and of two numbers of the query that shift all its scores.

    Unrelated texts share a large part of their semantic scores. `mean` is the mean semantic vector of
    training passages, so its dot product with the query estimates that part without reading the index.

    >>> calibration = Calibration(2.0, -1.0, 0.0, -1.0, np.array([1.0, 0.0]))
    >>> part = calibration.query_part(np.ones(3, np.float32), np.array([5.0, 2.0], np.float32))
    >>> calibration.relevance(np.array([3.0, 2.0], np.float32), part).round(3).tolist()
    [0.5, 0.119]
    """

    score: float  # > 0, so that a higher score never is less relevant
    common: float  # of the query's dot product with `mean`
    weight: float  # of the sum of the weights of the query's tokens
    constant: float
    mean: NDArray[np.float64]  # [s]

    def query_part(self, weights: Floats, semantic: Floats) -> float:
        """The part of the logit that all documents of a query share: weights [n], semantic [s]."""
        common = float(self.mean @ semantic.astype(np.float64))
        return self.common * common + self.weight * float(weights.sum(dtype=np.float64)) + self.constant

    def relevance(self, scores: Floats, query_part: float) -> NDArray[np.float64]:
        """Probabilities for scores [k]."""
        logits = self.score * scores.astype(np.float64) + query_part
        probabilities: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * logits))
        return probabilities


def load_calibration(folder: str, fingerprint: str, dimension: int) -> Calibration | None:
    """Read the calibration of the model with this fingerprint; None if the folder has no such file."""
    path = os.path.join(folder, CALIBRATION_FILE)
    if not os.path.lexists(path):
        return None
    try:
        data = json.loads(read_model_file(path, MAX_CONFIG))
    except (ValueError, RecursionError):
        raise InputError(f"cannot be read as JSON: {_ADVICE}", path) from None
    problem = _problem(data, fingerprint, dimension)
    if problem:
        raise InputError(f"{problem}: {_ADVICE}", path)
    score, common, weight, constant = (float(data[name]) for name in _NUMBERS)
    return Calibration(score, common, weight, constant, np.array(data["mean"], np.float64))


def save_calibration(folder: str, fingerprint: str, calibration: Calibration) -> None:
    """Write `calibration.json` into a model folder."""
    numbers = {name: getattr(calibration, name) for name in _NUMBERS}
    mean = [round(value, 5) for value in calibration.mean.tolist()]
    data = {"format": FORMAT, "fingerprint": fingerprint, **numbers, "mean": mean}
    with open(os.path.join(folder, CALIBRATION_FILE), "w", encoding="utf-8") as file:
        file.write(json.dumps(data) + "\n")


def _problem(data: Any, fingerprint: str, dimension: int) -> str:
    """What is wrong with the parsed file, or ""."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return f"this is not a calibration of format {FORMAT}"
    if data.get("fingerprint") != fingerprint:
        return "it was fitted for another model"
    for name in _NUMBERS:
        if not _is_finite(data.get(name)):
            return f"{name} is not a finite number"
    if data["score"] <= 0:
        return "score must be above 0"
    mean = data.get("mean")
    if not isinstance(mean, list) or len(mean) != dimension or not all(map(_is_finite, mean)):
        return f"mean is not a list of {dimension} finite numbers"
    return ""


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e30 and math.isfinite(value)
