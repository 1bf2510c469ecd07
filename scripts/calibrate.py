"""Fit `calibration.json` of a model on held-out training pairs, and print its reliability.

    .venv/bin/python scripts/calibrate.py WORK [--model models/small-en]

WORK is a folder for an index of 12,000 passages; a second call reuses it. Pairs come from `train` in
CITADEL_DATA. The function is fitted on one half of the held-out pairs and measured on the other half; pairs
of OpenStax, which the model never saw, are measured alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import random
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import citadel
from citadel.encode.calibration import Calibration, save_calibration
from citadel.encode.encoder import Encoder
from citadel.index.quantize import decode

Array = NDArray[np.float64]
DATA = os.environ.get("CITADEL_DATA", "data")
OTHERS = 9_000  # passages beside the positives
HITS = 10  # per query
BINS = 10


class Examples(NamedTuple):
    """Hits of queries: features [n, 3] (score, common part, weights of the query) and labels [n]."""

    features: Array
    labels: Array


def main() -> None:
    """Fit, print and save."""
    parser = argparse.ArgumentParser(description="Fit calibration.json on held-out training pairs.")
    parser.add_argument("work")
    parser.add_argument("--model", default="models/small-en")
    arguments = parser.parse_args()
    pairs = [pair for pair in _lines("pairs") if zlib.crc32(pair["positive"].encode()) % 100 == 0]
    index = _index(arguments.work, arguments.model, {pair["positive"] for pair in pairs})
    encoder = Encoder(arguments.model)
    segments = index._snapshot.segments
    semantic = np.concatenate([decode(segment.semantic(0, segment.passages)) for segment in segments])
    mean = np.round(semantic.mean(axis=0, dtype=np.float64), 5)
    unseen = [pair for pair in pairs if pair["positive"].startswith("openstax")]
    seen = [pair for pair in pairs if not pair["positive"].startswith("openstax")]
    halves = [[pair for pair in seen if zlib.crc32(pair["query"].encode()) % 2 == part] for part in (1, 0)]
    fitted, measured, others = (_examples(index, encoder, part, mean) for part in (*halves, unseen))
    calibration = fit(fitted, mean)
    _report("other half of the pairs", calibration, measured)
    _report("OpenStax", calibration, others)
    save_calibration(arguments.model, encoder.fingerprint, calibration)


def fit(examples: Examples, mean: Array) -> Calibration:
    """Logistic regression by Newton's method on standardised features."""
    centre, scale = examples.features.mean(axis=0), examples.features.std(axis=0)
    rows = np.column_stack([(examples.features - centre) / scale, np.ones(len(examples.labels))])
    weights = np.zeros(rows.shape[1])
    for _ in range(40):
        probabilities = 1 / (1 + np.exp(-rows @ weights))
        curvature = (rows * (probabilities * (1 - probabilities) + 1e-9)[:, None]).T @ rows
        weights += np.linalg.solve(curvature, rows.T @ (examples.labels - probabilities))
    slopes = weights[:-1] / scale
    score, common, weight = (round(float(slope), 5) for slope in slopes)
    return Calibration(score, common, weight, round(float(weights[-1] - slopes @ centre), 5), mean)


def calibration_error(probabilities: Array, labels: Array) -> float:
    """Expected calibration error over ten bins of equal width."""
    return sum(share * abs(mean - rate) for share, mean, rate in reliability(probabilities, labels))


def reliability(probabilities: Array, labels: Array) -> Iterator[tuple[float, float, float]]:
    """Share of the hits, mean probability and share of relevant ones, per bin that has hits."""
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    for number in range(BINS):
        chosen = bins == number
        if chosen.any():
            yield float(chosen.mean()), float(probabilities[chosen].mean()), float(labels[chosen].mean())


def _report(name: str, calibration: Calibration, examples: Examples) -> None:
    probabilities = predict(calibration, examples.features)
    first = slice(None, None, HITS)
    error = calibration_error(probabilities, examples.labels)
    of_first = calibration_error(probabilities[first], examples.labels[first])
    print(
        f"{name}: {len(examples.labels):,} hits, calibration error {error:.4f}, of first hits {of_first:.4f}"
    )
    print("| share of hits | mean relevance | relevant |\n| ---: | ---: | ---: |")
    for row in reliability(probabilities, examples.labels):
        print("| " + " | ".join(f"{value:.3f}" for value in row) + " |")


def predict(calibration: Calibration, features: Array) -> Array:
    """Probabilities for rows of features."""
    slopes = np.array([calibration.score, calibration.common, calibration.weight])
    probabilities: Array = 1 / (1 + np.exp(-(features @ slopes + calibration.constant)))
    return probabilities


def _examples(index: citadel.Index, encoder: Encoder, pairs: list[dict[str, Any]], mean: Array) -> Examples:
    texts = [pair["query"] for pair in pairs]
    ranking = index.searcher().search_batch(texts, k=HITS)
    features, labels = [], []
    for pair, routed, hits in zip(pairs, encoder.encode_queries(texts), ranking.hits, strict=True):
        assert routed.semantic is not None
        own = (float(mean @ routed.semantic), float(routed.weights.sum(dtype=np.float64)))
        features += [(hit.score, *own) for hit in hits]
        labels += [hit.id == pair["positive"] for hit in hits]
    return Examples(np.array(features), np.array(labels, float))


def _index(folder: str, model: str, positives: set[str]) -> citadel.Index:
    """The index of all positives and some other passages, built at the first call."""
    index = citadel.Index.open_or_create(folder, model=model)
    if not len(index):
        passages = list(_lines("passages"))
        others = [row for row in passages if row["id"] not in positives and row["source"] != "openstax"]
        random.Random(28).shuffle(others)
        own = (row for row in passages if row["id"] in positives)
        index.add(itertools.chain(own, others[:OTHERS]), progress=True)
        index.commit()
    return index


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with lzma.open(os.path.join(DATA, "train", f"{name}.jsonl.xz"), "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


if __name__ == "__main__":
    main()
