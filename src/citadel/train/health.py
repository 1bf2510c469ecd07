"""Router health: figures to log, and the conditions that stop training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from citadel.errors import CitadelError
from citadel.model.citadel import EncodedTexts

# Above either share the router has collapsed.
LARGEST_SHARE = 0.9  # of all routed tokens under one key
DEAD_SHARE = 0.99  # of query tokens without a key


class TrainingStopped(CitadelError):
    """The router collapsed or the loss is not finite; the last checkpoint is kept."""


@dataclass(frozen=True)
class RouterHealth:
    """Router statistics of one batch."""

    active_keys: float  # mean number of keys with φ above 0 per passage token
    distinct_keys: int  # chosen by passages
    largest_share: float  # share of the most frequent key
    queries_without_key: float  # share of query tokens

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def router_health(queries: EncodedTexts, passages: EncodedTexts) -> RouterHealth | None:
    """Router statistics of a batch; None for a model without a learned router.

    >>> keys, weights = torch.tensor([[[3, 4]]]), torch.tensor([[[1.0, 0.0]]])
    >>> routed = torch.ones(1, 1, dtype=torch.bool)
    >>> text = EncodedTexts(routed, keys=keys, weights=weights, active=torch.tensor(1))
    >>> router_health(text, text)
    RouterHealth(active_keys=1.0, distinct_keys=1, largest_share=1.0, queries_without_key=0.0)
    """
    if (
        passages.keys is None
        or passages.weights is None
        or passages.active is None
        or queries.weights is None
    ):
        return None
    chosen = passages.keys[passages.weights > 0]
    counts = torch.bincount(chosen) if len(chosen) else torch.zeros(1, dtype=torch.int64)
    tokens = max(1, int(passages.routed.sum()))
    keyless = (queries.weights[..., 0] <= 0) & queries.routed
    return RouterHealth(
        active_keys=float(passages.active) / tokens,
        distinct_keys=int((counts > 0).sum()),
        largest_share=float(counts.max()) / max(1, int(counts.sum())),
        queries_without_key=float(keyless.sum()) / max(1, int(queries.routed.sum())),
    )


def check(loss: float, health: RouterHealth | None, step: int, kept: str, norm: float = 0.0) -> None:
    """Raise TrainingStopped if training has failed; `kept` names the last good checkpoint.

    >>> check(float("nan"), None, 7, "out/checkpoint-5")
    Traceback (most recent call last):
    citadel.train.health.TrainingStopped: step 7: the loss is nan; start again with a lower optimizer.lr and
    ...
    """
    for what, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            # Resuming would not help: the run would see the same batches and fail again.
            advice = (
                f"start again with a lower optimizer.lr and another --out; the last good checkpoint is {kept}"
            )
            raise TrainingStopped(f"step {step}: the {what} is {value}; {advice}")
    if health is None:
        return
    advice = (
        f"raise router.warm_up_steps or lower loss.alpha and loss.beta; the last good checkpoint is {kept}"
    )
    if health.largest_share > LARGEST_SHARE:
        raise TrainingStopped(
            f"step {step}: the router has collapsed, {health.largest_share:.0%} under one key; {advice}"
        )
    if health.queries_without_key > DEAD_SHARE or health.distinct_keys == 0:
        raise TrainingStopped(f"step {step}: the router has collapsed, no token has a key; {advice}")
