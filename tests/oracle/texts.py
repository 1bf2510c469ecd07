"""Small random texts with the inputs of every router."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from citadel.types import TokenVectors

KEYS, DIMENSION, SEMANTIC = 6, 3, 2

# Halves, so that equal activations, exact cancellations and negative matches are common.
halves = st.integers(-6, 6).map(lambda n: n / 2)
rough = st.floats(-4, 4, width=32)
numbers = st.one_of(halves, rough)
activations = st.one_of(st.just(0.0), st.integers(0, 4).map(lambda n: n / 2), st.floats(0, 4, width=32))


@st.composite
def texts(draw: st.DrawFn, shortest: int = 0) -> TokenVectors:
    length = draw(st.integers(shortest, 5))
    return TokenVectors(
        draw(arrays.arrays(np.uint32, length, elements=st.integers(0, KEYS - 1))),
        draw(arrays.arrays(np.float32, (length, DIMENSION), elements=numbers)),
        draw(arrays.arrays(np.float32, (length, KEYS), elements=activations)),
        draw(arrays.arrays(np.float32, SEMANTIC, elements=numbers)),
    )
