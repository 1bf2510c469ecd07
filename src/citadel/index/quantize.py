"""Vector codecs: fp16, int8 (a scale per vector), product quantisation (a scale per key), residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.index.centroid_book import AnyCodebook, CentroidBook
from citadel.types import Floats, Keys

FP16_MAX = 65504.0
INT8_MAX = FP16_MAX * 127
TOKEN_SCALES = 8  # int8 scales tried for a vector that is compared with all query tokens


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded vectors: codes [P, width] and, for int8 (fp16) and residuals (u8), one scale per vector [P].

    >>> encode("fp16", np.ones((1, 4), np.float32)).codes.dtype.name
    'float16'
    """

    codec: str
    codes: NDArray[Any]
    scales: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Encoded:
        return Encoded(self.codec, self.codes[rows], None if self.scales is None else self.scales[rows])


def encode(
    codec: str,
    vectors: Floats,
    keys: Keys | None = None,
    codebook: AnyCodebook | None = None,
    scales_tried: int = 1,
) -> Encoded:
    """Encode w'·v [P, d]; the values must be finite and within the codec's range.

    Of several int8 scales a vector gets the one that keeps its product with itself best."""
    if codec == "fp16":
        return Encoded(codec, vectors.astype(np.float16))
    if codec == "int8":
        from citadel._native import quantize_int8

        codes, scales = quantize_int8(np.ascontiguousarray(vectors, np.float32), scales_tried)
        return Encoded(codec, codes, scales)
    from citadel._native import pq_assign

    assert codebook is not None
    assert keys is not None
    if isinstance(codebook, CentroidBook):
        return Encoded(codec, *codebook.encode(vectors, keys))
    scaled = vectors / codebook.scales_for(keys)[:, None]
    return Encoded(codec, pq_assign(np.ascontiguousarray(scaled, np.float32), codebook.centroids))


def decode(encoded: Encoded, keys: Keys | None = None, codebook: AnyCodebook | None = None) -> Floats:
    """Decode vectors to fp32 [P, d]."""
    if encoded.codec == "fp16":
        return encoded.codes.astype(np.float32)
    if encoded.codec == "int8":
        assert encoded.scales is not None
        return encoded.codes.astype(np.float32) * encoded.scales.astype(np.float32)[:, None]
    assert codebook is not None
    assert keys is not None
    if isinstance(codebook, CentroidBook):
        assert encoded.scales is not None
        return codebook.decode(encoded.codes, encoded.scales, keys)
    parts = codebook.centroids[np.arange(encoded.codes.shape[1]), encoded.codes]  # [P, S, sub]
    vectors: Floats = parts.reshape(len(encoded), -1) * codebook.scales_for(keys)[:, None]
    return vectors


def require_finite(values: NDArray[Any], what: str, document_id: str, limit: float = np.inf) -> None:
    """Raise InputError for NaN, infinity and numbers that the codec cannot represent.

    >>> require_finite(np.array([np.nan]), "vectors", "d7")
    Traceback (most recent call last):
    citadel.errors.InputError: document 'd7': the vectors hold NaN or infinity; leave it out or mend it
    """
    if not len(values):
        return
    largest = float(np.abs(values).max())
    if not np.isfinite(largest):
        reason = f"the {what} hold NaN or infinity; leave it out or mend it"
        raise InputError(f"document {document_id!r}: {reason}")
    if largest > limit:
        reason = f"the {what} hold {largest:g}, the codec stores at most {limit:g}; scale the vectors"
        raise InputError(f"document {document_id!r}: {reason}")


def limit_of(codec: str) -> float:
    """The largest number that a codec can represent.

    >>> limit_of("fp16")
    65504.0
    """
    return FP16_MAX if codec == "fp16" else INT8_MAX


def weight_steps(weights: Floats, step: float) -> NDArray[np.uint8]:
    """u8 weights: ⌈w / step⌉, so that "w > m · step" is exactly "code > m" for every whole m.

    >>> weight_steps(np.array([0.01, 0.02, 0.03, 99], np.float32), 0.02).tolist()
    [1, 1, 2, 255]
    """
    # fp32, as in the comparison with τ at build time; the code of w is the number of borders below it.
    borders = np.concatenate([[-np.inf], np.arange(255) * step, [np.inf]]).astype(np.float32)
    given = weights.astype(np.float32, copy=False)
    codes = np.minimum(np.ceil(given * np.float32(1 / step)), 255).astype(np.int16)  # ± 1
    codes -= given <= borders[codes]
    codes += given > borders[codes + 1]
    stored: NDArray[np.uint8] = codes.astype(np.uint8)
    return stored
