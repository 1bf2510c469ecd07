"""The calibrated value range of router states."""

from __future__ import annotations

import numpy as np

from citadel.model.calibrate import MARGIN, router_span
from citadel.model.forward import router_states
from tests.support.models import tiny_config, tiny_state


def test_span_contains_the_states_of_another_text() -> None:
    config = tiny_config("dynamic")
    state = tiny_state(config)
    low, high = router_span(config, state)
    states = router_states(config, state, np.arange(config.backbone.vocabulary)[: config.backbone.longest])
    assert low < states.min() < 0 < states.max() < high


def test_constant_states_determine_the_span() -> None:
    config = tiny_config("dynamic")
    state = dict(tiny_state(config))
    state["router.norm.weight"] = np.zeros_like(state["router.norm.weight"])
    state["router.norm.bias"] = np.full_like(state["router.norm.bias"], 5.0)
    assert router_span(config, state) == (0.0, 5.0 * MARGIN)
