"""`citadel mine`: the top-ranked passages of each pair that are not known to answer the query."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from citadel.progress import Meter, silent
from citadel.train.config_tables import DataPart
from citadel.train.data import known_positives, split
from citadel.train.mined import PairIndex
from citadel.train.ragged import Rows
from citadel.train.rankers import RankedPassages, Ranker, find_ranker
from citadel.train.readers import read_source
from citadel.train.source import SourceData
from citadel.train.texts import TextsInMemory, TextStore
from citadel.types import write_whole

SPARE = 32  # passages looked at beyond k, because known positives and false negatives are left out
DIGITS = 6


def mine(
    part: DataPart,
    model: str,
    out: str | os.PathLike[str],
    k: int = 100,
    margin: float = -math.inf,
    device: str = "auto",
    threads: int | None = None,
    meter: Meter = silent,
) -> int:
    """Write the hard negatives of all pairs to train on, one line each, in their order; how many lines.

    A passage that scores above the positive − `margin` is taken for a false negative and listed under `dropped`.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "passages.jsonl").write_text(
    ...     '{"id": "d1", "text": "the heart pumps blood"}' + chr(10) + '{"id": "d2", "text": "blood is red"}'
    ... )
    >>> _ = (folder / "pairs.jsonl").write_text('{"query": "what pumps blood", "positive": "d1"}')
    >>> mine(DataPart(folder=str(folder), held_out=False), "bm25", folder / "negatives.jsonl")
    1
    >>> json.loads((folder / "negatives.jsonl").read_text())["negatives"]
    ['d2']
    """
    source = read_source(part)
    pairs, _ = split(source, PairIndex.of(source), part)
    _, first = np.unique(pairs.pair, return_index=True)
    each = np.sort(first)  # equal pairs are mined once
    ranker = find_ranker(model, source, part, device, threads, meter)
    try:
        lines = mined_lines(source, ranker, pairs.query[each], pairs.positive[each], k, margin, meter)
        write_whole(os.fspath(out), lines)
    finally:
        ranker.close()
    return len(each)


def mined_lines(
    source: SourceData, ranker: Ranker, query: Rows, positive: Rows, k: int, margin: float, meter: Meter = silent
) -> Iterator[str]:
    """The lines of the file, as the ranker gives them."""
    twin = text_twins(source.passages.texts)
    known, ids = known_positives(source, twin), source.passages.ids.texts.held()
    with meter("Mining", "queries", len(query)) as progress:
        for row, found in enumerate(ranker.rank(query, positive, k + SPARE)):
            answers = known[int(query[row])]
            fair = (twin[found.passages][:, None] != answers).all(1)  # [≤ k]
            yield _line(source.queries[int(query[row])], ids, int(positive[row]), found, fair, k, margin)
            progress(row + 1)


def _line(
    query: str, ids: TextsInMemory, positive: int, found: RankedPassages, fair: NDArray[np.bool_], k: int, margin: float
) -> str:
    low = found.scores <= found.positive - margin
    chosen, dropped = np.flatnonzero(fair & low)[:k], np.flatnonzero(fair & ~low)
    line = {
        "query": query,
        "positive": ids[positive],
        "negatives": ids.some(found.passages[chosen].tolist()),
        "scores": [_number(score) for score in found.scores[chosen].tolist()],
        "positive_score": _number(found.positive) if math.isfinite(found.positive) else None,
    }
    if len(dropped):
        line["dropped"] = ids.some(found.passages[dropped].tolist())
    return json.dumps(line, ensure_ascii=False) + "\n"


def _number(score: float) -> float:
    return float(f"{score:.{DIGITS}g}")


def text_twins(texts: TextStore) -> Rows:
    """For each passage the first with the same text.

    >>> text_twins(TextStore(["a", "b", "a"])).tolist()
    [0, 1, 0]
    """
    hashes = np.fromiter((hash(text) for text in texts), np.int64, len(texts))
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return np.asarray(first[which], np.int64)
