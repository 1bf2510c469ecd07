"""Encode texts with the torch model in large batches sorted by length; results stay flat on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.encode.config import ModelConfig
from citadel.errors import InputError
from citadel.model.checkpoint import new_model
from citadel.model.citadel import Citadel, EncodedTexts
from citadel.model.load import load_pretrained

TOKENS_PER_BATCH = {"cuda": 1 << 17, "cpu": 1 << 12}


class FlatTexts(NamedTuple):
    """Weighted token vectors in rows sorted by text: text `texts[p]` has `vectors[p]` under `keys[p]`."""

    size: int
    texts: Tensor  # [P]
    keys: Tensor  # [P]
    vectors: Tensor  # [P, d]
    semantic: Tensor | None  # [size, s]

    def pick(self, chosen: Tensor) -> FlatTexts:
        """Select texts, in this order and renumbered from 0; a text may be repeated."""
        first = torch.searchsorted(self.texts, chosen)
        sizes = torch.searchsorted(self.texts, chosen, right=True) - first
        text = torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), sizes)  # [P]
        before = torch.cumsum(sizes, 0) - sizes
        rows = torch.arange(len(text), device=chosen.device) + (first - before)[text]
        semantic = None if self.semantic is None else self.semantic[chosen]
        return FlatTexts(len(chosen), text, self.keys[rows], self.vectors[rows], semantic)


class TokenRows(Protocol):
    """Token ids per text: a list of arrays, or a table on disk with the `lengths` of its rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> NDArray[Any]: ...


class Marked(Protocol):
    """Token ids with their masks: the inputs of the model."""

    @property
    def ids(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def routed(self) -> Tensor: ...


@dataclass(frozen=True)
class TorchEncoder:
    """A model with a marker, which moves ids and mask to the device and marks the routed tokens."""

    model: Citadel
    mark: Callable[[Tensor, Tensor, bool], Marked]
    pad_id: int = 0
    tau: float = 0.0

    @torch.no_grad()
    def encode(
        self, rows: TokenRows, query: bool = False, progress: Callable[[int], Any] = lambda done: None
    ) -> FlatTexts:
        """Encode texts given as token ids, in their order."""
        device = self.model.embeddings.word.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        parts: list[FlatTexts] = []
        semantic = torch.empty(len(rows), self.model.config.semantic_dimension, device=device)  # [n, s]
        done = 0
        for chosen in batches(_lengths(rows), TOKENS_PER_BATCH.get(device.type, 1 << 14)):
            ids, mask = pad([rows[row] for row in chosen.tolist()], self.pad_id)
            marked = self.mark(ids, mask, query)
            encoded = self.model.encode(
                marked.ids, marked.mask, marked.routed, query=query, learning=False, dtype=dtype
            )
            numbers = torch.from_numpy(chosen).to(device)
            parts.append(_flat(encoded, self.model.config, numbers, 0.0 if query else self.tau, dtype))
            if encoded.semantic is not None:
                semantic[numbers] = encoded.semantic.float()
            done += len(chosen)
            progress(done)
        return _joined(parts, len(rows), semantic if self.model.config.has_semantic else None, device)


def batches(lengths: NDArray[Any], tokens: int) -> list[NDArray[np.int64]]:
    """Group texts by length into batches of at most `tokens` with padding, longest first.

    The first batch needs the most memory, so that running out of it fails early.

    >>> [batch.tolist() for batch in batches(np.array([2, 5, 3]), 6)]
    [[1], [2, 0]]
    """
    order = np.argsort(-lengths, kind="stable")
    parts, start = [], 0
    while start < len(order):
        size = max(1, tokens // max(int(lengths[order[start]]), 1))
        parts.append(order[start : start + size])
        start += size
    return parts


def dense_model(name: str) -> tuple[Citadel, str]:
    """Load a sentence encoder (mean pooling, unit length); return it with its folder."""
    pretrained = load_pretrained(name)
    hidden = pretrained.config.hidden
    config = ModelConfig(
        "none",
        pretrained.config,
        token_dimension=0,
        semantic_dimension=hidden,
        pooling="mean",
        normalize_pooled=True,
        query_length=min(512, pretrained.config.longest),
        document_length=min(512, pretrained.config.longest),
    )
    model, folder = new_model(config, pretrained)
    assert model.semantic is not None
    with torch.no_grad():
        torch.nn.init.eye_(model.semantic.weight)
        model.semantic.bias.zero_()
    return model.eval(), str(folder)


def find_device(name: str) -> torch.device:
    """The torch device of this name; `auto` is CUDA if available.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device {name!r}: choose auto, cuda or cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("no CUDA device is available: choose --device cpu")
    return torch.device(name)


def _lengths(rows: TokenRows) -> NDArray[Any]:
    known: NDArray[Any] | None = getattr(rows, "lengths", None)
    return np.array([len(rows[row]) for row in range(len(rows))], np.int64) if known is None else known


def pad(rows: list[NDArray[Any]], filler: int) -> tuple[Tensor, Tensor]:
    """Ids and mask of texts, padded to the longest and to a multiple of 8: [n, T] each."""
    width = -(-max(len(row) for row in rows) // 8) * 8
    ids = np.full((len(rows), width), filler, np.int64)
    mask = np.arange(width)[None, :] < np.array([len(row) for row in rows])[:, None]  # [n, T]
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def _flat(
    encoded: EncodedTexts, config: ModelConfig, numbers: Tensor, tau: float, dtype: torch.dtype
) -> FlatTexts:
    """The rows of one batch with a weight above τ; vectors are multiplied by their weights."""
    size = len(numbers)
    if config.router == "none":
        none = numbers.new_empty(0)
        return FlatTexts(size, none, none, torch.empty(0, 1, device=none.device, dtype=dtype), None)
    if config.router == "sparse":
        assert encoded.pooled is not None
        text, key = torch.nonzero(encoded.pooled > 0, as_tuple=True)
        return FlatTexts(size, numbers[text], key, encoded.pooled[text, key][:, None], None)
    assert encoded.vectors is not None
    if config.router == "all_to_all":
        text, token = torch.nonzero(encoded.routed, as_tuple=True)
        return FlatTexts(
            size, numbers[text], torch.zeros_like(text), encoded.vectors[text, token].to(dtype), None
        )
    assert encoded.keys is not None and encoded.weights is not None
    text, token, slot = torch.nonzero(encoded.weights > tau, as_tuple=True)
    vectors = (encoded.vectors[text, token] * encoded.weights[text, token, slot][:, None]).to(dtype)
    return FlatTexts(size, numbers[text], encoded.keys[text, token, slot], vectors, None)


def _joined(parts: list[FlatTexts], size: int, semantic: Tensor | None, device: torch.device) -> FlatTexts:
    """Join batches and sort by text."""
    if not parts:
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return FlatTexts(0, empty, empty, torch.empty(0, 1, device=device), semantic)
    texts, keys, vectors = (torch.cat(column) for column in zip(*(part[1:4] for part in parts), strict=True))
    order = torch.argsort(texts, stable=True)
    return FlatTexts(size, texts[order], keys[order], vectors[order], semantic)
