"""Hostile graph files: an exact answer with a warning, or a ranking; never a crash or a hang."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import citadel
from citadel.errors import CorruptIndexError
from tests.corrupt import rewrite
from tests.corrupt.seeds import generator, often
from tests.corrupt.test_contents import numbers_replaced, shaken
from tests.index.quick import Quick
from tests.support import graphs

WIDTHS = {"GRAPH_ROWS": 4, "GRAPH_MEAN": 4, "GRAPH_NUMBERS": 4, "GRAPH_LINKS": 4, "GRAPH_ENTRIES": 4}
WIDTHS |= {"GRAPH_SEEDS": 4, "GRAPH_POSTINGS": 4}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    graphs.build(tmp_path / "index").close()
    return tmp_path / "index"


def search(folder: Path) -> None:
    """Search in all modes; a ranking has known documents, each once."""
    searcher = citadel.Index.open(Quick(folder)).searcher(threads=1)
    for number, mode in ((1, "graph"), (2, "graph"), (1, "auto")):
        for k in (10, graphs.DOCUMENTS):
            hits = searcher.search_vectors(**graphs.query(number), k=k, semantic_mode=mode)
            assert len(set(hits.ids)) == len(hits.ids) == k
            assert set(hits.ids) <= {f"d{n}" for n in range(graphs.DOCUMENTS)}


def forged(path: Path, random: Random) -> Iterator[tuple[str, bytes | None]]:
    for name, data in rewrite.sections(path).items():
        if name == "META":
            continue
        yield name, None
        yield from ((name, changed) for changed in shaken(data, WIDTHS[name], random))
        yield from ((name, changed) for changed in numbers_replaced(data, WIDTHS[name]))


def test_forged_sections_do_no_harm(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, record = graphs.graph_path(folder), None
    whole = rewrite.sections(path)
    with caplog.at_level(logging.CRITICAL, "citadel"):
        for name, changed in forged(path, generator("graphs")):
            record = rewrite.rewrite(path, {**whole, name: changed})
            rewrite.enter(folder, record)
            search(folder)
    assert record is not None
    rewrite.enter(folder, rewrite.rewrite(path, whole))
    citadel.Index.open(folder).check(deep=True)


def test_flipped_bits_give_an_exact_answer(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, random = graphs.graph_path(folder), generator("graph bits")
    whole = path.read_bytes()
    searcher = citadel.Index.open(Quick(folder)).searcher(threads=1)
    query = graphs.query(3)
    exact = searcher.search_vectors(**query, k=10, semantic_mode="exact").ids
    with caplog.at_level(logging.CRITICAL, "citadel"):
        for _ in range(often(100, 5_000)):
            data = bytearray(whole)
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            path.write_bytes(data)
            damaged = citadel.Index.open(Quick(folder)).searcher(threads=1)
            assert damaged.search_vectors(**query, k=10, semantic_mode="graph", ef=600).ids == exact
            with pytest.raises(CorruptIndexError, match="graph-"):
                citadel.Index.open(folder).check(deep=True)
