"""Forward and backward pass of a batch, with gradient caching if it does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from citadel.model.citadel import Citadel, EncodedTexts
from citadel.train.inputs import Inputs, encode_by_length

Objective = Callable[[EncodedTexts, EncodedTexts], dict[str, Tensor]]
_WITH_GRADIENT = ("vectors", "weights", "pooled", "mass", "l1", "semantic")


@dataclass(frozen=True)
class Outcome:
    """Result of a pass: the loss, its terms, and the encoded texts without gradients."""

    loss: Tensor
    terms: dict[str, Tensor]
    queries: EncodedTexts
    passages: EncodedTexts

    def after(self, before: Outcome | None) -> Outcome:
        """Add the losses of the earlier passes of the step."""
        if before is None:
            return self
        terms = {name: term + before.terms[name] for name, term in self.terms.items()}
        return replace(self, loss=self.loss + before.loss, terms=terms)


def forward_backward(
    model: Citadel,
    queries: Inputs,
    passages: Inputs,
    objective: Objective,
    dtype: torch.dtype,
    cache: int = 0,
    groups: int = 1,
) -> Outcome:
    """Add the gradients of one batch to the model's.

    `cache` is the number of texts per micro-batch, 0 for no caching. Otherwise passages are encoded in up to
    `groups` parts of similar length.
    """
    if cache and len(passages.ids) > cache:
        return _cached(model, queries, passages, objective, dtype, cache)
    q = model.encode(*queries, query=True, dtype=dtype)
    p = encode_by_length(passages, lambda part: model.encode(*part, dtype=dtype), groups)
    terms = objective(q, p)
    loss = torch.stack(list(terms.values())).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return _outcome(loss, terms, q, p)


def _cached(
    model: Citadel, queries: Inputs, passages: Inputs, objective: Objective, dtype: torch.dtype, cache: int
) -> Outcome:
    """Gradient caching: encode without gradients, differentiate the loss, backpropagate part by part.

    The model has no dropout, so both encodings agree and the gradient is that of the whole batch.
    """
    parts = [(True, queries.rows(slice(at, at + cache))) for at in range(0, len(queries.ids), cache)]
    count = len(parts)
    parts += [(False, passages.rows(slice(at, at + cache))) for at in range(0, len(passages.ids), cache)]
    with torch.no_grad():
        encoded = [model.encode(*part, query=query, dtype=dtype) for query, part in parts]
    leaves = [texts.with_tensors(_leaves(texts)) for texts in encoded]
    q, p = EncodedTexts.join(leaves[:count]), EncodedTexts.join(leaves[count:])
    terms = objective(q, p)
    loss = torch.stack(list(terms.values())).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for (query, part), leaf in zip(parts, leaves, strict=True):
        again = model.encode(*part, query=query, dtype=dtype).tensors()
        cached = {name: leaf.tensors()[name].grad for name in _WITH_GRADIENT if name in again}
        used = [name for name, grad in cached.items() if grad is not None and again[name].requires_grad]
        torch.autograd.backward([again[name] for name in used], [cached[name] for name in used])
    return _outcome(loss, terms, q, p)


def _leaves(texts: EncodedTexts) -> dict[str, Tensor]:
    tensors = texts.tensors()
    return {name: tensors[name].detach().requires_grad_() for name in _WITH_GRADIENT if name in tensors}


def _outcome(
    loss: Tensor, terms: dict[str, Tensor], queries: EncodedTexts, passages: EncodedTexts
) -> Outcome:
    bare = (
        texts.with_tensors({n: t.detach() for n, t in texts.tensors().items()})
        for texts in (queries, passages)
    )
    return Outcome(loss.detach(), {name: term.detach() for name, term in terms.items()}, *bare)
