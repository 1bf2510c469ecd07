"""Calibrate the value range of router states, for int8 quantisation."""

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
    """Smallest and largest state over texts of random tokens, widened by a fifth.

    A model comes without texts. After `router.norm` random tokens give about the same range as real text: for
    small-en -1.65 to 8.6, for the abstracts of SciFact -1.64 to 9.1.
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
