"""Encode streams of documents on GPUs, for indexing.

A thread reads and tokenises, two threads per GPU encode, and the caller writes, all at the same time. Each
works on a window of some thousand texts, sorted by length, so that little is padded.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.encode.token_groups import TokenGroup, token_groups
from citadel.encode.token_table import TokenTable
from citadel.encode.tokenizer import Tokenizer
from citadel.errors import InputError, ResourceError, UsageError
from citadel.model.checkpoint import load_model
from citadel.model.citadel import Citadel
from citadel.model.encoder import batches
from citadel.model.packed import PackedTexts, can_pack, encode_documents
from citadel.search.gpu.device import parse_device
from citadel.settings import EncodeOn, LongDocuments
from citadel.types import Document, Passages, VectorBatch

TORCH_CPU = "torch-cpu"  # the same code on the CPU, for tests
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
BATCH_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 12}  # encoded at a time
_WINDOW_TOKENS = 1 << 19  # sorted by length together
_BYTES_PER_TOKEN = 1 << 11  # of the memory bound per token of a window, of which a few are alive
_WINDOW_BYTES = 1 << 26  # of an encoded window
_AHEAD_SHARE, _MAX_AHEAD = 8, 32  # encoded windows may take an eighth of the memory bound
_THREADS_PER_GPU = 2  # one copies results while the other computes
_MIN_WINDOW = 1 << 12
_MIN_TOKENS = 512  # a GPU that cannot encode this many at a time is out of memory
_WIDTH = 8  # widths of batches are multiples of this


class Window(NamedTuple):
    """Documents that are encoded together."""

    documents: Sequence[Document]
    texts: TokenTable
    passages: Passages | None
    cut: int
    split: int


class EncodedBatch(NamedTuple):
    """A window that is encoded, and how many of its documents were cut or split."""

    batch: VectorBatch
    cut: int
    split: int


class DocumentEncoder:
    """A model with a dynamic router on one or several devices, for documents."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        device: str = "cuda",
        precision: str = "bf16",
        tau: float | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        devices = check_encode_on(EncodeOn(device, precision))
        model = load_model(folder)
        if model.config.router != "dynamic":
            raise UsageError(
                f"a GPU encodes documents of dynamic routers, not {model.config.router}: use --device cpu"
            )
        self.config, self.device = model.config, device
        self.tokenizer = Tokenizer(folder, model.config)
        tau = model.config.tau if tau is None else tau
        self._replicas = [
            _Replica(model, each, PRECISIONS[precision], tau, self.tokenizer.skipped, batch_tokens)
            for each in devices
        ]

    def encoded(
        self, documents: Iterable[Document], memory: int, long: LongDocuments
    ) -> Iterator[EncodedBatch]:
        """Encode a stream, window by window and in order.

        A thread reads the stream. The documents before a bad one are yielded before its error.
        """
        ahead = min(max(memory // _AHEAD_SHARE // _WINDOW_BYTES, 1), _MAX_AHEAD)
        windows = _ReadAhead(_windows(token_groups(documents, self.tokenizer, memory, long), memory), ahead)
        pools = [
            ThreadPoolExecutor(_THREADS_PER_GPU, thread_name_prefix="citadel-gpu") for _ in self._replicas
        ]
        pending: deque[Future[EncodedBatch]] = deque()
        try:
            for number, window in enumerate(windows):
                which = number % len(pools)
                pending.append(pools[which].submit(self._replicas[which].encode, window))
                if (
                    len(pending) >= _THREADS_PER_GPU * len(pools) + ahead
                ):  # so that GPUs work while a segment is written
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            windows.raise_error()
        finally:
            windows.stop()
            for pool in pools:
                pool.shutdown(cancel_futures=True)


def check_encode_on(where: EncodeOn) -> list[torch.device]:
    """The devices to encode on; raises UsageError for one that does not exist and an unknown precision."""
    if where.precision not in PRECISIONS:
        raise UsageError(f"unknown precision {where.precision!r}: choose one of {', '.join(PRECISIONS)}")
    return parse_devices(where.device)


def parse_devices(names: str) -> list[torch.device]:
    """Devices by name: `cuda`, `cuda:1`, or several with commas between them.

    >>> parse_devices("torch-cpu")
    [device(type='cpu')]
    """
    if names == TORCH_CPU:
        return [torch.device("cpu")]
    try:
        devices = [parse_device(name.strip()) for name in names.split(",")]
    except UsageError as error:
        raise UsageError(str(error).replace("search with --device cpu", "use --device cpu")) from None
    repeated = len({(device.type, device.index or 0) for device in devices}) < len(devices)
    if repeated or any(device.type != "cuda" for device in devices):
        raise UsageError(f"cannot encode documents on {names!r}: name GPUs, as in cuda or cuda:0,cuda:1")
    return devices


class _Replica:
    """The model on one device."""

    def __init__(
        self,
        model: Citadel,
        device: torch.device,
        dtype: torch.dtype,
        tau: float,
        skipped: np.ndarray[Any, np.dtype[np.bool_]],
        batch_tokens: int | None,
    ) -> None:
        self._device, self._dtype, self._tau = device, dtype, float(np.float32(tau))
        self.batch_tokens = batch_tokens or BATCH_TOKENS[device.type]
        self._model = Citadel(model.config)
        self._model.load_state_dict(model.state_dict())
        with _device_errors(device, self.batch_tokens):
            self._model.to(device).eval().requires_grad_(False)
            self._model.keep_in(dtype)
            self._model.prepare_router(dtype)
            self._skipped = torch.from_numpy(skipped).to(device)
        self._can_pack = can_pack(self._model, device, dtype)

    @torch.no_grad()
    def encode(self, window: Window) -> EncodedBatch:
        """Encode the texts of a window; when the GPU is out of memory, again in smaller batches."""
        while True:
            try:
                with _device_errors(self._device, self.batch_tokens):
                    return self._encode(window)
            except _OutOfMemory:
                if self.batch_tokens // 2 < max(_MIN_TOKENS, int(window.texts.lengths.max())):
                    raise
            # Outside the handler: the exception's traceback keeps tensors alive.
            self.batch_tokens = max(self.batch_tokens // 2, _MIN_TOKENS)
            torch.cuda.empty_cache()

    def _encode(self, window: Window) -> EncodedBatch:
        texts = window.texts
        ids = torch.from_numpy(texts.ids).to(self._device)
        begins, lengths = (
            torch.from_numpy(part).to(self._device) for part in (texts.offsets[:-1], texts.lengths)
        )
        blank = torch.from_numpy(texts.blank).to(self._device)
        parts: list[_Rows] = []
        semantic = torch.zeros(len(texts), self._model.config.semantic_dimension, device=self._device)
        widths = -(-texts.lengths // _WIDTH) * _WIDTH
        for chosen in batches(widths, self.batch_tokens):
            numbers, sizes = torch.from_numpy(chosen).to(self._device), texts.lengths[chosen]
            given = _Texts(ids, begins[numbers], lengths[numbers], int(sizes.max()), int(sizes.sum()))
            encoded = (
                self._packed(given)
                if self._can_pack
                else self._padded(given, bool(sizes.min() < widths[chosen[0]]))
            )
            live = (encoded.weights > self._tau) & ~blank[numbers][encoded.texts][:, None]  # [N, L]
            token, _ = torch.nonzero(live, as_tuple=True)
            rows = _Rows(
                numbers[encoded.texts[token]],
                encoded.keys[live],
                encoded.weights[live],
                encoded.vectors[token],
            )
            parts.append(rows.kept(self._model.config.key_postings))
            if encoded.semantic is not None:
                semantic[numbers] = torch.where(blank[numbers][:, None], 0.0, encoded.semantic.float())
        return self._joined(window, parts, semantic)

    def _packed(self, given: _Texts) -> _Tokens:
        """Encode without padding."""
        texts = PackedTexts.of(given.lengths, given.longest, given.total)
        ids = given.ids[given.begins[texts.texts] + texts.positions].long()
        encoded = encode_documents(self._model, ids, texts, ~self._skipped[ids], self._dtype)
        return _Tokens(texts.texts, *encoded)

    def _padded(self, given: _Texts, padded: bool) -> _Tokens:
        """Encode with padding to the longest text."""
        column = torch.arange(-(-given.longest // _WIDTH) * _WIDTH, device=self._device)
        inside = column < given.lengths[:, None]  # [n, T]
        source = (given.begins[:, None] + column).clamp_(max=len(given.ids) - 1)
        ids = torch.where(inside, given.ids[source].long(), self._model.config.pad_id)
        encoded = self._model.encode(
            ids, inside.long(), inside & ~self._skipped[ids],
            learning=False, dtype=self._dtype, padded=padded,
        )  # fmt: skip
        assert encoded.weights is not None and encoded.keys is not None and encoded.vectors is not None
        texts = torch.arange(len(ids), device=self._device)[:, None].expand(ids.shape)
        return _Tokens(
            texts.flatten(), encoded.keys.flatten(0, 1), encoded.weights.flatten(0, 1),
            encoded.vectors.flatten(0, 1), encoded.semantic,
        )  # fmt: skip

    def _joined(self, window: Window, parts: list[_Rows], semantic: Tensor) -> EncodedBatch:
        """The rows of all batches in the order of the documents, on the host."""
        rows = _Rows(*(torch.cat(column) for column in zip(*parts, strict=True)))
        order = torch.argsort(rows.texts, stable=True)
        rows = _Rows(*(column[order] for column in rows))
        counts = torch.bincount(rows.texts, minlength=len(window.texts)).cpu().numpy()
        if not bool(torch.isfinite(rows.weights).all() & torch.isfinite(rows.vectors).all()) or not bool(
            torch.isfinite(semantic).all()
        ):
            raise InputError("the model gives NaN or infinity: export or train it again")
        batch = VectorBatch(
            window.documents,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            _on_host(rows.keys.int()).view(np.uint32),
            _on_host(rows.weights.float()),
            _on_host(rows.vectors.float()),
            _on_host(semantic) if self._model.config.has_semantic else None,
            window.passages,
        )
        return EncodedBatch(batch, window.cut, window.split)


class _Texts(NamedTuple):
    """Some texts of a window, on the device."""

    ids: Tensor  # of the whole window
    begins: Tensor  # [n]
    lengths: Tensor  # [n]
    longest: int
    total: int  # tokens


class _Tokens(NamedTuple):
    """What a model returns for the tokens of some texts, and for the texts."""

    texts: Tensor  # [N]
    keys: Tensor  # [N, L]
    weights: Tensor  # [N, L], 0 for tokens without keys
    vectors: Tensor  # [N, d]
    semantic: Tensor | None  # [n, s]


class _Rows(NamedTuple):
    """Postings, by text, token and key in this order."""

    texts: Tensor  # [P]
    keys: Tensor  # [P]
    weights: Tensor  # [P]
    vectors: Tensor  # [P, d]

    def kept(self, limit: int) -> _Rows:
        """The `limit` postings of largest weight per text and key (see encode/pruning); 0 for all."""
        if not limit or not len(self.keys):
            return self
        order = torch.argsort(self.weights, descending=True, stable=True)
        group = self.texts * (int(self.keys.max()) + 1) + self.keys
        order = order[torch.argsort(group[order], stable=True)]
        ordered = group[order]
        rank = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
        chosen = torch.sort(order[rank < limit]).values
        return _Rows(*(column[chosen] for column in self))


def _on_host(values: Tensor) -> NDArray[Any]:
    """Copy to the host; through pinned memory, which is ten times as fast."""
    if not values.is_cuda:
        return values.numpy()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values).numpy()


class _OutOfMemory(ResourceError):
    """A device is out of memory; the message says what to lower."""


@contextmanager
def _device_errors(device: torch.device, batch_tokens: int) -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise _OutOfMemory(
            f"{device}: out of memory while encoding {batch_tokens:,} tokens at a time; what was committed "
            "before is intact: lower --batch-tokens, free memory on the GPU, or use --device cpu"
        ) from None
    except RuntimeError as error:
        if "CUDA" not in str(error):
            raise
        words = str(error).split("\n", 1)[0].rstrip(". ")
        raise ResourceError(
            f"{device}: {words}; what was committed before is intact: check the GPU with nvidia-smi, "
            "or use --device cpu"
        ) from None


def _windows(groups: Iterable[TokenGroup], memory: int) -> Iterator[Window]:
    """Join groups to windows; those before an error are yielded before it."""
    limit = min(_WINDOW_TOKENS, max(memory // _BYTES_PER_TOKEN, _MIN_WINDOW))
    some, tokens, errors = list[TokenGroup](), 0, list[Exception]()
    for group in _until_error(groups, errors):
        some.append(group)
        tokens += len(group.texts.ids)
        if tokens >= limit:
            yield _window(some)
            some, tokens = [], 0
    if some:
        yield _window(some)
    if errors:
        raise errors[0]


def _until_error(groups: Iterable[TokenGroup], errors: list[Exception]) -> Iterator[TokenGroup]:
    try:
        yield from groups
    except InputError as error:
        errors.append(error)


def _window(groups: Sequence[TokenGroup]) -> Window:
    passages = None
    if any(group.passages is not None for group in groups):
        parts = [group.passages or _whole(group.documents) for group in groups]
        counts = np.concatenate([part.counts for part in parts])
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        passages = Passages(starts, np.concatenate([part.spans for part in parts]))
    return Window(
        [document for group in groups for document in group.documents],
        TokenTable.joined([group.texts for group in groups]),
        passages,
        sum(group.cut for group in groups),
        sum(group.split for group in groups),
    )


def _whole(documents: Sequence[Document]) -> Passages:
    """Each document as a single passage."""
    ends = np.array([len(document.text) for document in documents], np.uint32)
    return Passages(np.arange(len(ends) + 1), np.stack([np.zeros_like(ends), ends], axis=1))


class _ReadAhead:
    """Reads a stream in a thread, some items ahead; an error comes after the items before it."""

    def __init__(self, items: Iterator[Window], ahead: int) -> None:
        self._ready: queue.Queue[Window | None] = queue.Queue(ahead)
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(items,), name="citadel-tokenise", daemon=True
        )
        self._thread.start()

    def _fill(self, items: Iterator[Window]) -> None:
        try:
            for item in items:
                self._put(item)
                if self._stopped.is_set():
                    return
        except BaseException as error:
            self._error = error
        self._put(None)

    def _put(self, item: Window | None) -> None:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[Window]:
        while (item := self._ready.get()) is not None:
            yield item

    def raise_error(self) -> None:
        """Raise the error that ended the stream, if any."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread; what it has read is dropped."""
        self._stopped.set()
        self._thread.join()


def document_encoder(folder: str | os.PathLike[str], where: EncodeOn, tau: float) -> DocumentEncoder:
    """Load a model for documents."""
    return DocumentEncoder(folder, where.device, where.precision, tau, where.batch_tokens)


def document_batches(
    encoder: DocumentEncoder,
    documents: Iterable[Document],
    memory: int,
    tally: Callable[[str, int], None],
    advance: Callable[[int], Any] | None,
    long: LongDocuments,
) -> Iterator[VectorBatch]:
    """Like `encode.batches.encoded_batches`, on GPUs."""
    for encoded in encoder.encoded(documents, memory, long):
        yield encoded.batch
        for name, number in (("cut", encoded.cut), ("split", encoded.split)):
            if number:
                tally(name, number)
        if advance is not None:
            advance(len(encoded.batch.documents))
