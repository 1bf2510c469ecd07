"""Texts through the torch model: sorted by length, in large batches, their live rows kept flat on the device."""

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
    """Row p says that text `texts[p]` has `vectors[p]`, times its weight, under `keys[p]`; rows stand by text."""

    size: int
    texts: Tensor  # [P]
    keys: Tensor  # [P]
    vectors: Tensor  # [P, d]
    semantic: Tensor | None  # [size, s]

    def pick(self, chosen: Tensor) -> FlatTexts:
        """These texts, in this order, numbered from 0; a text may be asked for twice."""
        first = torch.searchsorted(self.texts, chosen)
        sizes = torch.searchsorted(self.texts, chosen, right=True) - first
        place = torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), sizes)  # [P]
        before = torch.cumsum(sizes, 0) - sizes
        rows = torch.arange(len(place), device=chosen.device) + (first - before)[place]
        semantic = None if self.semantic is None else self.semantic[chosen]
        return FlatTexts(len(chosen), place, self.keys[rows], self.vectors[rows], semantic)


class TokenRows(Protocol):
    """The token ids of each text: a list of arrays, or a table on disk that knows the `lengths` of its rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> NDArray[Any]: ...


class Marked(Protocol):
    """Token ids with their masks, as the model takes them."""

    @property
    def ids(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def routed(self) -> Tensor: ...


@dataclass(frozen=True)
class TorchEncoder:
    """A model with what marks its tokens: (ids, mask, query) → ids, mask and routed tokens on the device."""

    model: Citadel
    mark: Callable[[Tensor, Tensor, bool], Marked]
    pad_id: int = 0
    tau: float = 0.0

    @torch.no_grad()
    def encode(
        self, rows: TokenRows, query: bool = False, progress: Callable[[int], Any] = lambda done: None
    ) -> FlatTexts:
        """Token ids of some texts to their routed rows, in the order given."""
        device = self.model.embeddings.word.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        parts: list[FlatTexts] = []
        semantic = torch.empty(len(rows), self.model.config.semantic_dimension, device=device)  # [n, s]
        done = 0
        for chosen in batches(_lengths(rows), TOKENS_PER_BATCH.get(device.type, 1 << 14)):
            ids, mask = _pad([rows[row] for row in chosen.tolist()], self.pad_id)
            marked = self.mark(ids, mask, query)
            found = self.model.encode(marked.ids, marked.mask, marked.routed, query=query, learning=False, dtype=dtype)
            numbers = torch.from_numpy(chosen).to(device)
            parts.append(_flat(found, self.model.config, numbers, 0.0 if query else self.tau, dtype))
            if found.semantic is not None:
                semantic[numbers] = found.semantic.float()
            done += len(chosen)
            progress(done)
        return _joined(parts, len(rows), semantic if self.model.config.has_semantic else None, device)


def batches(lengths: NDArray[Any], tokens: int) -> list[NDArray[np.int64]]:
    """Text numbers by length, longest first, so that memory is at its highest at once; at most `tokens` with padding.

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
    """A sentence encoder as it is: mean-pooled, scaled to length 1; and its folder, where the tokenizer is."""
    found = load_pretrained(name)
    hidden = found.config.hidden
    config = ModelConfig(
        "none",
        found.config,
        token_dimension=0,
        semantic_dimension=hidden,
        pooling="mean",
        normalize_pooled=True,
        query_length=min(512, found.config.longest),
        document_length=min(512, found.config.longest),
    )
    model, folder = new_model(config, found)
    assert model.semantic is not None
    with torch.no_grad():
        torch.nn.init.eye_(model.semantic.weight)
        model.semantic.bias.zero_()
    return model.eval(), str(folder)


def find_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is any.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device {name!r}: choose auto, cuda or cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: choose --device cpu")
    return torch.device(name)


def _lengths(rows: TokenRows) -> NDArray[Any]:
    known: NDArray[Any] | None = getattr(rows, "lengths", None)
    return np.array([len(rows[row]) for row in range(len(rows))], np.int64) if known is None else known


def _pad(rows: list[NDArray[Any]], filler: int) -> tuple[Tensor, Tensor]:
    width = -(-max(len(row) for row in rows) // 8) * 8
    ids = np.full((len(rows), width), filler, np.int64)
    mask = np.arange(width)[None, :] < np.array([len(row) for row in rows])[:, None]  # [n, T]
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def _flat(found: EncodedTexts, config: ModelConfig, numbers: Tensor, tau: float, dtype: torch.dtype) -> FlatTexts:
    """The live rows of one batch; vectors already multiplied by their weights."""
    size = len(numbers)
    if config.router == "none":
        none = numbers.new_empty(0)
        return FlatTexts(size, none, none, torch.empty(0, 1, device=none.device, dtype=dtype), None)
    if config.router == "sparse":
        assert found.pooled is not None
        text, key = torch.nonzero(found.pooled > 0, as_tuple=True)
        return FlatTexts(size, numbers[text], key, found.pooled[text, key][:, None], None)
    assert found.vectors is not None
    if config.router == "all_to_all":
        text, token = torch.nonzero(found.routed, as_tuple=True)
        return FlatTexts(size, numbers[text], torch.zeros_like(text), found.vectors[text, token].to(dtype), None)
    assert found.keys is not None and found.weights is not None
    text, token, slot = torch.nonzero(found.weights > tau, as_tuple=True)
    vectors = (found.vectors[text, token] * found.weights[text, token, slot][:, None]).to(dtype)
    return FlatTexts(size, numbers[text], found.keys[text, token, slot], vectors, None)


def _joined(parts: list[FlatTexts], size: int, semantic: Tensor | None, device: torch.device) -> FlatTexts:
    """All batches as one, by text."""
    if not parts:
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return FlatTexts(0, empty, empty, torch.empty(0, 1, device=device), semantic)
    texts, keys, vectors = (torch.cat(column) for column in zip(*(part[1:4] for part in parts), strict=True))
    order = torch.argsort(texts, stable=True)
    return FlatTexts(size, texts[order], keys[order], vectors[order], semantic)
