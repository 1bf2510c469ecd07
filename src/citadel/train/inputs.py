"""Model inputs: token ids on the device, with the routed tokens marked; encoding by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from citadel.encode.config import ModelConfig
from citadel.model.citadel import EncodedTexts
from citadel.train.tokens import PAD_TO

MIN_GROUP = 64  # texts; smaller groups do not fill a GPU


class Inputs(NamedTuple):
    """Texts as tensors."""

    ids: Tensor  # [n, T]
    mask: Tensor  # [n, T]
    routed: Tensor  # [n, T], m of the paper

    def rows(self, part: slice) -> Inputs:
        """Select texts."""
        return Inputs(*(column[part] for column in self))


class Marker:
    """Marks routed tokens: all but [CLS], padding and, depending on the config, [SEP] and punctuation.

    Queries also leave out the function words that the config names.

    >>> marker = Marker(ModelConfig("dynamic", route_separator=False), punctuation=[1012])
    >>> marker(torch.tensor([[101, 7, 1012, 102, 0]]), torch.tensor([[1, 1, 1, 1, 0]])).routed.tolist()
    [[False, True, True, False, False]]
    """

    def __init__(
        self, config: ModelConfig, punctuation: list[int], device: torch.device | str = "cpu"
    ) -> None:
        self._config = config
        unrouted = [config.cls_id, config.pad_id]
        unrouted += [] if config.route_separator else [config.sep_id]
        unrouted += [] if config.route_punctuation else punctuation
        self._unrouted = torch.zeros(config.backbone.vocabulary, dtype=torch.bool, device=device)
        self._unrouted[torch.tensor(unrouted, device=device)] = True
        self._unrouted_in_queries = self._unrouted.clone()
        self._unrouted_in_queries[list(config.unrouted_query_tokens)] = True

    def __call__(self, ids: Tensor, mask: Tensor, query: bool = False) -> Inputs:
        device = self._unrouted.device
        ids, mask = ids.to(device, non_blocking=True), mask.to(device, non_blocking=True)
        if query and self._config.query_padding:
            ids, mask = self._pad_query(ids, mask)
        unrouted = self._unrouted_in_queries if query else self._unrouted
        return Inputs(ids, mask, (mask > 0) & ~unrouted[ids])

    def _pad_query(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """ColBERT: [MASK] tokens up to a fixed length, attended and routed like words."""
        missing = self._config.query_padding - ids.shape[1]
        if missing > 0:
            ids = torch.nn.functional.pad(ids, (0, missing))
            mask = torch.nn.functional.pad(mask, (0, missing))
        padded = mask == 0
        padded[:, self._config.query_padding :] = False
        return ids.masked_fill(padded, self._config.mask_id), mask.masked_fill(padded, 1)


def encode_by_length(
    texts: Inputs, encode: Callable[[Inputs], EncodedTexts], groups: int, min_group: int = MIN_GROUP
) -> EncodedTexts:
    """Encode texts in up to `groups` parts of similar length, which reduces padding; the order is kept."""
    groups = min(groups, len(texts.ids) // min_group)
    if groups < 2:
        return encode(texts)
    lengths, order = texts.mask.sum(1).sort(stable=True)  # [n], [n]
    parts = torch.tensor_split(order, groups)
    ends = torch.tensor([len(part) for part in parts]).cumsum(0) - 1
    longest = lengths[ends.to(lengths.device)].tolist()  # synchronises with the device once
    encoded = [encode(_cut(texts, part, int(length))) for part, length in zip(parts, longest, strict=True)]
    return EncodedTexts.join(encoded).ordered(torch.argsort(order))


def _cut(texts: Inputs, rows: torch.Tensor, length: int) -> Inputs:
    width = -(-length // PAD_TO) * PAD_TO
    return Inputs(*(column[rows, :width] for column in texts))
