"""The router's product and best keys equal numpy under every instruction set."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from citadel import _native

STEP, ZERO = 0.02, 130


class Table(NamedTuple):
    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    biases: NDArray[np.float32]


def random_table(rng, keys, width) -> Table:
    codes = rng.integers(-127, 128, (keys, width)).astype(np.int8)
    return Table(
        codes, (rng.random(keys) * 1e-2).astype(np.float32), rng.standard_normal(keys).astype(np.float32)
    )


def reference(states, codes, scales, biases, max_keys):
    sums = (states.astype(np.int64) - ZERO) @ codes.T.astype(np.int64)
    logits = sums.astype(np.float32) * (np.float32(STEP) * scales) + biases
    keys = np.argsort(-logits, axis=1, kind="stable")[:, :max_keys]
    chosen = np.take_along_axis(logits, keys, axis=1).astype(np.float64)
    return keys, np.log(1 + np.maximum(chosen, 0)).astype(np.float32)


@pytest.mark.parametrize(
    ("keys", "width", "max_keys"), [(1, 1, 1), (7, 3, 7), (33, 64, 5), (5_000, 384, 5), (1_000, 30, 64)]
)
def test_best_keys_equal_numpy(keys, width, max_keys, every_instruction_set):
    rng = np.random.default_rng(keys)
    table = random_table(rng, keys, width)
    router = _native.Router(*table, STEP, ZERO)
    for tokens in (0, 1, 13, 14, 15, 29):
        states = rng.integers(0, 256, (tokens, width)).astype(np.uint8)
        expected = reference(states, *table, max_keys)
        for best in every_instruction_set(lambda states=states: router.best(states, max_keys)):
            for actual, wanted in zip(best, expected, strict=True):
                np.testing.assert_array_equal(actual, wanted)


def test_extreme_values_do_not_overflow(every_instruction_set):
    width = 1 << 16
    codes = np.stack([np.full(width, -127, np.int8), np.full(width, 127, np.int8)])
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    router = _native.Router(codes, ones, zeros, 1.0, 0)
    states = np.full((1, width), 255, np.uint8)
    for keys, weights in every_instruction_set(lambda: router.best(states, 2)):
        assert keys.tolist() == [[1, 0]]
        assert weights.tolist() == [[np.float32(np.log(1 + np.float64(np.float32(255 * 127 * width)))), 0.0]]


def test_ties_go_to_the_lower_key(every_instruction_set):
    router = _native.Router(
        np.ones((100, 8), np.int8), np.ones(100, np.float32), np.zeros(100, np.float32), STEP, ZERO
    )
    for keys, _ in every_instruction_set(lambda: router.best(np.full((3, 8), 255, np.uint8), 4)):
        assert keys.tolist() == [[0, 1, 2, 3]] * 3


def test_threads_can_share_a_router():
    rng = np.random.default_rng(0)
    router = _native.Router(*random_table(rng, 2_000, 64), STEP, ZERO)
    states = rng.integers(0, 256, (40, 64)).astype(np.uint8)
    expected, results = router.best(states, 5), []
    threads = [threading.Thread(target=lambda: results.append(router.best(states, 5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for keys, weights in results:
        np.testing.assert_array_equal(keys, expected[0])
        np.testing.assert_array_equal(weights, expected[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scales": np.array([1, np.inf], np.float32)}, "scale of key 1 is not finite"),
        ({"biases": np.array([np.nan, 0], np.float32)}, "bias of key 0 is not finite"),
        ({"biases": np.zeros(3, np.float32)}, "same number of keys"),
        ({"step": float("nan")}, "scale of key 0 is not finite"),
        ({"step": 1e20, "scales": np.array([1, 1e20], np.float32)}, "scale of key 1 is not finite"),
        ({"table": np.zeros((2, (1 << 16) + 1), np.int8)}, "too wide"),
        ({"table": np.zeros((2, 0), np.int8)}, "at least one key"),
    ],
)
def test_invalid_table_is_rejected(change, message):
    valid = {
        "table": np.ones((2, 4), np.int8),
        "scales": np.ones(2, np.float32),
        "biases": np.zeros(2, np.float32),
    }
    with pytest.raises(ValueError, match=message):
        _native.Router(**{**valid, "step": STEP, "zero": ZERO, **change})


def test_invalid_states_and_max_keys_are_rejected():
    router = _native.Router(
        np.ones((2, 4), np.int8), np.ones(2, np.float32), np.zeros(2, np.float32), STEP, ZERO
    )
    with pytest.raises(ValueError, match="4 dimensions"):
        router.best(np.zeros((1, 5), np.uint8), 1)
    for max_keys in (0, 3):
        with pytest.raises(ValueError, match="from 1 to 2"):
            router.best(np.zeros((1, 4), np.uint8), max_keys)
