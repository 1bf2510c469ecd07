"""`citadel mine`: the top-ranked passages of each pair that are not known to answer the query."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from citadel.files import write_whole
from citadel.progress import Meter, silent
from citadel.train.config_tables import DataPart
from citadel.train.data import known_positives, split
from citadel.train.mined import PairIndex
from citadel.train.ragged import Rows
from citadel.train.rankers import RankedPassages, Ranker, find_ranker
from citadel.train.readers import read_source
from citadel.train.source import SourceData
from citadel.train.texts import TextsInMemory, TextStore

SPARE = 32  # passages ranked beyond k, to replace known positives and false negatives
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
    """Write the hard negatives of all training pairs, one line per pair; return the number of lines.

    A passage that scores above the positive − `margin` counts as a false negative and is listed under
    `dropped`.

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
    source: SourceData,
    ranker: Ranker,
    query: Rows,
    positive: Rows,
    k: int,
    margin: float,
    meter: Meter = silent,
) -> Iterator[str]:
    """Yield the lines of the mined file."""
    twin = text_twins(source.passages.texts)
    known, ids = known_positives(source, twin), source.passages.ids.texts.held()
    with meter("Mining", "queries", len(query)) as progress:
        for row, ranked in enumerate(ranker.rank(query, positive, k + SPARE)):
            answers = known[int(query[row])]
            is_unknown = (twin[ranked.passages][:, None] != answers).all(1)  # [≤ k]
            text = source.queries[int(query[row])]
            yield _line(text, ids, int(positive[row]), ranked, is_unknown, k, margin)
            progress(row + 1)


def _line(
    query: str,
    ids: TextsInMemory,
    positive: int,
    ranked: RankedPassages,
    is_unknown: NDArray[np.bool_],
    k: int,
    margin: float,
) -> str:
    low = ranked.scores <= ranked.positive - margin
    chosen, dropped = np.flatnonzero(is_unknown & low)[:k], np.flatnonzero(is_unknown & ~low)
    line = {
        "query": query,
        "positive": ids[positive],
        "negatives": ids.some(ranked.passages[chosen].tolist()),
        "scores": [_number(score) for score in ranked.scores[chosen].tolist()],
        "positive_score": _number(ranked.positive) if math.isfinite(ranked.positive) else None,
    }
    if len(dropped):
        line["dropped"] = ids.some(ranked.passages[dropped].tolist())
    return json.dumps(line, ensure_ascii=False) + "\n"


def _number(score: float) -> float:
    return float(f"{score:.{DIGITS}g}")


def text_twins(texts: TextStore) -> Rows:
    """Return for each passage the first one with the same text.

    >>> text_twins(TextStore(["a", "b", "a"])).tolist()
    [0, 1, 0]
    """
    hashes = np.fromiter((hash(text) for text in texts), np.int64, len(texts))
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return np.asarray(first[which], np.int64)
