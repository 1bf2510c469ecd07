"""Paired tests against tables a reader can check, and against scipy where it is installed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import InputError
from citadel.eval.significance import bootstrap, compare, incomplete_beta, paired_t, t_tail


def test_t_by_hand() -> None:
    # mean 0.2, deviation 0.1, so t = 0.2 / (0.1 / √3) = 2√3; with 2 degrees of freedom p = 1 − t / √(t² + 2)
    t, p = paired_t([0.1, 0.2, 0.3])
    assert t == pytest.approx(2 * math.sqrt(3))
    assert p == pytest.approx(1 - math.sqrt(12 / 14))


@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.228, 10), (2.042, 30), (1.984, 100)])
def test_the_five_percent_column_of_the_t_table(t: float, freedom: int) -> None:
    assert t_tail(t, freedom) == pytest.approx(0.05, abs=5e-5)


@given(st.floats(0, 1), st.floats(0.5, 200), st.floats(0.5, 200))
def test_incomplete_beta_and_its_mirror_make_one(x: float, a: float, b: float) -> None:
    mirrored = 1 - x
    x = 1 - mirrored  # exactly, which the x given need not be: at a = 0.5 the least of it shows
    assert incomplete_beta(a, b, x) + incomplete_beta(b, a, mirrored) == pytest.approx(1, abs=1e-9)


@given(st.lists(st.floats(-1, 1).map(lambda value: round(value, 4)), min_size=2, max_size=60))
def test_scipy_says_the_same(differences: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    if np.std(differences) < 1e-6:
        return
    expected = stats.ttest_rel(differences, np.zeros(len(differences)))
    t, p = paired_t(differences)
    assert (t, p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-7, abs=1e-12)


def test_no_difference_is_no_evidence_and_the_same_difference_everywhere_is_all() -> None:
    assert paired_t([0.0, 0.0, 0.0]) == (0.0, 1.0)
    assert paired_t([0.1, 0.1, 0.1]) == (math.inf, 0.0)
    assert paired_t([0.3]) == (0.0, 1.0)


def test_bootstrap_interval_is_near_that_of_the_normal_distribution() -> None:
    differences = np.random.default_rng(3).normal(0.1, 0.5, 400).tolist()
    low, high = bootstrap(differences)
    spread = float(np.std(differences)) / 20  # of the mean of 400
    mean = float(np.mean(differences))
    assert low == pytest.approx(mean - 1.96 * spread, abs=0.2 * spread)
    assert high == pytest.approx(mean + 1.96 * spread, abs=0.2 * spread)
    assert bootstrap(differences) == (low, high)


def test_both_need_the_same_queries() -> None:
    with pytest.raises(InputError, match="'q2' is measured in one system only"):
        compare({"q1": 1.0, "q2": 1.0}, {"q1": 0.5})
