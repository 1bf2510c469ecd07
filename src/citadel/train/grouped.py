"""Texts of like length are encoded together: a batch padded to its longest text is a third padding."""

from __future__ import annotations

from collections.abc import Callable

import torch

from citadel.model.citadel import Encoded
from citadel.train.inputs import Inputs
from citadel.train.tokens import PAD_TO

FEWEST = 64  # texts a group: fewer do not fill a GPU


def encode_by_length(texts: Inputs, encode: Callable[[Inputs], Encoded], groups: int, fewest: int = FEWEST) -> Encoded:
    """What `encode` says of all texts, in their order; it sees them in up to `groups` parts of like length."""
    groups = min(groups, len(texts.ids) // fewest)
    if groups < 2:
        return encode(texts)
    lengths, order = texts.mask.sum(1).sort(stable=True)  # [n], [n]
    parts = torch.tensor_split(order, groups)
    ends = torch.tensor([len(part) for part in parts]).cumsum(0) - 1
    longest = lengths[ends.to(lengths.device)].tolist()  # one wait for the device
    encoded = [encode(_cut(texts, part, int(length))) for part, length in zip(parts, longest, strict=True)]
    return Encoded.join(encoded).ordered(torch.argsort(order))


def _cut(texts: Inputs, rows: torch.Tensor, length: int) -> Inputs:
    width = -(-length // PAD_TO) * PAD_TO
    return Inputs(*(column[rows, :width] for column in texts))
