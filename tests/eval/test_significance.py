"""Paired tests against values by hand, printed tables and an independent implementation."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from citadel.errors import InputError, UsageError
from citadel.eval.significance import bootstrap, compare, paired_t


def test_t_by_hand() -> None:
    # mean 0.2, deviation 0.1, so t = 0.2 / (0.1 / √3) = 2√3; with 2 degrees of freedom p = 1 − t / √(t² + 2)
    t, p = paired_t([0.1, 0.2, 0.3])
    assert t == pytest.approx(2 * math.sqrt(3))
    assert p == pytest.approx(1 - math.sqrt(12 / 14))


# (queries, mean, deviation, t, p) by a continued fraction of the incomplete beta function, without scipy
CONTINUED_FRACTION = [
    (2, 0.1, 0.2, 1.8057336854017352, 0.3219701344528147),
    (5, 0.0, 0.3, 0.2642844860176118, 0.8046189889080797),
    (30, 0.02, 0.1, 0.17923567568435933, 0.8589990754449802),
    (50, -0.05, 0.2, -1.3727728536041406, 0.17607351097635449),
    (300, 0.01, 0.15, 2.2173692065156687, 0.027349652559311825),
    (1406, 0.004, 0.2, 0.05546758111961412, 0.9557738429367196),
    (43, 0.3, 0.1, 18.825525677356747, 4.348175842474543e-22),
]


def test_t_and_p_agree_with_an_independent_computation() -> None:
    generator = np.random.default_rng(11)
    for queries, mean, deviation, t, p in CONTINUED_FRACTION:
        differences = [round(float(value), 4) for value in generator.normal(mean, deviation, queries)]
        assert paired_t(differences) == pytest.approx((t, p), rel=1e-12, abs=0), queries


@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.228, 10), (2.042, 30), (1.984, 100)])
def test_t_table_at_five_percent(t: float, freedom: int) -> None:
    # Differences with mean m and deviation 1 over n queries have t = m √n.
    values = np.arange(freedom + 1, dtype=np.float64)
    scaled = (values - values.mean()) / values.std(ddof=1) + t / math.sqrt(freedom + 1)
    assert paired_t(scaled.tolist())[1] == pytest.approx(0.05, abs=5e-5)


def test_missing_scipy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(UsageError, match=r"scipy: run `pip install 'citadel-ir\[eval\]'`"):
        paired_t([0.1, 0.2, 0.3])


def test_t_of_equal_differences() -> None:
    assert paired_t([0.0, 0.0, 0.0]) == (0.0, 1.0)
    assert paired_t([0.1, 0.1, 0.1]) == (math.inf, 0.0)
    assert paired_t([0.3]) == (0.0, 1.0)


def test_bootstrap_interval_matches_the_normal_distribution() -> None:
    differences = np.random.default_rng(3).normal(0.1, 0.5, 400).tolist()
    low, high = bootstrap(differences)
    spread = float(np.std(differences)) / 20  # of the mean of 400
    mean = float(np.mean(differences))
    assert low == pytest.approx(mean - 1.96 * spread, abs=0.2 * spread)
    assert high == pytest.approx(mean + 1.96 * spread, abs=0.2 * spread)
    assert bootstrap(differences) == (low, high)


def test_compare_needs_the_same_queries() -> None:
    with pytest.raises(InputError, match="'q2' is measured in one system only"):
        compare({"q1": 1.0, "q2": 1.0}, {"q1": 0.5})
