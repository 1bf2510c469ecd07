"""Settings of an index: fields, router, codecs and every default, each defined once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from citadel.errors import UsageError

ROUTERS = ("all_to_all", "bm25", "centroid", "dynamic", "none", "sparse", "static")
CODECS = ("fp16", "int8", "pq2", "pq1", "residual4", "residual2", "residual1")
SUBVECTOR = {"pq2": 4, "pq1": 8}  # dimensions per code byte
RESIDUAL_BITS = {"residual4": 4, "residual2": 2, "residual1": 1}  # per dimension
CENTROID_BITS = {"int8": 0, **RESIDUAL_BITS}  # codecs of the router centroid; 0: the vector itself is stored
DEFAULT_RESIDUAL = "residual2"
MAX_DIMENSION = 1024
DEFAULT_ANALYSER = "english"
DEFAULT_CODEC = "int8"
DEFAULT_K1 = 0.9
DEFAULT_B = 0.4
DEFAULT_MEMORY = 1 << 30
LONG_MODES = ("chunk", "cut", "fail")
DEFAULT_CHUNK_TOKENS = 256
DEFAULT_CHUNK_OVERLAP = 32
MIN_CHUNK_TOKENS = 8
GRAPH_FLOOR = 32_768  # passages; scanning a smaller segment is about as fast as searching a graph
WEIGHT_STEP = 0.02  # of 8-bit weights: 255 steps reach 5.1 = log(1 + 163)
MAX_WEIGHT = 5.1


@dataclass(frozen=True, slots=True)
class EncodeOn:
    """Where and how documents are encoded.

    >>> EncodeOn("cuda:0,cuda:1").is_gpu, EncodeOn().is_gpu
    (True, False)
    """

    device: str = "cpu"
    precision: str = "bf16"  # on a GPU: bf16 or fp32
    batch_tokens: int | None = None  # on a GPU: tokens encoded at a time

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an index: the dimension of its vectors (0: weights only) and their codec.

    >>> Field(dimension=32, codec="pq2").subvectors
    8
    """

    dimension: int
    codec: str = DEFAULT_CODEC

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise UsageError(f"unknown codec {self.codec!r}: choose one of {', '.join(CODECS)}")
        if not 0 <= self.dimension <= MAX_DIMENSION:
            raise UsageError(
                f"dimension {self.dimension} is out of range: 1 to {MAX_DIMENSION} can be stored"
            )
        width = SUBVECTOR.get(self.codec, 8 if self.codec in RESIDUAL_BITS else 1)
        if self.dimension % width:
            raise UsageError(
                f"{self.codec} needs a dimension divisible by {width}, not {self.dimension}: use int8"
            )

    @property
    def subvectors(self) -> int:
        """Code bytes per vector under product quantisation."""
        return self.dimension // SUBVECTOR.get(self.codec, 1)


@dataclass(frozen=True, slots=True)
class LongDocuments:
    """What becomes of documents longer than a model reads: split into passages, cut, or refused.

    >>> LongDocuments("chunk", chunk_tokens=128).chunk_overlap
    32
    """

    mode: str = "cut"
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS  # of a passage with the document's title
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP  # that consecutive passages share

    def __post_init__(self) -> None:
        if self.mode not in LONG_MODES:
            raise UsageError(f"long={self.mode!r} is unknown: choose one of {', '.join(LONG_MODES)}")
        if self.chunk_tokens < MIN_CHUNK_TOKENS:
            raise UsageError(
                f"a passage of {self.chunk_tokens} tokens is too short: "
                f"choose chunk_tokens of {MIN_CHUNK_TOKENS} or more"
            )
        if not 0 <= self.chunk_overlap <= self.chunk_tokens // 2:
            raise UsageError(
                f"chunk_overlap {self.chunk_overlap} is out of range: "
                f"choose 0 to {self.chunk_tokens // 2}, half of chunk_tokens"
            )


def long_documents(
    mode: str | None, chunk_tokens: int | None, chunk_overlap: int | None, window: int
) -> LongDocuments:
    """Check the options for long documents of a model that reads `window` tokens.

    >>> long_documents(None, None, None, window=510)
    LongDocuments(mode='chunk', chunk_tokens=256, chunk_overlap=32)
    """
    mode = "chunk" if mode is None else mode
    if mode != "chunk" and (chunk_tokens is not None or chunk_overlap is not None):
        raise UsageError(f"chunk_tokens and chunk_overlap need long='chunk', not {mode!r}")
    for name, value in (("chunk_tokens", chunk_tokens), ("chunk_overlap", chunk_overlap)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"{name} must be a whole number, not {value!r}")
    tokens = min(DEFAULT_CHUNK_TOKENS, window) if chunk_tokens is None else chunk_tokens
    if tokens > window:
        raise UsageError(f"chunk_tokens {tokens} is more than the {window} tokens that the model reads")
    overlap = min(DEFAULT_CHUNK_OVERLAP, tokens // 8) if chunk_overlap is None else chunk_overlap
    return LongDocuments(mode, tokens, overlap)


@dataclass(frozen=True, slots=True)
class WordSettings:
    """The BM25 lists of an index that has them beside the lists of its model.

    >>> WordSettings("english-1-00000000").settings().router
    'bm25'
    """

    fingerprint: str  # of the analyser
    analyser: str = DEFAULT_ANALYSER
    k1: float = DEFAULT_K1
    b: float = DEFAULT_B

    def __post_init__(self) -> None:
        check_bm25(self.k1, self.b)

    def settings(self) -> Settings:
        """The settings of a BM25 index with the same lists."""
        return Settings("bm25", self.fingerprint, analyser=self.analyser, k1=self.k1, b=self.b)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that determine the postings of a document; stored in every manifest.

    >>> Settings(router="bm25", fingerprint="english", analyser="english").has_text_queries
    True
    """

    router: str
    fingerprint: str
    lexical: Field | None = None
    semantic: Field | None = None
    tau: float = 0.0
    weight_step: float = WEIGHT_STEP
    analyser: str | None = None
    k1: float = DEFAULT_K1
    b: float = DEFAULT_B
    model: str | None = None  # name of the model that encodes text; `fingerprint` identifies it
    long: LongDocuments = field(default_factory=LongDocuments)
    words: WordSettings | None = None  # BM25 lists beside those of the model

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise UsageError(f"unknown router {self.router!r}: choose one of {', '.join(ROUTERS)}")
        if self.semantic is not None and self.semantic.codec not in ("fp16", "int8"):
            raise UsageError(f"the semantic field is stored as fp16 or int8, not {self.semantic.codec}")
        check_bm25(self.k1, self.b)
        self._check_residual()

    def _check_residual(self) -> None:
        has_residual = self.lexical is not None and self.lexical.codec in RESIDUAL_BITS
        if has_residual and self.router != "centroid":
            raise UsageError(
                f"the codecs {', '.join(RESIDUAL_BITS)} go with the router centroid, not {self.router}"
            )
        has_codec = self.lexical is not None and self.lexical.codec in CENTROID_BITS
        if self.router == "centroid" and (not has_codec or self.semantic is not None):
            raise UsageError(
                "the router centroid stores int8 or residual codes and no semantic vectors: give a lexical "
                f"field with the codec {', '.join(CENTROID_BITS)}"
            )

    @property
    def has_codebook(self) -> bool:
        """Whether vectors are stored with a codebook: a product quantiser, or centroids."""
        return self.router == "centroid" or (self.lexical is not None and self.lexical.codec in SUBVECTOR)

    @property
    def has_text_queries(self) -> bool:
        """Whether the index can turn text into postings."""
        return self.analyser is not None or self.model is not None


def check_bm25(k1: float, b: float) -> None:
    """Raise UsageError if a BM25 parameter is out of range.

    >>> check_bm25(k1=0.9, b=2.0)
    Traceback (most recent call last):
    citadel.errors.UsageError: b 2.0 is out of range: give a number from 0 to 1
    """
    if not 0 <= k1 < math.inf:
        raise UsageError(f"k1 {k1} is out of range: give a finite number of 0 or more")
    if not 0 <= b <= 1:
        raise UsageError(f"b {b} is out of range: give a number from 0 to 1")


def check_tau(tau: float | None, router: str) -> None:
    """Raise UsageError if τ is out of range or the router has none.

    >>> check_tau(0.9, "dynamic")
    """
    if tau is not None and not (router == "dynamic" and 0 <= tau < MAX_WEIGHT):
        raise UsageError(
            f"τ = {tau:g} cannot be used: it is a number from 0 to {MAX_WEIGHT}, for the dynamic router only"
        )


def text_settings(
    fingerprint: str,
    router: str | None = None,
    tau: float | None = None,
    analyser: str = DEFAULT_ANALYSER,
    k1: float = DEFAULT_K1,
    b: float = DEFAULT_B,
) -> Settings:
    """Make the settings of a BM25 index; `fingerprint` is that of the analyser.

    >>> text_settings("english").router
    'bm25'
    """
    check_tau(tau, "bm25")
    if router not in (None, "bm25"):
        raise UsageError(
            f"router {router!r} needs vectors: create the index with fields=… and use add_vectors"
        )
    return Settings("bm25", fingerprint, analyser=analyser, k1=k1, b=b)


def vector_settings(
    fields: Mapping[str, Field | Mapping[str, Any] | int],
    router: str | None,
    fingerprint: str | None,
    tau: float | None,
) -> Settings:
    """Make the settings of an index of given vectors; `fields` are named lexical and semantic.

    >>> vector_settings({"lexical": 32}, None, "my-model", tau=0.9).lexical
    Field(dimension=32, codec='int8')
    """
    if unknown := set(fields) - {"lexical", "semantic"}:
        raise UsageError(f"unknown field {min(unknown)!r}: an index has a lexical and a semantic field")
    if not fingerprint:
        raise UsageError("an index of given vectors needs fingerprint=…, a name for the model that made them")
    lexical, semantic = (_field(fields[name]) if name in fields else None for name in ("lexical", "semantic"))
    if router is None:
        router = "dynamic" if lexical else "none"
        if lexical and lexical.codec in RESIDUAL_BITS:
            router = "centroid"
    if router == "bm25" or (router == "none") != (lexical is None):
        raise UsageError(f"router {router!r} does not go with the fields {', '.join(fields) or 'given'}")
    if lexical is not None and (lexical.dimension == 0) != (router == "sparse"):
        raise UsageError(
            f"router {router!r} with lexical dimension {lexical.dimension}: only sparse has dimension 0"
        )
    check_tau(tau, router)
    return Settings(router, fingerprint, lexical, semantic, tau or 0.0)


def _field(given: Field | Mapping[str, Any] | int) -> Field:
    if isinstance(given, Field):
        return given
    if isinstance(given, int):
        return Field(given)
    try:
        return Field(**given)
    except TypeError as error:
        raise UsageError(f"a field is a dimension, or a dimension and a codec, not {given!r}") from error


def available_threads() -> int:
    """Number of cores this process may use.

    >>> available_threads() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
