"""Cheap upper bounds of the router's logits, so that a document needs few exact products.

Hardly one key per token exceeds τ. In coordinates in which states and keys have the same covariance, half of
them decide about nearly all keys: by Cauchy and Schwarz, the others add at most the product of two lengths.
Rounding only raises a bound, so no key above τ is lost.

The others hardly ever add half of that, so a model may allow for less (`ModelConfig.key_margin`): a third of
the coordinates then suffices, and with 0.5 about two keys in 100,000 are lost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.types import Floats

MAX_WIDTH = 512  # coordinates are exact in fp32: 255 · 127 · 512 < 2²⁴
SPARSE = 1 / 50  # share of keys that may remain for each token
_RIDGE = 0.02  # added to both covariances, as a share of their mean
_CLIPPED = 1e-5  # share of the sample's coordinates that do not fit a byte; their rounding errors are large
_LENGTH_BYTES = np.array([5, 2, 1])  # of a state's three lengths
_USUAL = 0.99  # share of the sample's lengths that the units are made for,
_MARGIN = 1.5  # and their space for longer ones
_SLACK, _SHARE = 1e-3, 1e-6  # of a logit, and of its parts: more than fp32 and double precision lose
_KEYS_PER_PART = 2048
_TRIED = 64  # states

Doubles = NDArray[np.float64]


class Bounds(NamedTuple):
    """The arguments of `Router.set_bounds`."""

    transform: NDArray[np.int8]
    means: Floats
    factors: Floats
    units: Floats
    codes: NDArray[np.int8]
    thresholds: NDArray[np.int32]


class Table(NamedTuple):
    """z = (state - zero) · codeᵀ · scale + bias."""

    codes: NDArray[np.int8]  # [V, h]
    scales: Doubles  # [V]
    biases: Doubles
    zero: int


class _Keys(NamedTuple):
    """Keys in the coordinates, in multiples of each key's step."""

    codes: NDArray[np.int8]  # [V, lead]
    limits: Doubles  # the floor less the key's constant part
    lengths: Doubles  # [V, 3]: of the other coordinates, the codes, and their rounding errors


def find_bounds(table: Table, states: NDArray[np.uint8], floor: float, margin: float = 1.0) -> Bounds | None:
    """Bounds that tell which logits may exceed `floor`, fitted to a sample of states [n, h].

    `margin` is the share of the greatest possible error that they allow for.

    None if the sample does not determine coordinates, or too many keys would remain.
    """
    width = table.codes.shape[1]
    if not 8 <= width <= MAX_WIDTH or len(states) < width:
        return None
    lead = max(width // (8 if margin == 1 else 24), 1) * 4
    try:
        transform, inverse, steps = _coordinates(table, states)
    except np.linalg.LinAlgError:
        return None
    moved = states @ transform.T.astype(np.float32)  # whole numbers below 2²⁴
    means = np.round(moved.mean(axis=0, dtype=np.float64)).astype(np.float32)
    moved -= means
    size = np.quantile(np.abs(moved[:, :lead]) * steps[:lead].astype(np.float32), 1 - _CLIPPED)
    factors = (steps * (127 / size)).astype(np.float32)
    moved *= factors
    codes = np.clip(np.round(moved[:, :lead]), -128, 127)
    parts = (moved[:, lead:], moved[:, :lead] - codes, moved[:, :lead])
    lengths = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1, dtype=np.float64)  # [n, 3]
    del moved, parts
    keys = _keys(table, inverse / factors.astype(np.float64), inverse @ means.astype(np.float64), lead, floor)
    keys = keys._replace(lengths=margin * keys.lengths)
    if not np.isfinite(factors).all() or not np.isfinite(keys.lengths).all():
        return None
    units = _units(np.quantile(lengths, _USUAL, axis=0), keys.lengths.max(axis=0))
    raised = np.ceil(keys.lengths * (1 + 1e-9) * units)  # [V, 3]
    widest = np.concatenate([keys.codes, np.repeat(raised, _LENGTH_BYTES, axis=1)], axis=1, dtype=np.float32)
    constant = keys.limits + 128.0 * keys.codes.sum(axis=1, dtype=np.int64)
    thresholds = np.clip(np.floor(constant) - 1, -(2.0**30), 2.0**30)
    own = (codes[:_TRIED] + 128, _bytes_of(lengths[:_TRIED], units))
    tried = np.concatenate(own, axis=1, dtype=np.float32)  # products are whole numbers below 2²⁴
    if raised.max() > 127 or (tried @ widest.T > thresholds).mean() > SPARSE:
        return None
    return Bounds(
        transform,
        means,
        factors,
        units.astype(np.float32),
        widest.astype(np.int8),
        thresholds.astype(np.int32),
    )


def _coordinates(table: Table, states: NDArray[np.uint8]) -> tuple[NDArray[np.int8], Doubles, Doubles]:
    """A transform of states, its inverse, and the steps by which its rows were multiplied to fit bytes.

    In these coordinates states and keys have the same diagonal covariance, largest first.
    """
    moved = states - states.mean(axis=0, dtype=np.float32)
    own = _root(moved.T @ moved / len(moved))
    every = max(len(table.codes) // _KEYS_PER_PART, 1)
    scaled = (table.codes[::every] * table.scales[::every, None]).astype(np.float32)
    other = _root(scaled.T @ scaled / len(scaled))
    left, sizes, _ = np.linalg.svd(other.T @ own)
    turned = (other @ left / np.sqrt(sizes)).T  # [h, h]
    steps = np.abs(turned).max(axis=1) / 127
    transform = np.round(turned / steps[:, None]).astype(np.int8)
    inverse = np.linalg.inv(transform.astype(np.float64))
    if not np.allclose(inverse @ transform, np.eye(len(inverse)), rtol=0, atol=1e-10):
        raise np.linalg.LinAlgError
    return transform, inverse, steps


def _root(covariance: Floats | Doubles) -> Doubles:
    size = len(covariance)
    return np.linalg.cholesky(covariance + _RIDGE * np.trace(covariance) / size * np.eye(size))


def _keys(table: Table, weights: Doubles, center: Doubles, lead: int, floor: float) -> _Keys:
    """The keys in the coordinates: their products with `weights` [h, h]; `center` is the mean state."""
    parts = []
    for start in range(0, len(table.codes), _KEYS_PER_PART):
        part = slice(start, start + _KEYS_PER_PART)
        given, scales = table.codes[part].astype(np.float64), table.scales[part]
        logits = given @ weights * scales[:, None]  # [keys, h]
        steps = np.maximum(np.abs(logits[:, :lead]).max(axis=1) / 127, 1e-12)
        logits /= steps[:, None]
        codes = np.round(logits[:, :lead])
        constant = table.biases[part] + scales * (given @ center - table.zero * given.sum(axis=1))
        rest = (logits[:, lead:], codes, logits[:, :lead] - codes)
        lengths = np.stack([np.linalg.norm(values, axis=1) for values in rest], axis=1)
        slack = _SLACK + _SHARE * (abs(floor) + np.abs(table.biases[part]))
        parts.append(_Keys(codes.astype(np.int8), (floor - slack - constant) / steps, lengths))
    return _Keys(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _units(states: Doubles, keys: Doubles) -> Doubles:
    """Units of the three lengths, for which those of keys fit their bytes, and those of usual states."""
    least, most = states * _MARGIN / (255 * _LENGTH_BYTES), 126 / np.maximum(keys, 1e-9)
    units: Doubles = np.minimum(np.sqrt(np.maximum(least, 1e-9) * most), most)
    return units


def _bytes_of(lengths: Doubles, units: Doubles) -> Doubles:
    """Lengths [n, 3] as the eight bytes that the router multiplies."""
    steps = np.repeat(np.ceil(lengths / units), _LENGTH_BYTES, axis=1)
    before = np.concatenate([np.arange(count) for count in _LENGTH_BYTES]) * 255
    left: Doubles = np.clip(steps - before, 0, 255)
    return left
