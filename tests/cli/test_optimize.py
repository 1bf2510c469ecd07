"""`optimize`, `--graph`, `--no-graph`, and searching with `--semantic graph`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citadel import Index
from tests.cli.conftest import Citadel
from tests.support import graphs

COUNT = 120


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Documents with semantic vectors alone, as an .npz file."""
    path = tmp_path / "corpus.npz"
    rows = np.stack([graphs.given(number, "none")["semantic"] for number in range(COUNT)])
    np.savez(path, ids=np.array([f"d{number}" for number in range(COUNT)]), semantic=rows)
    return path


@pytest.fixture
def low_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("citadel.index.writer", "citadel.cli.support.graphs"):
        monkeypatch.setattr(f"{module}.GRAPH_FLOOR", 100)
    monkeypatch.setattr("citadel.cli.support.graphs.build_graphs.__defaults__", (100,))


def graphs_of(folder: Path) -> list[bool]:
    with Index.open(folder) as index:
        records = [segment.record for segment in index.searcher().snapshot.segments]
    return [record.graph_file is not None for record in records]


def index_of(corpus: Path, folder: Path, citadel: Citadel, *options: str) -> Path:
    citadel("index", corpus, folder, "--fingerprint", "by hand", "--router", "none", *options)
    return folder


def test_optimize_builds_and_says_so(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    folder = index_of(corpus, tmp_path / "index", citadel)
    assert graphs_of(folder) == [False]  # far below the size from which it pays
    built = citadel("optimize", folder, "--min-documents", 100)
    assert built.out == f"{folder}: 1 graph built, {COUNT} documents\n"
    assert graphs_of(folder) == [True]
    assert (
        citadel("optimize", folder, "--min-documents", 1).out
        == f"{folder}: 0 graphs built, {COUNT} documents\n"
    )
    assert "is whole" in citadel("check", folder, "--deep").out


@pytest.mark.usefixtures("low_floor")
def test_graphs_are_built_on_request_and_kept(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    assert graphs_of(index_of(corpus, tmp_path / "with", citadel, "--graph")) == [True]
    folder = index_of(corpus, tmp_path / "without", citadel)
    assert graphs_of(folder) == [False]
    for id, option, expected in (
        ("d1", (), [False]),
        ("d2", ("--graph",), [True]),
        ("d3", (), [True]),  # an index with graphs keeps having them
        ("d4", ("--no-graph",), [False]),
    ):
        citadel("delete", folder, id)
        citadel("merge", folder, *option)
        assert graphs_of(folder) == expected


def test_search_takes_the_mode_and_ef(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    folder = index_of(corpus, tmp_path / "index", citadel)
    citadel("optimize", folder, "--min-documents", 1)
    queries = tmp_path / "queries.npz"
    np.savez(queries, semantic=graphs.query(1, "none")["semantic"])
    exact, graph = (
        citadel("search", folder, "--vectors", queries, "--json", "--semantic", mode, *ef).out
        for mode, ef in (("exact", ()), ("graph", ("--ef", 100)))
    )
    assert exact == graph
    assert "--ef" in citadel("search", folder, "--vectors", queries, "--ef", 0, code=2).err


def test_a_damaged_graph_is_a_warning(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    folder = index_of(corpus, tmp_path / "index", citadel)
    citadel("optimize", folder, "--min-documents", 1)
    graphs.graph_path(folder).unlink()
    assert "graph-" in citadel("check", folder, "--deep", code=3).err
    assert "keeps all" in (done := citadel("check", folder, "--repair")).out + done.err
    assert graphs_of(folder) == [False]
