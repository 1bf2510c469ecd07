"""In which span the states lie that a router multiplies with the embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from citadel.encode.config import ModelConfig
from citadel.model.forward import router_states
from citadel.model.matrices import ValueRange
from citadel.types import Floats

_LENGTHS = (8, 24, 48)  # more tokens move the bounds by less than MARGIN
MARGIN = 1.2


def router_span(config: ModelConfig, state: Mapping[str, Floats]) -> ValueRange:
    """Least and largest number over texts of random tokens, and a fifth beyond both.

    A model comes without texts. Behind `router.norm` random ones reach as far as real ones: for small-en from -1.65 to
    8.6, the abstracts of SciFact from -1.64 to 9.1.
    """
    random = np.random.default_rng(0)
    longest = config.backbone.longest
    low = high = 0.0
    for length in _LENGTHS:
        ids = random.integers(0, config.backbone.vocabulary, min(length, longest))
        ids[0] = config.cls_id
        states = router_states(config, state, ids)  # [T - 1, h]
        low, high = min(low, float(states.min(initial=0.0))), max(high, float(states.max(initial=0.0)))
    return ValueRange(low * MARGIN, max(high * MARGIN, 1e-6))
