"""Graph files: when they are built, that a build is repeatable, and what happens to damaged ones."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import citadel
from citadel._native import graph_row_bytes, nibble_row_bytes
from citadel.errors import Cancelled, CorruptIndexError, ResourceError
from citadel.index.graph_build import NO_ROW, SEEDS, build_graph
from citadel.index.graph_merge import kept_graph
from citadel.index.repair import plan_repair, repair
from tests.corrupt import indexes, rewrite
from tests.index.quick import Quick
from tests.support import graphs


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    return graphs.build(tmp_path / "index")


@pytest.fixture
def folder(index: citadel.Index, tmp_path: Path) -> Path:
    del index
    return tmp_path / "index"


def records(index: citadel.Index) -> list[Any]:
    return [segment.record for segment in index.refresh().searcher().snapshot.segments]


def small_graphs(floor: int) -> Any:
    return mock.patch("citadel.index.writer.Writer.graph_floor", floor)


def exact_and_graph(folder: Path, number: int = 5) -> list[tuple[list[str], list[float]]]:
    searcher = citadel.Index.open(Quick(folder)).searcher(threads=1)
    found = (
        searcher.search_vectors(**graphs.query(number), k=10, semantic_mode=mode, ef=300)
        for mode in ("exact", "graph")
    )
    return [(hits.ids, list(hits.scores)) for hits in found]


# ---- building ----------------------------------------------------------------------------------------------


def test_optimize_builds_what_is_missing_once(index: citadel.Index, folder: Path) -> None:
    assert records(index)[0].graph_file.name == graphs.graph_path(folder).name
    assert index.optimize(min_documents=1) == 0
    index.check(deep=True)


def test_optimize_reports_progress_per_segment(tmp_path: Path) -> None:
    index = graphs.create(tmp_path / "index")
    for start in (0, 40):
        index.add_vectors([graphs.document(number) for number in range(start, start + 40)])
        index.commit()
    seen: list[tuple[str, int]] = []
    assert index.optimize(min_documents=1, progress=lambda name, done: seen.append((name, done))) == 2
    names = [record.file.name for record in records(index)]
    assert [max(done for name, done in seen if name == own) for own in names] == [40, 40]


def test_small_segments_get_none(index: citadel.Index, tmp_path: Path) -> None:
    del index
    other = graphs.create(tmp_path / "small")
    other.add_vectors([graphs.document(number) for number in range(30)])
    assert other.optimize(min_documents=31) == 0
    assert other.optimize() == 0  # the default is far above
    assert records(other)[0].graph_file is None


def test_commits_and_merges_build_graphs_of_large_segments(tmp_path: Path) -> None:
    with small_graphs(40):
        index = graphs.create(tmp_path / "index")
        for start, count in ((0, 50), (50, 20)):
            index.add_vectors([graphs.document(number) for number in range(start, start + count)])
            index.commit(graph=True)
        assert [record.graph_file is not None for record in records(index)] == [True, False]
        index.merge(graph=False)
        assert [record.graph_file is not None for record in records(index)] == [False]
        index.merge()
        assert [record.graph_file is not None for record in records(index)] == [False]
        index.merge(graph=True)
        assert [record.graph_file is not None for record in records(index)] == [True]
        index.add_vectors([graphs.document(number) for number in range(70, 130)])
        index.commit(graph=False)
        assert [record.graph_file is not None for record in records(index)] == [True, False]
    index.check(deep=True)


def test_an_index_without_semantic_vectors_gets_none(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), model="bm25")
    index.add([{"id": "d1", "text": "one"}])
    assert index.optimize(min_documents=1) == 0


def test_a_build_is_repeatable_whatever_the_threads_and_the_memory(index: citadel.Index) -> None:
    snapshot = index.searcher().snapshot
    (segment,) = snapshot.segments
    built = [
        build_graph(snapshot.storage, segment, memory, threads)
        for memory, threads in ((1 << 30, 1), (1 << 30, 3), (1 << 12, 2))
    ]
    for name in ("mean", "numbers", "codes", "links", "layout", "entries", "seeds", "starts", "postings"):
        first, *others = (getattr(graph, name) for graph in built)
        assert all(np.array_equal(first, other) for other in others), name


def test_seeds_are_the_heaviest_rows_of_a_list(index: citadel.Index) -> None:
    snapshot = index.searcher().snapshot
    (segment,) = snapshot.segments
    graph = build_graph(snapshot.storage, segment, 1 << 30, 1)
    weights = segment.file["WEIGHTS"].array(np.uint8)
    for own in range(segment.lists):
        start, stop = segment.list_starts[own : own + 2].tolist()
        documents = segment.document_numbers(own, own + 1)
        order = np.lexsort((documents, -weights[start:stop].astype(int)))[:SEEDS]
        assert graph.numbers[graph.seeds[own][: len(order)]].tolist() == documents[order].tolist()


def test_a_cancelled_build_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    from citadel._native import Cancel

    index = graphs.create(tmp_path / "index")
    index.add_vectors([graphs.document(number) for number in range(200)])
    index.commit()
    cancel = Cancel()

    def report(_: str, done: int) -> None:
        if done >= 50:
            cancel.set()

    with pytest.raises(Cancelled):
        index.optimize(min_documents=1, progress=report, cancel=cancel)
    assert records(index)[0].graph_file is None
    assert index.optimize(min_documents=1) == 1


def test_a_full_disk_is_reported_and_a_commit_stays(tmp_path: Path) -> None:
    index = graphs.create(tmp_path / "index")
    index.add_vectors([graphs.document(number) for number in range(60)])
    with small_graphs(10), mock.patch.object(Quick, "free_space", return_value=1000):
        index.commit(graph=True)
    assert len(citadel.Index.open(tmp_path / "index")) == 60
    with (
        mock.patch.object(Quick, "free_space", return_value=1000),
        pytest.raises(ResourceError, match="building a graph needs"),
    ):
        index.optimize(min_documents=1)
    assert index.optimize(min_documents=1) == 1


def test_an_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    index = graphs.create(tmp_path / "index")
    index.add_vectors([graphs.document(number) for number in range(60)])
    index.commit()
    failing = mock.patch("citadel.index.graph_file._links", side_effect=KeyboardInterrupt)
    with failing, pytest.raises(KeyboardInterrupt):
        index.optimize(min_documents=1)
    assert not list((tmp_path / "index").glob("graph-*"))
    assert index.optimize(min_documents=1) == 1


def test_new_metadata_keeps_the_graph(index: citadel.Index) -> None:
    before = records(index)[0].graph_file
    index.update_metadata({"parity": 1}, {"colour": "red"})
    assert records(index)[0].graph_file == before
    index.check(deep=True)


def test_garbage_collection_keeps_and_removes_graphs(index: citadel.Index, folder: Path) -> None:
    old = graphs.graph_path(folder).name
    index.add_vectors([graphs.document(graphs.DOCUMENTS)])
    index.commit()
    assert graphs.graph_path(folder).name == old
    index.merge()
    assert not list(folder.glob("graph-*"))  # the merged segment is below the floor


def test_readers_keep_their_generation_while_graphs_come_and_go(tmp_path: Path) -> None:
    index = graphs.create(tmp_path / "index")
    index.add_vectors([graphs.document(number) for number in range(200)])
    before = index.commit().searcher(threads=1)
    expected = before.search_vectors(**graphs.query(1), k=10).ids
    index.optimize(min_documents=1)
    between = index.searcher(threads=1)
    index.delete(["d1"])
    index.merge(graph=False)
    assert not list((tmp_path / "index").glob("graph-*"))
    for searcher in (before, between):
        assert searcher.search_vectors(**graphs.query(1), k=10, semantic_mode="graph", ef=200).ids == expected


def test_old_manifests_have_no_graph(index: citadel.Index, folder: Path) -> None:
    del index
    data = indexes.manifest(folder)
    for segment in data["segments"]:
        del segment["graph_file"]
    del data["graphs"]
    indexes.write_manifest(folder, data)
    assert records(citadel.Index.open(folder))[0].graph_file is None


def test_an_index_from_before_graphs_gets_none_until_it_is_optimized(tmp_path: Path) -> None:
    index = graphs.create(tmp_path / "index")
    index.add_vectors([graphs.document(number) for number in range(50)])
    index.commit().close()
    data = indexes.manifest(tmp_path / "index")
    del data["graphs"]
    indexes.write_manifest(tmp_path / "index", data)
    with small_graphs(40):
        index = citadel.Index.open(Quick(tmp_path / "index"))
        for number in (50, 51):
            index.add_vectors([graphs.document(number)])
            index.merge()
            assert [record.graph_file is not None for record in records(index)] == [number == 51]
            index.optimize(min_documents=1)


def test_the_choice_is_remembered(tmp_path: Path) -> None:
    with small_graphs(10):
        for created, chosen in ((True, False), (False, True)):
            index = graphs.create(tmp_path / str(created), graph=created)
            index.add_vectors([graphs.document(number) for number in range(20)])
            index.commit()
            assert [record.graph_file is not None for record in records(index)] == [created]
            index.commit(graph=chosen)
            index = citadel.Index.open(Quick(tmp_path / str(created)))
            index.add_vectors([graphs.document(number) for number in range(20, 40)])
            index.commit()
            assert (records(index)[-1].graph_file is not None) is chosen


# ---- merging -----------------------------------------------------------------------------------------------


def merged_from(folder: Path, sizes: list[int], deleted: range, kind: str = "vectors") -> citadel.Index:
    """Segments of these sizes with graphs, merged into one after deletions."""
    index, first = graphs.create(folder, kind), 0
    for size in sizes:
        index.add_vectors([graphs.document(number, kind) for number in range(first, first + size)])
        index.commit()
        first += size
    index.delete([f"d{number}" for number in deleted])
    index.commit()
    return index.merge()


def overlap(index: citadel.Index, kind: str) -> float:
    """The share of the exact top 10 that `graph` returns; checks scores."""
    searcher, shares = index.searcher(threads=1), []
    for number in range(30):
        query = graphs.query(number, kind)
        exact = searcher.search_vectors(**query, k=len(index), semantic_mode="exact")
        graph = searcher.search_vectors(**query, k=10, semantic_mode="graph")
        known = dict(zip(exact.ids, exact.scores, strict=True))
        assert [known[id] for id in graph.ids] == list(graph.scores)
        shares.append(len({*exact.ids[:10]} & {*graph.ids}) / 10)
    return float(np.mean(shares))


@pytest.mark.parametrize("kind", ["vectors", "none", "sparse"])
@pytest.mark.parametrize("sizes", [[400, 200], [100, 400, 100], [30, 570]], ids=str)
def test_a_merge_keeps_the_largest_graph(tmp_path: Path, kind: str, sizes: list[int]) -> None:
    with small_graphs(50), mock.patch("citadel.index.commit.build_graph", wraps=build_graph) as builds:
        index = merged_from(tmp_path / "kept", sizes, range(0, 600, 7), kind)
    kept = builds.call_args.args[-1]
    alive = [int(id[1:]) for id in index.searcher().snapshot.segments[0].ids(range(len(index)))]
    first = sum(sizes[: sizes.index(max(sizes))])
    of_largest = [number for number in alive if first <= number < first + max(sizes)]
    rows = kept.numbers[kept.numbers != NO_ROW]
    assert sorted(alive[row] for row in rows.tolist()) == of_largest
    index.check(deep=True)
    with mock.patch("citadel.index.commit.kept_graph", return_value=None), small_graphs(50):
        anew = merged_from(tmp_path / "anew", sizes, range(0, 600, 7), kind)
    assert overlap(index, kind) > overlap(anew, kind) - 0.03


def test_a_merged_graph_does_not_depend_on_threads_and_memory(tmp_path: Path) -> None:
    index = graphs.build(tmp_path / "index")
    index.delete([f"d{number}" for number in range(0, graphs.DOCUMENTS, 4)])
    index.commit()
    snapshot = index.searcher().snapshot
    gone = [snapshot.deleted(snapshot.segments[0])]
    kept = kept_graph(snapshot.storage, snapshot.manifest.index_id, snapshot.segments, gone)
    assert kept is not None
    (segment,) = index.merge(graph=False).searcher().snapshot.segments
    built = [
        build_graph(snapshot.storage, segment, memory, threads, kept=kept)
        for memory, threads in ((1 << 30, 1), (1 << 30, 3), (1 << 12, 2))
    ]
    for name in ("numbers", "codes", "links", "layout", "entries"):
        first, *others = (getattr(graph, name) for graph in built)
        assert all(np.array_equal(first, other) for other in others), name


def test_a_graph_of_mostly_deleted_documents_is_built_anew(tmp_path: Path) -> None:
    with small_graphs(50), mock.patch("citadel.index.commit.build_graph", wraps=build_graph) as builds:
        index = merged_from(tmp_path / "index", [400], range(250))
    assert builds.call_args.args[-1] is None
    assert records(index)[0].graph_file is not None


@pytest.mark.parametrize("section", ["GRAPH_LINKS", "GRAPH_NUMBERS", None])
def test_a_damaged_graph_is_not_kept(
    folder: Path, section: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = graphs.graph_path(folder)
    if section:
        forged = b"\xfe" * len(rewrite.sections(path)[section])
        rewrite.enter(folder, rewrite.rewrite(path, {section: forged}))
    else:
        path.write_bytes(path.read_bytes()[:-1000])
    index = citadel.Index.open(Quick(folder))
    index.delete(["d1"])
    with small_graphs(50), caplog.at_level(logging.WARNING, "citadel"):
        index.merge()
    assert "is built anew" in caplog.text
    assert records(index)[0].graph_file is not None
    index.check(deep=True)


def test_searches_go_on_while_graphs_are_merged_and_built(tmp_path: Path) -> None:
    """Each ranking is that of its generation, whatever the writer does meanwhile."""
    index, stop, failures = graphs.build(tmp_path / "index"), threading.Event(), list[object]()

    def search() -> None:
        reader = citadel.Index.open(Quick(tmp_path / "index"))
        try:
            while not stop.is_set():
                searcher = reader.refresh().searcher(threads=1)
                for number in range(3):
                    exact, graph = (
                        searcher.search_vectors(**graphs.query(number), k=10, semantic_mode=mode, ef=2000)
                        for mode in ("exact", "graph")
                    )
                    if (exact.ids, list(exact.scores)) != (graph.ids, list(graph.scores)):
                        failures.append((exact, graph))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    with small_graphs(50):
        for turn in range(8):
            index.delete([f"d{number}" for number in range(turn, graphs.DOCUMENTS, 9)])
            index.add_vectors([graphs.document(1000 * turn + number) for number in range(60)])
            index.commit()
            index.optimize(min_documents=1)
            index.merge()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- damage ------------------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def flip_contents(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(path: Path) -> None:
    """Another index's graph under this name."""
    other = graphs.build(path.parent.parent / "other")
    del other
    path.write_bytes(graphs.graph_path(path.parent.parent / "other").read_bytes())


@pytest.mark.parametrize("damage", [remove, cut, flip_header, flip_contents, swap], ids=lambda f: f.__name__)
def test_a_damaged_graph_is_reported_and_answers_stay_exact(
    folder: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(graphs.graph_path(folder))
    with caplog.at_level(logging.WARNING, "citadel"):
        exact, graph = exact_and_graph(folder)
    assert exact == graph
    (record,) = caplog.records
    assert "a graph is damaged, so its segment is searched exactly" in record.getMessage()
    with pytest.raises(CorruptIndexError, match="graph-"):
        citadel.Index.open(folder).check(deep=True)


def test_repair_drops_a_damaged_graph_and_optimize_builds_it_again(folder: Path) -> None:
    flip_contents(graphs.graph_path(folder))
    storage = Quick(folder)
    plan = plan_repair(storage)
    assert (plan.action, plan.lost, plan.kept) == ("rewrite", 0, graphs.DOCUMENTS)
    repair(storage)
    index = citadel.Index.open(Quick(folder))
    index.check(deep=True)
    assert records(index)[0].graph_file is None
    assert index.optimize(min_documents=1) == 1


def test_a_graph_cut_while_open_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    searcher = citadel.Index.open(Quick(folder)).searcher(threads=1)
    query = graphs.query(5)
    exact = searcher.search_vectors(**query, k=10, semantic_mode="exact")
    with graphs.graph_path(folder).open("r+b") as file:
        file.truncate(4096)
    with caplog.at_level(logging.WARNING, "citadel"):
        graph = searcher.search_vectors(**query, k=10, semantic_mode="graph")
        batch = searcher.search_vectors_batch({"q": query}, 10, semantic_mode="graph")
    assert exact.ids == graph.ids == [hit.id for hit in batch.hits[0]]
    assert len(caplog.records) == 1


FORGED = {
    "GRAPH_NUMBERS": [bytes(4 * graphs.DOCUMENTS), b"\xff" * 4 * graphs.DOCUMENTS],
    "GRAPH_LINKS": [b"\xfe" * 4 * 32 * graphs.DOCUMENTS, bytes(4 * 32 * graphs.DOCUMENTS), b""],
    "GRAPH_ENTRIES": [b"\xff" * 64, b"", b"\x01"],
    "GRAPH_SEEDS": [b"\xfe" * 4 * SEEDS * graphs.KEYS],
    "GRAPH_POSTINGS": [bytes(4 * 6 * graphs.DOCUMENTS), b"\xff" * 4 * 6 * graphs.DOCUMENTS],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, all in FORGED.items() for n in range(len(all))]
)
def test_forged_contents_never_give_a_wrong_score(folder: Path, name: str, number: int) -> None:
    path = graphs.graph_path(folder)
    rewrite.enter(folder, rewrite.rewrite(path, {name: FORGED[name][number]}))
    searcher = citadel.Index.open(Quick(folder)).searcher(threads=1)
    whole = searcher.search_vectors(**graphs.query(5), k=graphs.DOCUMENTS, semantic_mode="exact")
    known = dict(zip(whole.ids, whole.scores, strict=True))
    hits = searcher.search_vectors(**graphs.query(5), k=10, semantic_mode="graph")
    assert len(set(hits.ids)) == 10
    if name not in ("GRAPH_POSTINGS", "GRAPH_NUMBERS"):  # these say which postings are whose
        assert [known[id] for id in hits.ids] == list(hits.scores)
    if not (name == "GRAPH_LINKS" and number == 1) and not (name == "GRAPH_ENTRIES" and number == 1):
        with pytest.raises(CorruptIndexError, match="graph-"):
            citadel.Index.open(folder).check(deep=True)


def rows_of(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rows = np.frombuffer(rewrite.sections(path)["GRAPH_ROWS"], np.uint8)
    return rows.reshape(graphs.DOCUMENTS, graph_row_bytes(graphs.SEMANTIC)).copy()


@pytest.mark.parametrize("kind", ["vectors", "sparse", "none"])
def test_rows_without_signatures_give_the_same_answers(tmp_path: Path, kind: str) -> None:
    """Files from before there were signatures."""
    index = graphs.build(tmp_path / "index", kind)
    path = graphs.graph_path(tmp_path / "index")
    unsigned = rows_of(path)[:, : nibble_row_bytes(graphs.SEMANTIC)]
    del index

    def answers() -> list[tuple[list[str], list[float]]]:
        searcher = citadel.Index.open(Quick(tmp_path / "index")).searcher(threads=1)
        found = (
            searcher.search_vectors(**graphs.query(number, kind), k=10, semantic_mode="graph", ef=300)
            for number in range(20)
        )
        return [(hits.ids, list(hits.scores)) for hits in found]

    signed = answers()
    rewrite.enter(path.parent, rewrite.rewrite(path, {"GRAPH_ROWS": unsigned.tobytes()}))
    assert answers() == signed
    citadel.Index.open(path.parent).check(deep=True)


def test_a_wrong_signature_is_found(folder: Path) -> None:
    path = graphs.graph_path(folder)
    rows = rows_of(path)
    rows[7, nibble_row_bytes(graphs.SEMANTIC) + 3] ^= 16
    rewrite.enter(folder, rewrite.rewrite(path, {"GRAPH_ROWS": rows.tobytes()}))
    with pytest.raises(CorruptIndexError, match="a row has the signature of other lists"):
        citadel.Index.open(folder).check(deep=True)


@pytest.mark.parametrize(
    "change",
    [{"rows": -1}, {"rows": 10**12}, {"links": 0}, {"links": 10**6}, {"segment": "0" * 32}, {"seeds": 2**31},
     {"dimension": 0}, {"lists": "30"}, {"postings": True}, {"extra": 1}],
    ids=str,
)  # fmt: skip
def test_forged_counts_are_refused(
    folder: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = graphs.graph_path(folder)
    meta = json.loads(rewrite.sections(path)["META"]) | change
    rewrite.enter(folder, rewrite.rewrite(path, {"META": json.dumps(meta).encode()}))
    with caplog.at_level(logging.WARNING, "citadel"):
        exact, graph = exact_and_graph(folder)
    assert exact == graph
    assert len(caplog.records) == 1
    with pytest.raises(CorruptIndexError, match="graph-"):
        citadel.Index.open(folder).check(deep=True)


def test_a_manifest_may_name_a_graph_only_by_its_pattern(folder: Path) -> None:
    data = indexes.manifest(folder)
    data["segments"][0]["graph_file"]["name"] = "../graph-" + "0" * 32 + ".cit"
    indexes.write_manifest(folder, data)
    with pytest.raises(CorruptIndexError, match="is not the name of a graph file"):
        citadel.Index.open(folder)
