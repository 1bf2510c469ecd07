"""Top-k selection."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from citadel.search.topk import best

SCORES = st.lists(st.integers(-3, 3), max_size=30)


@given(SCORES, st.integers(0, 40))
def test_best_equals_full_sort(scores: list[int], k: int) -> None:
    numbers = np.arange(len(scores))[::-1] * 10
    top = best(numbers, np.array(scores, np.float32), k)
    expected = sorted(zip(scores, numbers.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    assert list(zip(top.scores.tolist(), top.numbers.tolist(), strict=True)) == expected
