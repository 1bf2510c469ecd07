"""Router health: figures to log, and the conditions that stop training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from citadel.errors import CitadelError
from citadel.model.citadel import EncodedTexts

LARGEST_SHARE = 0.9  # of all routed tokens under one key: the router has collapsed
DEAD_SHARE = 0.99  # of query tokens without a key: so it has


class TrainingStopped(CitadelError):
    """Training was stopped: the router has collapsed or the loss is not finite. The last checkpoint is kept."""


@dataclass(frozen=True)
class RouterHealth:
    """Router statistics of one batch."""

    active_keys: float  # mean number of keys with φ above 0 per passage token
    distinct_keys: int  # that passages chose
    largest_share: float  # share of the most frequent key
    queries_without_key: float  # share of query tokens

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def router_health(queries: EncodedTexts, passages: EncodedTexts) -> RouterHealth | None:
    """The router's figures in a batch; None for a model without a learned router.

    >>> keys, weights = torch.tensor([[[3, 4]]]), torch.tensor([[[1.0, 0.0]]])
    >>> text = EncodedTexts(torch.ones(1, 1, dtype=torch.bool), keys=keys, weights=weights, active=torch.tensor(1))
    >>> router_health(text, text)
    RouterHealth(active_keys=1.0, distinct_keys=1, largest_share=1.0, queries_without_key=0.0)
    """
    if passages.keys is None or passages.weights is None or passages.active is None or queries.weights is None:
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


def check(loss: float, found: RouterHealth | None, step: int, kept: str, norm: float = 0.0) -> None:
    """Raise where training must not go on; `kept` names the last good checkpoint, `norm` is the gradient's.

    >>> check(float("nan"), None, 7, "out/checkpoint-5")
    Traceback (most recent call last):
    citadel.train.health.TrainingStopped: step 7: the loss is nan; start again with a lower optimizer.lr and ...
    """
    for what, value in (("loss", loss), ("gradient's norm", norm)):
        if not math.isfinite(value):
            # Resumed, the run would see the same batches and come to the same end.
            advice = f"start again with a lower optimizer.lr and another --out; the last good checkpoint is {kept}"
            raise TrainingStopped(f"step {step}: the {what} is {value}; {advice}")
    if found is None:
        return
    advice = f"raise router.warm_up_steps or lower loss.alpha and loss.beta; the last good checkpoint is {kept}"
    if found.largest_share > LARGEST_SHARE:
        raise TrainingStopped(
            f"step {step}: the router has collapsed, {found.largest_share:.0%} under one key; {advice}"
        )
    if found.queries_without_key > DEAD_SHARE or found.distinct_keys == 0:
        raise TrainingStopped(f"step {step}: the router has collapsed, no token has a key any more; {advice}")
