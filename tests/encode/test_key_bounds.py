"""Bounds of the router's logits never lose a key, whatever the states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from citadel import _native
from citadel.encode import key_router
from citadel.encode.encoder import Encoder
from citadel.encode.key_bounds import Table, find_bounds
from citadel.encode.tokenizer import Encoding

STEP, ZERO, WIDTH, KEYS = 0.02, 130, 64, 700


def table(seed: int, keys: int = KEYS, width: int = WIDTH) -> Table:
    """Keys near a subspace, as those of a model are."""
    rng = np.random.default_rng(seed)
    low = rng.standard_normal((keys, 10)) @ rng.standard_normal((10, width)) * 12
    codes = np.clip(np.round(low + rng.standard_normal((keys, width)) * 4), -127, 127).astype(np.int8)
    scales = (rng.random(keys) * 1e-2 + 1e-3).astype(np.float32)
    steps = (np.float32(STEP) * scales).astype(np.float64)
    return Table(codes, steps, rng.standard_normal(keys).astype(np.float32).astype(np.float64) - 2, ZERO)


def states(seed: int, count: int, width: int = WIDTH) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    basis = np.random.default_rng(99).standard_normal((8, width))
    low = rng.standard_normal((count, 8)) @ basis * 10 + rng.standard_normal((count, width)) * 3
    return np.clip(np.round(low) + ZERO, 0, 255).astype(np.uint8)


def router_of(given: Table) -> _native.Router:
    scales = (given.scales / np.float64(np.float32(STEP))).astype(np.float32)
    return _native.Router(given.codes, scales, given.biases.astype(np.float32), STEP, given.zero)


def floor_for(router: _native.Router, given: NDArray[np.uint8], share: float) -> float:
    """A logit that this share of the tokens' best keys exceeds."""
    weights = router.best(given, 1)[1]
    return float(np.expm1(np.quantile(weights, 1 - share)))


def assert_same_above(router: _native.Router, given: NDArray[np.uint8], floor: float, sets: Any) -> None:
    keys, weights = router.best(given, 5)
    above = weights > np.float32(np.log1p(floor)) + np.float32(1e-6)
    for own_keys, own_weights in sets(lambda: router.best_above(given, 5)):
        np.testing.assert_array_equal(own_keys[above], keys[above])
        np.testing.assert_array_equal(own_weights[above], weights[above])
        assert (own_weights <= weights).all()


@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_no_key_above_the_floor_is_lost(seed: int, share: float, every_instruction_set: Any) -> None:
    given = table(seed)
    router = router_of(given)
    sample = states(seed, 800)
    floor = floor_for(router, sample, share)
    bounds = find_bounds(given, sample, floor)
    assert bounds is not None
    router.set_bounds(*bounds)
    rng = np.random.default_rng(seed)
    for tokens in (0, 1, 14, 15, 200):
        assert_same_above(router, states(seed + 10, tokens), floor, every_instruction_set)
    wild = rng.integers(0, 256, (60, WIDTH)).astype(np.uint8)  # their lengths do not fit
    assert_same_above(router, wild, floor, every_instruction_set)
    extreme = np.repeat(np.array([[0], [255], [ZERO]], np.uint8), WIDTH, axis=1)
    assert_same_above(router, extreme, floor, every_instruction_set)


def test_bounds_leave_few_keys() -> None:
    given, sample = table(0), states(0, 800)
    router = router_of(given)
    bounds = find_bounds(given, sample, floor_for(router, sample, 0.1))
    assert bounds is not None
    router.set_bounds(*bounds)
    _, weights = router.best_above(states(5, 100), KEYS)
    assert (weights > 0).mean() < 0.1


def test_smaller_margin_loses_hardly_any_key() -> None:
    given, sample = table(0), states(0, 800)
    router = router_of(given)
    floor = floor_for(router, sample, 0.1)
    whole, less = (find_bounds(given, sample, floor, margin) for margin in (1.0, 0.5))
    assert whole is not None and less is not None
    assert less.codes.shape[1] < whole.codes.shape[1]
    router.set_bounds(*less)
    others = states(5, 400)
    keys, weights = router.best(others, 1)
    above = weights > np.log1p(floor) + 1e-6
    assert above.sum() > 20
    assert (router.best_above(others, 1)[0][above] == keys[above]).mean() > 0.99


@pytest.mark.parametrize("case", ["few states", "wide", "narrow", "constant states", "low floor"])
def test_no_bounds_where_they_do_not_help(case: str) -> None:
    width = {"wide": 516, "narrow": 4}.get(case, WIDTH)
    given = table(0, 100, width)
    sample = states(0, 20 if case == "few states" else 800, width)
    if case == "constant states":
        sample[:] = 7
    assert find_bounds(given, sample, -1e9 if case == "low floor" else 1.0) is None


def test_invalid_bounds_are_rejected() -> None:
    given, sample = table(0), states(0, 800)
    router = router_of(given)
    with pytest.raises(ValueError, match="no bounds"):
        router.best_above(sample, 5)
    bounds = find_bounds(given, sample, 3.0)
    assert bounds is not None
    for name, values in bounds._asdict().items():
        with pytest.raises(ValueError, match=r"size of the table|three units"):
            router.set_bounds(**{**bounds._asdict(), name: values[:-1]})
    with pytest.raises(ValueError, match="need coordinates"):
        router.set_bounds(**{**bounds._asdict(), "codes": bounds.codes[:, :8].copy()})
    with pytest.raises(ValueError, match="multiple of 4"):
        router.set_bounds(**{**bounds._asdict(), "codes": bounds.codes[:, :-1].copy()})
    for name, message in {"means": "mean of", "factors": "factor of", "units": "positive"}.items():
        damaged = np.full_like(getattr(bounds, name), np.nan)
        with pytest.raises(ValueError, match=message):
            router.set_bounds(**{**bounds._asdict(), name: damaged})
    router.set_bounds(*bounds)
    for max_keys in (0, KEYS + 1):
        with pytest.raises(ValueError, match="from 1 to"):
            router.best_above(sample, max_keys)


def test_documents_of_the_default_model_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_router, "SAMPLE", 500)
    monkeypatch.setattr(key_router, "SAMPLED", 2)
    encoder = Encoder("default", threads=2)
    router = encoder._session._router
    if router is None:
        pytest.skip("this machine runs the whole graph")
    rng = np.random.default_rng(0)

    def text(length: int) -> Encoding:
        routed = np.ones(length, np.bool_)
        routed[0] = False
        return Encoding(rng.integers(1000, 30_000, length), ((0, 0),) * length, routed)

    texts = [text(length) for length in [90, 64, 64, 40, 17, 3, 2] * 2]
    before = encoder.route_documents(texts)
    for _ in range(4):
        encoder.route_documents([text(100) for _ in range(4)])
    assert router._floor == pytest.approx(np.expm1(encoder.tau), rel=1e-4)
    for old, new in zip(before, encoder.route_documents(texts), strict=True):
        for name in ("keys", "weights", "vectors", "semantic", "tokens"):
            np.testing.assert_array_equal(getattr(old, name), getattr(new, name), err_msg=name)
