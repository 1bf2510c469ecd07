"""Router statistics, and the conditions that stop training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from citadel.model.citadel import EncodedTexts
from citadel.train.health import RouterHealth, TrainingStopped, check, router_health

HEALTHY = RouterHealth(active_keys=8.0, distinct_keys=50, largest_share=0.1, queries_without_key=0.1)


def text(routed: list[list[bool]], keys: Any, weights: Any, active: int) -> EncodedTexts:
    return EncodedTexts(
        torch.tensor(routed),
        keys=torch.tensor(keys),
        weights=torch.tensor(weights),
        active=torch.tensor(active),
    )


def test_statistics_by_hand() -> None:
    queries = text(
        [[True, True, False], [True, True, True]], [[[1]] * 3] * 2, [[[0.5]] * 3, [[0.0], [1.0], [2.0]]], 4
    )
    passages = text(
        [[True, True], [True, False]],
        [[[4, 7], [7, 9]], [[7, 2], [4, 4]]],
        [[[1.0, 0.5], [2.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]],
        9,
    )
    health = router_health(queries, passages)
    assert health == RouterHealth(
        active_keys=3.0, distinct_keys=2, largest_share=3 / 4, queries_without_key=1 / 5
    )
    assert health.as_dict()["distinct_keys"] == 2


def test_no_statistics_without_a_router() -> None:
    bare = EncodedTexts(torch.ones(1, 1, dtype=torch.bool))
    assert router_health(bare, bare) is None


def test_statistics_of_a_dead_router() -> None:
    dead = text([[True]], [[[3]]], [[[0.0]]], 0)
    assert router_health(dead, dead) == RouterHealth(0.0, 0, 0.0, 1.0)


def test_check_accepts_a_healthy_router() -> None:
    check(1.0, HEALTHY, 5, "checkpoint-3")
    check(1.0, None, 5, "checkpoint-3")


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_loss_stops_training(loss: float) -> None:
    with pytest.raises(TrainingStopped, match=r"step 5: the loss is .* checkpoint-3") as caught:
        check(loss, HEALTHY, 5, "checkpoint-3")
    assert caught.value.exit_code != 0


@pytest.mark.parametrize(
    ("health", "message"),
    [
        (RouterHealth(8.0, 3, 0.91, 0.0), "91% under one key"),
        (RouterHealth(8.0, 3, 0.5, 0.995), "no token has a key"),
        (RouterHealth(0.0, 0, 0.0, 0.5), "no token has a key"),
    ],
)
def test_collapsed_router_stops_training_with_advice(health: RouterHealth, message: str) -> None:
    with pytest.raises(TrainingStopped) as caught:
        check(1.0, health, 5, "checkpoint-3")
    text = str(caught.value)
    assert message in text and "checkpoint-3" in text and "router.warm_up_steps" in text


def test_check_accepts_values_at_the_limit() -> None:
    check(1.0, RouterHealth(8.0, 3, 0.9, 0.99), 5, "checkpoint-3")
