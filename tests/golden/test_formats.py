"""Indexes of every released format give the same rankings; newer formats are refused."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import citadel
from citadel.filter.match import matches
from citadel.filter.parse import parse_filter
from citadel.index.checksum import crc32c
from citadel.index.container import FORMAT
from tests.golden import make

HERE = Path(__file__).parent
FORMATS = [1, 2]
CASES = [(version, name) for version in FORMATS for name in ("bm25", "int8", "pq2")]
CASES += [(2, "hybrid"), (2, "residual2"), (2, "residual4"), (2, "centroid-int8")]


def expected(version: int) -> dict[str, Any]:
    rankings: dict[str, Any] = json.loads((HERE / f"format-{version}" / "expected.json").read_text())
    return rankings


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    version, name = request.param
    return Path(shutil.copytree(HERE / f"format-{version}" / name, tmp_path / name))


def test_every_format_has_golden_files() -> None:
    assert (
        sorted(int(path.name[7:]) for path in HERE.glob("format-*")) == FORMATS == list(range(1, FORMAT + 1))
    )
    assert {name for _, name in CASES} == set(make.INDEXES)


@pytest.mark.parametrize(("version", "name"), CASES)
def test_rankings_are_unchanged(version: int, name: str) -> None:
    require_same(make.rankings(name, HERE / f"format-{version}" / name), expected(version)[name])


FILTERED = [(version, name) for version, name in CASES if name in expected(version).get("filtered", {})]


@pytest.mark.parametrize(("version", "name"), FILTERED)
def test_filtered_rankings_are_unchanged(version: int, name: str) -> None:
    require_same(make.filtered(name, HERE / f"format-{version}" / name), expected(version)["filtered"][name])


def require_same(rankings: list[list[tuple[str, float]]], wanted: Any) -> None:
    """Ids and order are equal; a later engine may round scores differently."""
    assert [[id for id, _ in ranking] for ranking in rankings] == [
        [id for id, _ in ranking] for ranking in wanted
    ]
    scores = [score for ranking in rankings for _, score in ranking]
    assert scores == pytest.approx([score for ranking in wanted for _, score in ranking], rel=1e-6, abs=1e-3)
    assert len(scores) > 5


@pytest.mark.parametrize("folder", CASES, indirect=True)
def test_golden_index_passes_check_and_is_writable(folder: Path) -> None:
    with citadel.Index.open(folder) as index:
        index.check(deep=True)
        before = len(index)
        index.delete(["d1"])
        index.merge()
        index.check(deep=True)
        assert len(index) == before - 1


@pytest.mark.parametrize("folder", [(2, "residual2")], indirect=True)
def test_codes_from_before_the_trellis_are_extended_and_retrained(folder: Path) -> None:
    random = np.random.default_rng(1)
    with citadel.Index.open(folder) as index:
        index.add_vectors([make.token_document(number, random) for number in range(50, 70)])
        index.commit()
        assert memory(index) == 0
        require_equal_engines(index)
        with mock.patch("citadel.index.spill.SAMPLE_FLOOR", 60):
            index.merge(retrain=True)
        assert memory(index) == 4
        require_equal_engines(index)
        index.check(deep=True)


def memory(index: citadel.Index) -> int:
    """Bits before those of a dimension on which its value depends."""
    book = index._snapshot.centroids
    assert book is not None
    return book.memory


def require_equal_engines(index: citadel.Index) -> None:
    answers = []
    for engine in ("native", "reference"):
        searcher = index.searcher(engine=engine)
        queries = [make.vector_query(number)["vectors"] for number in range(4)]
        hits = [searcher.search_vectors(vectors=query, k=5, ef=ef) for query in queries for ef in (5, 100)]
        answers.append([(found.ids, found.scores) for found in hits])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("folder", [(1, "bm25")], indirect=True)
def test_documents_are_unchanged(folder: Path) -> None:
    index = citadel.Index.open(folder)
    assert index.get("d2") is None
    assert index.get("d6") == citadel.Document("d6", "A fox meets a cat", metadata={"year": 2023})
    assert index.get("d0") == citadel.Document("d0", make.TEXTS[0], "T0", {"year": 1900})


@pytest.mark.parametrize("folder", [(1, "bm25"), (2, "bm25")], indirect=True)
def test_fields_are_listed_with_and_without_columns(folder: Path) -> None:
    with citadel.Index.open(folder) as index:
        before = index.fields()
        assert before["year"] == "number"
        assert index.merge().fields() == before


@pytest.mark.parametrize("name", make.INDEXES)
def test_new_golden_files_cover_every_column(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `make` would write: a filtered ranking has the matching documents of the whole one."""
    monkeypatch.setattr(make, "FOLDER", tmp_path)
    monkeypatch.setattr(make, "INDEXES", {name: make.INDEXES[name]})
    make.main()
    written = json.loads((tmp_path / "expected.json").read_text())
    assert set(written) == {"filtered", name}
    index = citadel.Index.open(tmp_path / name)
    columns = [segment.columns for segment in index._snapshot.segments]
    kinds = {found.kind for part in columns for field in part.names or () if (found := part.column(field))}
    assert kinds == {"int", "float", "bool", "string", "strings", "mixed", "other"}
    searcher = index.searcher()
    searches = zip(make.filtered_searches(name), written["filtered"][name], strict=True)
    for (filter, mode), ranking in searches:
        whole = make.ask(name, searcher, mode, k=100)
        kept = [[id, score] for id, score in whole if is_allowed(index, id, filter)]
        assert ranking == kept[:5]
        assert ranking or mode == "off"


def is_allowed(index: citadel.Index, id: str, filter: dict[str, Any]) -> bool:
    document = index.get(id)
    return document is not None and matches(parse_filter(filter), document.metadata)


@pytest.mark.parametrize("folder", [(version, "bm25") for version in FORMATS], indirect=True)
@pytest.mark.parametrize("filter", [{"year": {"$lt": 1905}}, {"year": {"$in": [1900, 2023]}}, {"year": None}])
def test_filters_work_in_every_format(folder: Path, filter: dict[str, Any]) -> None:
    """Without columns the documents are read; a merge adds the columns."""
    has_columns = any(folder.glob("cols-*"))
    index = citadel.Index.open(folder)
    every = index.searcher().search("cat ant bee fox dog", k=100)
    expected = [(hit.id, hit.score) for hit in every if is_allowed(index, hit.id, filter)]
    assert ranked(index, filter) == expected
    assert all(segment.record.has_columns == has_columns for segment in index._snapshot.segments)
    with citadel.Index.open(folder) as writer:
        writer.merge()
        assert ranked(writer, filter) == expected
        assert [segment.record.has_columns for segment in writer._snapshot.segments] == [True]
        assert len(list(folder.glob("cols-*"))) >= 1
        writer.check(deep=True)


def ranked(index: citadel.Index, filter: dict[str, Any]) -> list[tuple[str, float]]:
    hits = index.searcher().search("cat ant bee fox dog", k=100, filter=filter)
    return [(hit.id, hit.score) for hit in hits]


FUTURE = FORMAT + 1
BOTH_NUMBERS = rf"format {FUTURE}, .*format {FORMAT}"


@pytest.mark.parametrize("folder", [(1, "bm25")], indirect=True)
@pytest.mark.parametrize("all_new", [True, False])
def test_manifest_of_newer_format_is_refused(all_new: bool, folder: Path) -> None:
    path = max(folder.glob("gen.*"))
    old = {} if all_new else json.loads(path.read_bytes().split(b"\n")[0])
    line = json.dumps(old | {"format": FUTURE}).encode()
    path.write_bytes(line + f"\n{crc32c(line):08x}\n".encode())
    with pytest.raises(citadel.UnknownFormatError, match=BOTH_NUMBERS) as caught:
        citadel.Index.open(folder)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("folder", [(1, "pq2")], indirect=True)
@pytest.mark.parametrize("prefix", ["seg-", "del-", "codebook-"])
def test_file_of_newer_format_is_refused(prefix: str, folder: Path) -> None:
    path = next(folder.glob(f"{prefix}*"))
    data = bytearray(path.read_bytes())
    data[12:16] = struct.pack("<I", FUTURE)
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:60])))
    path.write_bytes(data)
    with pytest.raises(citadel.UnknownFormatError, match=BOTH_NUMBERS) as caught:
        citadel.Index.open(folder)
    assert caught.value.file == path.name


def test_golden_files_are_small() -> None:
    assert (
        sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc")
        < 500_000
    )
