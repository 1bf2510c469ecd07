"""Paired significance tests over queries: Student's t-test and a bootstrap confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from citadel.errors import InputError, UsageError

SAMPLES = 10_000
LEVEL = 0.95
MAX_DRAWS = 1 << 22  # query indices drawn at a time


@dataclass(frozen=True)
class Comparison:
    """One measure of a system minus that of the baseline, over the same queries."""

    queries: int
    difference: float  # of the means
    t: float
    p: float  # two-sided
    low: float  # bootstrap interval of the difference
    high: float


def compare(values: Mapping[str, float], baseline: Mapping[str, float]) -> Comparison:
    """Compare the per-query values of two systems; both need the same queries.

    >>> result = compare({"q1": 0.5, "q2": 0.7, "q3": 0.9}, {"q1": 0.4, "q2": 0.5, "q3": 0.6})
    >>> round(result.difference, 3), round(result.t, 3), round(result.p, 4)
    (0.2, 3.464, 0.0742)
    """
    if set(values) != set(baseline):
        missing = sorted(set(values) ^ set(baseline))[0]
        raise InputError(
            f"query {missing!r} is measured in one system only: measure both on the same queries"
        )
    differences = [values[query] - baseline[query] for query in values]
    t, p = paired_t(differences)
    low, high = bootstrap(differences)
    return Comparison(len(differences), sum(differences) / max(len(differences), 1), t, p, low, high)


def paired_t(differences: Sequence[float]) -> tuple[float, float]:
    """Student's t of paired differences and its two-sided p-value.

    (0, 1) if there is no difference or a single query; (±inf, 0) if all differences are equal.

    >>> paired_t([0.0, 0.0])
    (0.0, 1.0)
    """
    values = np.asarray(differences, np.float64)
    if len(values) < 2 or not values.any():
        return 0.0, 1.0
    mean = float(values.mean())
    if float(values.std(ddof=1)) <= 1e-12 * abs(mean):  # equal up to rounding
        return math.copysign(math.inf, mean), 0.0
    try:
        from scipy.stats import ttest_1samp
    except ImportError:
        install = "run `pip install 'citadel-ir[eval]'`, or '.[eval]' in a clone"
        raise UsageError(f"the t-test needs the package scipy: {install}") from None
    result = ttest_1samp(values, 0.0)
    return float(result.statistic), float(result.pvalue)


def bootstrap(
    differences: Sequence[float], samples: int = SAMPLES, level: float = LEVEL
) -> tuple[float, float]:
    """Percentile interval of the mean over queries drawn with replacement; the seed is fixed.

    >>> bootstrap([0.25, 0.25, 0.25])
    (0.25, 0.25)
    """
    if not differences:
        return 0.0, 0.0
    values, generator = np.asarray(differences, np.float64), np.random.default_rng(0)
    step = max(1, MAX_DRAWS // len(values))
    parts = [min(step, samples - start) for start in range(0, samples, step)]
    means = [values[generator.integers(0, len(values), (part, len(values)))].mean(axis=1) for part in parts]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)
