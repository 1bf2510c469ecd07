"""Encode texts with a torch checkpoint on any device, with the interface of `encode.Encoder`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.encode.encoder import chosen_keys, whole_text
from citadel.encode.pruning import best_of_keys, taken, with_lengths, without_blanks
from citadel.encode.tokenizer import Encoding, Tokenizer, attended_tokens
from citadel.model.checkpoint import ONNX, WEIGHTS, load_model
from citadel.model.citadel import EncodedTexts
from citadel.model.encoder import TOKENS_PER_BATCH, batches, find_device
from citadel.model.recorded import MAX_TOKENS, SingleQueries, padded_width
from citadel.routing import get_router
from citadel.types import RoutedTokens, TokenVectors


class TorchTexts:
    """A loaded checkpoint; `singly` makes single queries fast on a GPU."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        device: str = "auto",
        tau: float | None = None,
        dtype: torch.dtype | None = None,
        singly: bool = False,
    ) -> None:
        self._device = find_device(device)
        self._dtype = dtype or (torch.bfloat16 if self._device.type == "cuda" else torch.float32)
        self._model = load_model(folder).to(self._device).eval()
        self._model.prepare_router(self._dtype)
        self.config = self._model.config
        # Recorded queries attend to every token, and stored weights need no recording.
        singly = singly and self.config.attend_padding and not self.config.static_queries
        self._single = SingleQueries(self._model, self._dtype, str(folder)) if singly else None
        self.tau = self.config.tau if tau is None else tau
        self.tokenizer = Tokenizer(folder, self.config)
        self.fingerprint = _fingerprint(Path(folder))
        self._router = get_router(self.config.router, semantic=self.config.has_semantic)

    @property
    def device(self) -> str:
        """Device of the model."""
        return str(self._device)

    def route_documents(self, texts: Sequence[Encoding]) -> list[RoutedTokens]:
        """Route tokenised documents; weights ≤ τ are dropped."""
        routed = without_blanks(texts, self._route_all(texts, False, self.tau))
        limit = self.config.key_postings
        return [taken(text, best_of_keys(text, limit)) for text in routed] if limit else routed

    def encode_queries(self, texts: Sequence[str]) -> list[RoutedTokens]:
        """Encode queries, in their order."""
        encodings = self.tokenizer.queries(texts)
        if self._single is not None and len(texts) == 1 and len(encodings[0]) <= MAX_TOKENS:
            return with_lengths(
                encodings, [self._route(encodings[0], self._single.outputs(encodings[0]), 0.0)]
            )
        return with_lengths(encodings, self._route_all(encodings, True, 0.0))

    def _route_all(self, texts: Sequence[Encoding], query: bool, tau: float) -> list[RoutedTokens]:
        routed: dict[int, RoutedTokens] = {}
        for indices, encoded in self._run(texts, query):
            arrays = {name: _numpy(part) for name, part in encoded.tensors().items() if part.dim() > 1}
            for row, index in enumerate(indices.tolist()):
                outputs = {name: values[row] for name, values in arrays.items()}
                routed[index] = self._route(texts[index], outputs, tau)
        return [routed[index] for index in range(len(texts))]

    @torch.no_grad()
    def _run(
        self, texts: Sequence[Encoding], query: bool
    ) -> Iterator[tuple[NDArray[np.int64], EncodedTexts]]:
        lengths = np.array([len(text) for text in texts])
        for indices in batches(lengths, TOKENS_PER_BATCH.get(self._device.type, 1 << 14)):
            some = [texts[index] for index in indices.tolist()]
            ids, mask, marked = (torch.from_numpy(part).to(self._device) for part in self._padded(some))
            padded = int(lengths[indices].min()) < ids.shape[1] or not self.config.attend_padding
            how: dict[str, Any] = {"query": query, "learning": False, "dtype": self._dtype, "padded": padded}
            yield indices, self._model.encode(ids, mask, marked, **how)

    def _padded(
        self, texts: Sequence[Encoding]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Ids, mask and routed tokens [n, T], as wide as the longest, rounded up."""
        width = padded_width(max(len(text) for text in texts))
        ids = np.full((len(texts), width), self.config.pad_id, np.int64)
        mask, marked = np.zeros_like(ids), np.zeros(ids.shape, np.bool_)
        for row, text in enumerate(texts):
            ids[row, : len(text)], marked[row, : len(text)] = text.ids, text.routed
            mask[row, : len(text)] = attended_tokens(self.config, text.ids)
        return ids, mask, marked

    def _route(self, text: Encoding, outputs: dict[str, NDArray[np.float32]], tau: float) -> RoutedTokens:
        semantic = outputs.get("semantic")
        if self.config.router == "sparse":
            return replace(whole_text(outputs["pooled"]), semantic=semantic)
        positions = np.flatnonzero(text.routed)
        vectors = outputs["vectors"][positions] if "vectors" in outputs else None  # [t, d]
        if self.config.router == "dynamic":
            assert vectors is not None
            keys = outputs["keys"][positions].astype(np.int64)  # [t, L]
            weights = outputs["weights"][positions]  # [t, L]
            return replace(chosen_keys(keys, weights, vectors, tau), semantic=semantic)
        plain = TokenVectors(text.ids[text.routed].astype(np.uint32), vectors, semantic=semantic)
        return self._router.route_document(plain)


def _numpy(part: torch.Tensor) -> NDArray[Any]:
    """Copy to the host; bf16 becomes fp32, because numpy has no bf16."""
    return (part.float() if part.is_floating_point() else part).cpu().numpy()


def _fingerprint(folder: Path) -> str:
    file = folder / WEIGHTS if (folder / WEIGHTS).is_file() else folder / ONNX
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def query_encoder(folder: str, device: str) -> TorchTexts:
    """Query encoder on the first of these devices, in fp32 so that keys do not change.

    A query is bound by kernel launches, which are recorded; a lower precision would not be faster.
    """
    return TorchTexts(folder, device.split(",", maxsplit=1)[0], dtype=torch.float32, singly=True)
