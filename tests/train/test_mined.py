"""Mined and scored files are read by pair, in any order and block size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import InputError
from citadel.train import mined
from citadel.train.config_tables import DataPart
from citadel.train.mined import PairIndex, read_mined, read_scored
from citadel.train.ragged import Ragged
from citadel.train.readers import read_source
from citadel.train.source import SourceData
from citadel.train.texts import ABSENT

INF = float("inf")


@pytest.fixture(params=[1, 2, 512])
def source(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SourceData:
    """The four pairs, with files read in blocks of 1, 2 or 512 lines."""
    monkeypatch.setattr(mined, "PART", request.param)
    return read_source(DataPart(folder=str(folder)))


def line(query: str, positive: str, negatives: list[str], **more: Any) -> dict[str, Any]:
    return {"query": query, "positive": positive, "negatives": negatives, **more}


def ids(source: SourceData, table: Ragged, index: PairIndex) -> list[list[str]]:
    """Ids in the lists of the source's pairs, in the source's order."""
    return [source.passages.ids.texts.some(table[row].tolist()) for row in index.row.tolist()]


def test_lists_are_ordered_by_pair(source: SourceData, write: Callable[[str, Any], str]) -> None:
    file = write(
        "negatives.jsonl",
        [
            line("copper", "d4", ["d1"]),
            line("what pumps blood", "d1", ["d2", "d3"], dropped=["d4"]),
            line("copper", "d1", ["d2"]),  # no such pair
            line("lens", "d3", []),
            line("copper", "d4", ["d3", "d2", "d1"]),  # replaces the first line
        ],
    )
    index = PairIndex.of(source)
    lists = read_mined(file, source, index, -INF)
    assert ids(source, lists.negatives, index) == [["d2", "d3"], [], [], ["d3", "d2", "d1"]]
    assert ids(source, lists.dropped, index) == [["d4"], [], [], []]


def test_margin_drops_passages_before_those_already_dropped(
    source: SourceData, write: Callable[[str, Any], str]
) -> None:
    rows = [
        line("lens", "d3", ["d1", "d2", "d4"], scores=[0.95, 0.8, 0.1], positive_score=1.0, dropped=["d5"]),
        line("copper", "d4", ["d1", "d2"], scores=[0.2, 0.1], positive_score=None),
    ]
    index = PairIndex.of(source)
    lists = read_mined(write("negatives.jsonl", rows), source, index, 0.25)
    assert ids(source, lists.negatives, index) == [[], [], ["d4"], []]
    assert ids(source, lists.dropped, index) == [[], [], ["d1", "d2", "d5"], ["d1", "d2"]]


def test_scores_belong_to_their_passages(source: SourceData, write: Callable[[str, Any], str]) -> None:
    rows: list[dict[str, Any]] = [
        {"query": "lens", "positive": "d3", "passages": ["d3", "d1"], "scores": [2.5, -1]},
        {"query": "is a virus alive", "positive": "d2", "passages": ["d2"], "scores": [0.5]},
    ]
    index = PairIndex.of(source)
    lists = read_scored(write("scores.jsonl", rows), source, index)
    assert ids(source, lists.passages, index) == [[], ["d2"], ["d3", "d1"], []]
    assert [lists.scores[row].tolist() for row in index.row.tolist()] == [[], [0.5], [2.5, -1.0], []]
    for wrong in (["d1", "d3"], []):
        rows[1] = {"query": "copper", "positive": "d4", "passages": wrong, "scores": [1.0] * len(wrong)}
        with pytest.raises(InputError, match=r"scores\.jsonl:2: the positive is not the first passage"):
            read_scored(write("scores.jsonl", rows), source, index)


def test_unknown_id_is_reported_with_its_line(source: SourceData, write: Callable[[str, Any], str]) -> None:
    rows = [line("lens", "d3", ["d1"]), line("copper", "d4", ["d1", "d9"])]
    with pytest.raises(InputError, match=r"negatives\.jsonl:2: the passage id 'd9' is not in the collection"):
        read_mined(write("negatives.jsonl", rows), source, PairIndex.of(source), -INF)
    rows[1] = line("copper", "d4", ["d1"], dropped=["d8"])
    with pytest.raises(InputError, match=r"negatives\.jsonl:2: the passage id 'd8' is not in the collection"):
        read_mined(write("negatives.jsonl", rows), source, PairIndex.of(source), -INF)


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=40), st.data())
def test_gathered_rows_match_the_table(rows: list[list[int]], data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(ABSENT, len(rows) - 1), min_size=1, max_size=5))
    expected = [[] if position == ABSENT else rows[position] for position in positions]
    values, lengths = mined._gathered(Ragged.of(rows), np.array(positions))
    assert values.tolist() == [value for row in expected for value in row]
    assert lengths == [len(row) for row in expected]
