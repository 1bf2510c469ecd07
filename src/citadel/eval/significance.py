"""Is a difference between two systems more than chance? Paired over the queries: t-test and bootstrap interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from citadel.errors import InputError

SAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """Of one measure: this system minus the baseline, over the same queries."""

    queries: int
    difference: float  # of the means
    t: float
    p: float  # two-sided
    low: float  # bootstrap interval of the difference
    high: float


def compare(values: Mapping[str, float], baseline: Mapping[str, float]) -> Comparison:
    """Pair two systems' values by query; both must have the same queries.

    >>> found = compare({"q1": 0.5, "q2": 0.7, "q3": 0.9}, {"q1": 0.4, "q2": 0.5, "q3": 0.6})
    >>> round(found.difference, 3), round(found.t, 3), round(found.p, 4)
    (0.2, 3.464, 0.0742)
    """
    if set(values) != set(baseline):
        lacking = sorted(set(values) ^ set(baseline))[0]
        raise InputError(f"query {lacking!r} is measured in one system only: measure both on the same queries")
    differences = [values[query] - baseline[query] for query in values]
    t, p = paired_t(differences)
    low, high = bootstrap(differences)
    return Comparison(len(differences), sum(differences) / max(len(differences), 1), t, p, low, high)


def paired_t(differences: Sequence[float]) -> tuple[float, float]:
    """Student's t of paired differences and its two-sided p; (0, 1) where nothing differs or one query is all.

    >>> paired_t([0.0, 0.0])
    (0.0, 1.0)
    """
    n = len(differences)
    if n < 2 or not any(differences):
        return 0.0, 1.0
    mean = math.fsum(differences) / n
    variance = math.fsum((each - mean) ** 2 for each in differences) / (n - 1)
    if variance <= (1e-12 * mean) ** 2:  # every query differs alike, to rounding
        return math.copysign(math.inf, mean), 0.0
    t = mean / math.sqrt(variance / n)
    return t, t_tail(t, n - 1)


def t_tail(t: float, freedom: int) -> float:
    """The probability of a value at least as far from 0 as t, under Student's distribution.

    >>> round(t_tail(2.0, 10), 5)
    0.07339
    """
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction.

    >>> round(incomplete_beta(2, 2, 0.5), 12)
    0.5
    """
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly its mirror does not
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float, steps: int = 500) -> float:
    """Lentz's way through the continued fraction of the incomplete beta function."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, steps):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            d = 1 / _away(1 + part * d)
            c = _away(1 + part / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def bootstrap(differences: Sequence[float], samples: int = SAMPLES, level: float = LEVEL) -> tuple[float, float]:
    """The interval that holds that share of the means of queries drawn with replacement; the same each time.

    >>> bootstrap([0.25, 0.25, 0.25])
    (0.25, 0.25)
    """
    if not differences:
        return 0.0, 0.0
    values, generator = np.asarray(differences, np.float64), np.random.default_rng(0)
    step = max(1, (1 << 22) // len(values))  # so that many queries need little memory
    parts = [min(step, samples - start) for start in range(0, samples, step)]
    means = [values[generator.integers(0, len(values), (part, len(values)))].mean(axis=1) for part in parts]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)
