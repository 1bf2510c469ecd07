"""`optimize`, `--graph`, `--no-graph`, and searching with `--semantic graph`."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

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
    monkeypatch.setattr("citadel.index.writer.Writer.graph_floor", 100)
    for function in ("build_graphs", "lacks_graphs"):
        monkeypatch.setattr(f"citadel.cli.support.graphs.{function}.__defaults__", (100,))


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
def test_graphs_are_built_unless_told_not_to(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    assert graphs_of(index_of(corpus, tmp_path / "with", citadel)) == [True]
    folder = index_of(corpus, tmp_path / "without", citadel, "--no-graph")
    assert graphs_of(folder) == [False]
    for id, option, expected in (
        ("d1", (), [False]),  # the index remembers
        ("d2", ("--graph",), [True]),
        ("d3", (), [True]),
        ("d4", ("--no-graph",), [False]),
        ("d5", (), [False]),
    ):
        citadel("delete", folder, id)
        citadel("merge", folder, *option)
        assert graphs_of(folder) == expected


@pytest.mark.usefixtures("low_floor")
def test_a_build_that_died_before_its_graphs_resumes(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    with mock.patch("citadel.cli.support.resumable_build.build_graphs"):
        folder = index_of(corpus, tmp_path / "index", citadel)
    assert graphs_of(folder) == [False]
    index_of(corpus, folder, citadel)
    assert graphs_of(folder) == [True]


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
    most = citadel("search", folder, "--vectors", queries, "--json", "--semantic", "graph", "--effort", 1)
    assert most.out == exact
    for options in (("--effort", 1.5), ("--effort", 0.5, "--ef", 9)):
        assert "effort" in citadel("search", folder, "--vectors", queries, *options, code=2).err


def test_a_damaged_graph_is_a_warning(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    folder = index_of(corpus, tmp_path / "index", citadel)
    citadel("optimize", folder, "--min-documents", 1)
    graphs.graph_path(folder).unlink()
    assert "graph-" in citadel("check", folder, "--deep", code=3).err
    assert "keeps all" in (done := citadel("check", folder, "--repair")).out + done.err
    assert graphs_of(folder) == [False]
