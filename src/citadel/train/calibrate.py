"""Initialise the heads: an active router and a useful semantic vector from the first step.

Otherwise nearly every key of a new router is positive, the loss is in the thousands, and the router
collapses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from citadel.errors import InputError
from citadel.model.citadel import Citadel
from citadel.progress import Meter, silent
from citadel.train.config_tables import RouterPart
from citadel.train.data import Data
from citadel.train.inputs import Inputs, Marker
from citadel.train.tokens import pad

Sample = Callable[[], Inputs]

_SAMPLE = 256  # passages to calibrate with
_SAMPLE_PCA = 2048
_WARM_UP, _CALIBRATE, _PCA = 11, 12, 13  # random streams, distinct from those of batches


def start_heads(
    model: Citadel,
    data: Data,
    marker: Marker,
    part: RouterPart,
    seed: int,
    dtype: torch.dtype,
    meter: Meter = silent,
) -> dict[str, float]:
    """Initialise every head; return figures for the log."""
    figures: dict[str, float] = {}
    if model.semantic is not None:
        start_semantic(model, lambda: _sample(data, marker, _SAMPLE_PCA, (seed, _PCA)), part, dtype)
    if model.token is not None:
        start_token(model, lambda: _sample(data, marker, _SAMPLE_PCA, (seed, _PCA)), part, dtype)
    if model.router is None:
        return figures
    if part.warm_up_steps:
        figures["warm_up_loss"] = warm_up(model, data, marker, part, seed, dtype, meter)
    if part.active_keys:
        figures["shift"] = shift_logits(
            model, _sample(data, marker, _SAMPLE, (seed, _CALIBRATE)), part.active_keys, dtype
        )
    return figures


def warm_up(
    model: Citadel,
    data: Data,
    marker: Marker,
    part: RouterPart,
    seed: int,
    dtype: torch.dtype,
    meter: Meter = silent,
) -> float:
    """Train only the router head on masked tokens, with a frozen backbone; return the last loss."""
    assert model.router is not None
    optimizer = torch.optim.AdamW(model.router.parameters(), lr=part.warm_up_lr)
    loss = torch.zeros(())
    with meter("Warming up the router", "steps", part.warm_up_steps) as progress:
        for step in range(part.warm_up_steps):
            inputs = _sample(data, marker, part.warm_up_batch, (seed, _WARM_UP, step))
            loss = masked_token_loss(model, inputs, seed * 1_000_003 + step, dtype, part)
            loss.backward()  # type: ignore[no-untyped-call]
            for group in optimizer.param_groups:
                group["lr"] = part.warm_up_lr * (1 - step / part.warm_up_steps)
            optimizer.step()
            optimizer.zero_grad()
            progress(step + 1)
    return float(loss.detach())


def masked_token_loss(
    model: Citadel, inputs: Inputs, seed: int, dtype: torch.dtype, part: RouterPart
) -> Tensor:
    """Cross-entropy of the router's logits at masked and some visible tokens; trains the head only."""
    assert model.router is not None
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(inputs.ids.shape, generator=generator).to(inputs.ids.device)  # [n, T]
    hidden_tokens = inputs.routed & (draw < part.warm_up_masked)
    predicted = inputs.routed & (draw < part.warm_up_masked + part.warm_up_shown)
    with torch.no_grad():
        masked = inputs.ids.masked_fill(hidden_tokens, model.config.mask_id)
        hidden = model(masked, inputs.mask, dtype)  # [n, T, h]
    x = model.router(hidden[predicted])  # [m, h]
    logits = F.linear(x, model.embeddings.word.detach().to(x.dtype), model.router.bias.to(x.dtype))  # [m, V]
    return F.cross_entropy(logits.float(), inputs.ids[predicted])


@torch.no_grad()
def shift_logits(model: Citadel, inputs: Inputs, active: int, dtype: torch.dtype) -> float:
    """Lower all logits so that about `active` keys per token stay above 0; return the shift."""
    assert model.router is not None
    total, tokens = 0.0, 0
    for at in range(0, len(inputs.ids), 16):
        part = inputs.rows(slice(at, at + 16))
        x = model.router(model(part.ids, part.mask, dtype))[part.routed]  # [m, h]
        logits = F.linear(x, model.embeddings.word.to(x.dtype), model.router.bias.to(x.dtype))  # [m, V]
        total += float(logits.float().topk(min(active, logits.shape[-1]), -1).values[:, -1].sum())
        tokens += len(x)
    shift = total / max(1, tokens)
    model.router.bias.sub_(shift)
    return shift


@torch.no_grad()
def start_semantic(model: Citadel, sample: Sample, part: RouterPart, dtype: torch.dtype) -> None:
    """Initialise the semantic head: random, identity, or PCA of pooled passages; then scale it."""
    assert model.semantic is not None
    width, hidden = model.semantic.weight.shape
    if part.semantic_start == "identity":
        if width > hidden:
            raise InputError(
                f"router.semantic_start is identity: semantic_dimension {width} is above {hidden}"
            )
        torch.nn.init.eye_(model.semantic.weight)
        model.semantic.bias.zero_()
    elif part.semantic_start == "pca":
        pooled = _pooled(model, sample(), dtype)  # [n, h]
        _principal(model.semantic, pooled)
    model.semantic.weight.mul_(part.semantic_scale)
    model.semantic.bias.mul_(part.semantic_scale)


@torch.no_grad()
def start_token(model: Citadel, sample: Sample, part: RouterPart, dtype: torch.dtype) -> None:
    """Initialise the token head: random, or PCA of token states at about unit length; then scale it."""
    assert model.token is not None
    if part.token_start == "pca":  # noqa: S105 - an option, not a secret
        inputs = sample().rows(slice(0, _SAMPLE))
        states = model(inputs.ids, inputs.mask, dtype)[inputs.routed].float()  # [m, h]
        _principal(model.token, states)
        length = F.linear(states, model.token.weight, model.token.bias).norm(dim=-1).mean()
        model.token.weight.div_(length)
        model.token.bias.div_(length)
    model.token.weight.mul_(part.token_scale)
    model.token.bias.mul_(part.token_scale)


def _principal(head: torch.nn.Linear, states: Tensor) -> None:
    """Set a head to project centred states on their first principal components."""
    mean = states.mean(0)
    centred = (states - mean).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    chosen = vectors.flip(-1)[:, : head.weight.shape[0]].T  # [s, h]
    if len(chosen) < head.weight.shape[0]:
        raise InputError(f"pca gives at most {len(chosen)} directions: lower the dimension")
    # Eigenvectors have an arbitrary sign: fix it, so that the result does not depend on the machine.
    sign = torch.sign(chosen.gather(1, chosen.abs().argmax(1, keepdim=True)))
    head.weight.copy_(chosen * sign)
    head.bias.copy_(-F.linear(mean, head.weight))


def _pooled(model: Citadel, inputs: Inputs, dtype: torch.dtype) -> Tensor:
    parts = []
    for at in range(0, len(inputs.ids), 64):
        some = inputs.rows(slice(at, at + 64))
        parts.append(model.pool(model(some.ids, some.mask, dtype), some.mask).float())
    pooled = torch.cat(parts)
    return F.normalize(pooled, dim=-1) if model.config.normalize_pooled else pooled


def _sample(data: Data, marker: Marker, count: int, seed: tuple[int, ...]) -> Inputs:
    """Draw passages by seed, the same in every process."""
    rows = np.random.default_rng(seed).integers(len(data.passages), size=min(count, len(data.passages)))
    ids, mask = pad([data.passages[int(row)] for row in rows], data.special.pad)
    return marker(torch.from_numpy(ids), torch.from_numpy(mask))
