"""Encode many texts on a GPU and route them there, for benchmarks that need millions of real vectors.

Texts are tokenised by processes; batches, keys, pruning and the order of postings are made on the device, so
that Python works per part of 16,384 texts and not per text. Keys and weights are those of
`model.texts.TorchTexts`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import load_config
from citadel.encode.tokenizer import Tokenizer
from citadel.types import Document, VectorBatch

MODEL = Path(__file__).parent.parent / "models" / "small-en"
PART = 16_384  # texts
TOKENS_PER_BATCH = {"cuda": 1 << 17, "cpu": 1 << 11}
_TEXTS_PER_TASK = 2_048
T = TypeVar("T")


class Tokens(NamedTuple):
    """Tokenised texts: text i has ids[offsets[i]:offsets[i + 1]], special tokens included."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def chosen(self, texts: NDArray[np.int64]) -> Tokens:
        """Some of the texts."""
        return from_spans(self.ids, self.offsets[texts], self.lengths[texts])


def from_spans(ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tokens:
    """Texts ids[start : start + length]."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Tokens(ids[rows], offsets)


class Tokenisers:
    """Processes that tokenise; create them before a GPU or threads are used."""

    def __init__(self, processes: int | None = None) -> None:
        workers = processes or len(os.sched_getaffinity(0))
        self._pool = multiprocessing.get_context("fork").Pool(workers)

    def start(self, texts: Sequence[str]) -> Callable[[], Tokens]:
        """Begin to tokenise documents; the result is a function that waits for them."""
        parts = [texts[start : start + _TEXTS_PER_TASK] for start in range(0, len(texts), _TEXTS_PER_TASK)]
        results = self._pool.map_async(_tokenise, parts, chunksize=1)

        def wait() -> Tokens:
            done = results.get()
            ids = np.concatenate([ids for ids, _ in done] or [np.zeros(0, np.int32)])
            lengths = np.concatenate([own for _, own in done] or [np.zeros(0, np.int64)])
            return Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

        return wait

    def close(self) -> None:
        self._pool.close()


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(MODEL, load_config(MODEL))


def _tokenise(texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    encoded = _tokenizer().documents(texts)
    lengths = np.array([len(text) for text in encoded], np.int64)
    ids = np.concatenate([text.ids for text in encoded]).astype(np.int32)
    return ids, lengths


class GpuEncoder:
    """The installed model on a device."""

    def __init__(self, device: str = "auto") -> None:
        import torch

        from citadel.model.texts import TorchTexts

        self._torch = torch
        self.texts = TorchTexts(MODEL, device, dtype=torch.bfloat16 if device != "cpu" else torch.float32)
        self._device = self.texts._device
        self._limit = self.texts.config.key_postings
        self._skipped = torch.from_numpy(self.texts.tokenizer._is_skipped).to(self._device)

    def batches(self, tokens: Tokens, ids: Sequence[str], texts: Sequence[str]) -> Iterator[VectorBatch]:
        """Documents in parts of PART, in order."""
        for start in range(0, len(tokens), PART):
            chosen = np.arange(start, min(start + PART, len(tokens)))
            documents = [Document(ids[row], texts[row] if texts else "") for row in chosen.tolist()]
            yield VectorBatch(documents, *self._encode(tokens.chosen(chosen)))

    def _encode(self, tokens: Tokens) -> Any:
        """Offsets, keys, weights, vectors and semantic vectors of one part."""
        torch, parts = self._torch, []
        order = np.argsort(-tokens.lengths, kind="stable")
        semantic = torch.zeros((len(tokens), self.texts.config.semantic_dimension), device=self._device)
        limit = TOKENS_PER_BATCH[self._device.type]
        with torch.no_grad():
            while len(order):
                longest = int(-(-tokens.lengths[order[0]] // 8) * 8)
                rows, order = np.split(order, [max(1, limit // longest)])
                routed = self._route(tokens.chosen(rows), longest, torch.from_numpy(rows).to(self._device))
                semantic[routed[4]] = routed[3]
                parts.append(routed[:3])
            texts, keys, values = (torch.cat(column) for column in zip(*parts, strict=True))
            order = torch.argsort(texts * (1 << 32) + keys)  # keys ascend within a text
            texts, keys, values = texts[order], keys[order], values[order]
            offsets = torch.searchsorted(texts, torch.arange(len(tokens) + 1, device=self._device))
        host = values.cpu().numpy()
        return (
            offsets.cpu().numpy(),
            keys.cpu().numpy().astype(np.uint32),
            np.ascontiguousarray(host[:, 0]),
            np.ascontiguousarray(host[:, 1:]),
            semantic.cpu().numpy(),
        )

    def _route(self, tokens: Tokens, width: int, rows: Any) -> tuple[Any, ...]:
        """Text, key, weight and vector of each posting of one batch, and the semantic vectors."""
        torch, config = self._torch, self.texts.config
        lengths = torch.from_numpy(tokens.lengths).to(self._device)
        present = torch.arange(width, device=self._device) < lengths[:, None]
        ids = torch.full(present.shape, config.pad_id, device=self._device)
        ids[present] = torch.from_numpy(tokens.ids).to(self._device).long()
        routed = present & ~self._skipped[ids]
        how: dict[str, Any] = {"query": False, "learning": False, "dtype": self.texts._dtype, "padded": True}
        encoded: Any = self.texts._model.encode(ids, present.long(), routed, **how)
        weights = encoded.weights.float()
        text, token, rank = torch.nonzero((weights > self.texts.tau) & routed[:, :, None], as_tuple=True)
        keys, weight = encoded.keys[text, token, rank].long(), weights[text, token, rank]
        kept = self._best_of_keys(text * (1 << 32) + keys, weight)
        text, token, keys, weight = text[kept], token[kept], keys[kept], weight[kept]
        values = torch.cat([weight[:, None], encoded.vectors[text, token].float()], dim=1)
        return rows[text], keys, values, encoded.semantic.float(), rows

    def _best_of_keys(self, owners: Any, weights: Any) -> Any:
        """The postings of largest weight of each key of a text; ties go to the first."""
        torch = self._torch
        if not self._limit:
            return torch.arange(len(owners), device=self._device)
        order = torch.argsort(-weights, stable=True)
        order = order[torch.argsort(owners[order], stable=True)]
        ordered = owners[order]
        first = torch.searchsorted(ordered, ordered)
        return order[torch.arange(len(order), device=self._device) - first < self._limit]


def ahead(items: Iterator[T], depth: int = 3) -> Iterator[T]:
    """The same items, made by a thread while earlier ones are used."""
    waiting: queue.Queue[Any] = queue.Queue(depth)

    def run() -> None:
        try:
            for item in items:
                waiting.put((item, None))
            waiting.put((None, StopIteration))
        except BaseException as error:
            waiting.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    while True:
        item, problem = waiting.get()
        if problem is StopIteration:
            return
        if problem is not None:
            raise problem
        yield item
