"""Encode text to routed tokens with a model folder, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import ModelConfig, load_config
from citadel.encode.locate import find_model, fingerprint
from citadel.encode.onnx_file import OnnxFile
from citadel.encode.pruning import best_of_keys, taken, with_lengths, without_blanks
from citadel.encode.session import DOCUMENT_SEMANTIC, MASK, ONNX_FILE, Session, read_model
from citadel.encode.tokenizer import Encoding, Tokenizer, attended_tokens
from citadel.errors import InputError, UsageError
from citadel.routing import get_router
from citadel.settings import (
    CENTROID_BITS,
    DEFAULT_CODEC,
    DEFAULT_RESIDUAL,
    RESIDUAL_BITS,
    Field,
    Settings,
    available_threads,
    check_tau,
)
from citadel.types import Floats, RoutedTokens, TokenVectors

TOKENS_PER_BATCH = 512  # with 30,522 activations per token, a full graph needs 62 MB


class Encoder:
    """Encoder of a model folder. Thread-safe.

    All texts of a batch have the same length, so nothing is padded, and the result for a text does not depend
    on the other texts of its batch, to the last bit.
    """

    device = "cpu"

    def __init__(
        self, folder: str | os.PathLike[str], threads: int | None = None, *, tau: float | None = None
    ) -> None:
        self.folder = find_model(folder)
        self.config = load_config(self.folder)
        self.tau = self.config.tau if tau is None else tau
        self._threads = threads or available_threads()
        self.tokenizer = Tokenizer(self.folder, self.config)
        path = os.path.join(self.folder, ONNX_FILE)
        contents = read_model(path)
        self.fingerprint = fingerprint(self.folder, contents)
        self.space = self.config.space or self.fingerprint
        self._session = Session(contents, self.config, path)
        self._query_weights = _query_weights(contents, self.config, path)
        self._router = get_router(self.config.router, semantic=self.config.has_semantic)

    def index_settings(
        self, name: str, router: str | None, tau: float | None, codec: str | None, semantic_codec: str | None
    ) -> Settings:
        """Settings of an index that encodes text with this model."""
        config = self.config
        if config.router == "all_to_all" and (router == "centroid" or codec in RESIDUAL_BITS):
            return self._centroid_settings(name, router, tau, codec)
        if router not in (None, config.router):
            raise UsageError(f"the model's router is {config.router}, not {router}: leave router out")
        check_tau(tau, config.router)
        lexical = None if config.router == "none" else Field(config.token_dimension, codec or DEFAULT_CODEC)
        semantic = (
            Field(config.semantic_dimension, semantic_codec or DEFAULT_CODEC) if config.has_semantic else None
        )
        threshold = self.tau if config.router == "dynamic" else 0.0
        return Settings(config.router, self.space, lexical, semantic, threshold, model=name)

    def _centroid_settings(
        self, name: str, router: str | None, tau: float | None, codec: str | None
    ) -> Settings:
        """Settings of a centroid index of a model that compares all tokens."""
        codec = codec or DEFAULT_RESIDUAL
        if router not in (None, "centroid") or codec not in CENTROID_BITS or self.config.has_semantic:
            raise UsageError(
                f"the codecs {', '.join(CENTROID_BITS)} go with the router centroid and a model without "
                "semantic vectors: leave router out, or choose another codec"
            )
        check_tau(tau, "centroid")
        lexical = Field(self.config.token_dimension, codec)
        return Settings("centroid", self.fingerprint, lexical, None, 0.0, model=name)

    def encode_documents(self, texts: Sequence[str]) -> list[RoutedTokens]:
        """Encode documents, in their order; weights ≤ τ are dropped."""
        return self.route_documents(self.tokenizer.documents(_checked(texts)))

    def encode_queries(self, texts: Sequence[str]) -> list[RoutedTokens]:
        """Encode queries, in their order."""
        tokenized = self.tokenizer.queries(_checked(texts))
        return with_lengths(tokenized, self.route_queries(tokenized, self.config.query_keys))

    def encode_query(self, text: str) -> RoutedTokens:
        """Encode one query."""
        return self.encode_queries([text])[0]

    def route_queries(self, texts: Sequence[Encoding], max_keys: int) -> list[RoutedTokens]:
        """Route tokenised queries; stored weights need no run of the graph."""
        if self._query_weights is not None:
            return [static_query(text, self._query_weights) for text in texts]
        return self.route(texts, max_keys, 0.0)

    def route_documents(
        self, texts: Sequence[Encoding], advance: Callable[[int], Any] | None = None
    ) -> list[RoutedTokens]:
        """Route tokenised documents; `advance` is called after each batch with its number of texts."""
        routed = self.route(texts, self.config.document_keys, self.tau, advance, document=True)
        routed = without_blanks(texts, routed)
        limit = self.config.key_postings
        return [taken(text, best_of_keys(text, limit)) for text in routed] if limit else routed

    def outputs(self, text: Encoding) -> dict[str, NDArray[Any]]:
        """Outputs of the graph for one text, by name, without the batch dimension."""
        return {name: values[0] for name, values in self._session.run(self._inputs([text])).items()}

    def route(
        self,
        texts: Sequence[Encoding],
        max_keys: int,
        tau: float,
        advance: Callable[[int], Any] | None = None,
        *,
        document: bool = False,
    ) -> list[RoutedTokens]:
        """Route texts, in their order, batch by batch on all cores.

        A dynamic router gives each token its best `max_keys` keys with weights above τ; other routers ignore
        both. `document` chooses the semantic vectors of documents.
        """
        routed: list[RoutedTokens | None] = [None] * len(texts)
        parts = list(batches([len(text) for text in texts]))
        for positions, arrays in self._run(texts, parts, tau if document else None):
            if DOCUMENT_SEMANTIC in arrays:
                own = arrays.pop(DOCUMENT_SEMANTIC)
                arrays["semantic"] = own if document else arrays["semantic"]
            for row, position in enumerate(positions):
                outputs = {name: values[row] for name, values in arrays.items()}
                routed[position] = self._route(texts[position], outputs, max_keys, tau)
            if advance is not None:
                advance(len(positions))
        return [text for text in routed if text is not None]

    def _run(
        self, texts: Sequence[Encoding], parts: list[list[int]], tau: float | None
    ) -> Iterator[tuple[list[int], dict[str, NDArray[Any]]]]:
        def encode(positions: list[int]) -> tuple[list[int], dict[str, NDArray[Any]]]:
            some = [texts[position] for position in positions]
            routed = np.stack([text.routed for text in some])  # [n, T]
            return positions, self._session.run(self._inputs(some), tau, routed)

        if min(self._threads, len(parts)) <= 1:
            yield from map(encode, parts)
            return
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="citadel-encode")
        try:
            yield from pool.map(encode, parts)
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt does not wait for pending batches

    def _inputs(self, texts: Sequence[Encoding]) -> dict[str, NDArray[Any]]:
        inputs = {"input_ids": np.stack([text.ids for text in texts])}  # [n, T]
        if self.config.router == "sparse":
            inputs["routed_mask"] = np.stack([text.routed for text in texts]).astype(np.int64)
        if not self.config.attend_padding:
            inputs[MASK] = attended_tokens(self.config, inputs["input_ids"]).astype(np.int64)
        return inputs

    def _route(
        self, text: Encoding, outputs: dict[str, NDArray[Any]], max_keys: int, tau: float
    ) -> RoutedTokens:
        """Convert the outputs for one text to rows (key, weight, vector)."""
        semantic = outputs.get("semantic")
        if "activations" in outputs:
            return self._with_semantic(whole_text(outputs["activations"]), semantic)
        vectors = outputs["vectors"][text.routed] if "vectors" in outputs else None  # [t, d]
        if "keys" in outputs and vectors is not None:
            keys, weights = (outputs[name][text.routed, :max_keys] for name in ("keys", "weights"))  # [t, L]
            return self._with_semantic(chosen_keys(keys, weights, vectors, tau), semantic)
        plain = TokenVectors(text.ids[text.routed].astype(np.uint32), vectors, semantic=semantic)
        return self._router.route_document(plain)

    def _with_semantic(self, routed: RoutedTokens, semantic: Floats | None) -> RoutedTokens:
        for values in (routed.weights, routed.vectors, semantic):
            if values is not None and not np.isfinite(values).all():
                raise InputError("the model gives NaN or infinity: export or train it again", self.folder)
        return replace(routed, semantic=semantic)


def chosen_keys(keys: NDArray[np.int64], weights: Floats, vectors: Floats, tau: float) -> RoutedTokens:
    """Rows of a dynamic router from the graph's best keys [t, L]; weights ≤ τ are dropped.

    >>> routed = chosen_keys(np.array([[7, 9]]), np.array([[2.0, 0.5]]), np.ones((1, 4)), tau=0.5)
    >>> routed.keys.tolist(), routed.weights.tolist()
    ([7], [2.0])
    """
    tokens, positions = np.nonzero(weights > np.float32(tau))  # in token order, best first
    return RoutedTokens(
        keys[tokens, positions].astype(np.uint32),
        weights[tokens, positions].astype(np.float32),
        vectors[tokens].astype(np.float32),
        tokens=tokens.astype(np.uint32),
    )


def whole_text(activations: Floats) -> RoutedTokens:
    """Rows of a sparse router from Φ [V].

    >>> whole_text(np.array([0, 1.5, 0], np.float32)).keys.tolist()
    [1]
    """
    keys = np.flatnonzero(activations > 0).astype(np.uint32)
    return RoutedTokens(keys, activations[keys].astype(np.float32))


def static_query(text: Encoding, weights: Floats) -> RoutedTokens:
    """Rows of a query whose tokens have stored weights [V].

    >>> text = Encoding(np.array([2, 0, 1, 0, 2]), (), np.array([False, True, True, True, False]))
    >>> static_query(text, np.array([0.5, 2, 9], np.float32)).weights.tolist()
    [0.5, 2.0]
    """
    keys = np.unique(text.ids[text.routed])
    keys = keys[weights[keys] > 0]
    return RoutedTokens(keys.astype(np.uint32), weights[keys])


def _query_weights(contents: bytes, config: ModelConfig, path: str) -> Floats | None:
    """The stored weights of a query's tokens [V], if the model has them."""
    if not config.static_queries:
        return None
    try:
        weights = OnnxFile(contents).array("query.weight", np.float32)
    except ValueError:
        weights = np.empty(0, np.float32)
    if len(weights) != config.backbone.vocabulary or not np.isfinite(weights).all():
        raise InputError("the graph has no weights for queries: export the model again", path)
    return weights


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group positions of texts by length, longest first, so that no core finishes late with a long text.

    >>> list(batches([3, 5, 3]))
    [[1], [0, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    start = 0
    while start < len(order):
        length = lengths[order[start]]
        stop = start + 1
        end = start + max(TOKENS_PER_BATCH // length, 1)
        while stop < min(end, len(order)) and lengths[order[stop]] == length:
            stop += 1
        yield order[start:stop]
        start = stop


def _checked(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise UsageError("texts must be a sequence of strings: put a single text into a list")
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"a text to encode must be a string, not {type(text).__name__}")
    return texts
