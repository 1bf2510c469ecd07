"""BM25 lists beside those of a model: the same answers as a BM25 index, in one folder and one commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.errors import CorruptIndexError, DocumentTooLargeError, FingerprintError, UsageError
from citadel.index.repair import repair
from citadel.index.shard import shard_index
from citadel.text.analyser import get_analyser
from citadel.types import Passages, VectorBatch
from tests.corrupt import indexes, rewrite
from tests.index.quick import Quick
from tests.support.contents import QUERY, QUERY_VECTORS
from tests.support.hybrid import create_hybrid
from tests.support.workload import MEMORY, document, everything, vectors

QUERIES = (QUERY, "filler rome", "unique7x0 w1", "nowhere")


def filled(folder: Path, documents: int = 40) -> citadel.Index:
    """Two segments with a deleted and a replaced document."""
    index = create_hybrid(Quick(folder))
    for part in (range(documents // 2), range(documents // 2, documents)):
        index.add_vectors(vectors(*document(number)) for number in part)
        index.commit()
    index.delete(["d3"])
    index.add_vectors([vectors(*document(5, 1))])
    return index.commit()


def plain_copy(index: citadel.Index, folder: Path) -> citadel.Index:
    """A BM25 index of the same documents."""
    copy = citadel.Index.create(Quick(folder), analyser="plain")
    copy.add(index.documents())
    return copy.commit()


def hits_of(searcher: Any, queries: Sequence[str] = QUERIES, **options: Any) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in searcher.search(query, k=100, **options)] for query in queries]


def words_file(folder: Path) -> Path:
    return min(folder.glob("words-*"))


def test_every_change_leaves_the_rankings_of_a_bm25_index(tmp_path: Path) -> None:
    """With a small memory bound, so that adding spills; equal scores may differ in their order."""
    both = create_hybrid(Quick(tmp_path / "both"), memory=MEMORY)
    bm25 = citadel.Index.create(Quick(tmp_path / "bm25"), analyser="plain", memory=MEMORY)
    for step in everything():
        for index in (both, bm25):
            step.apply(index)
        both.check(deep=True)
        expected, found = hits_of(bm25.searcher()), hits_of(both.searcher(mode="bm25"))
        assert [sorted(hits) for hits in found] == [sorted(hits) for hits in expected]
    assert len(both) and not [name for name in both._storage.names() if name.endswith(".tmp")]


def test_the_model_ranks_as_without_bm25_lists(tmp_path: Path) -> None:
    index = filled(tmp_path / "both")
    alone = citadel.Index.create(
        Quick(tmp_path / "alone"), fields={"lexical": 4, "semantic": 2}, fingerprint="test"
    )
    alone.add_vectors(
        {"id": row.id, "text": row.text} | dict(vectors(row.id, row.text)) for row in index.documents()
    )
    hits, expected = (
        each.searcher().search_vectors(**QUERY_VECTORS, k=100) for each in (index, alone.commit())
    )
    assert dict(zip(hits.ids, hits.scores, strict=True)) == dict(
        zip(expected.ids, expected.scores, strict=True)
    )


def test_documents_are_stored_once_and_files_belong_to_one_generation(tmp_path: Path) -> None:
    index = filled(tmp_path / "i")
    index.merge()
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "i").iterdir())
    assert names == ["LOCK", "cols", "docs", "gen.00000005", "seg", "words"]
    [record] = index._snapshot.manifest.segments
    assert record.words is not None and record.words.file.name[6:] == record.file.name[4:]
    assert index.stats()["sections"]["WORD_LISTS"] == record.words.file.length


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_filters_groups_and_pages(engine: str, tmp_path: Path) -> None:
    index = filled(tmp_path / "i")
    copy = plain_copy(index, tmp_path / "copy")
    found, expected = (
        index.searcher(mode="bm25", engine=engine),
        copy.searcher(engine=engine),
    )
    for options in (
        {"filter": {"words": {"$lt": 6}}},
        {"group_by": "words"},
        {"offset": 3, "min_score": 0.1},
    ):
        scores = [[score for _, score in hits] for hits in hits_of(found, **options)]
        assert scores == [[score for _, score in hits] for hits in hits_of(expected, **options)]
    assert found.count({"words": 6}) == expected.count({"words": 6})


def test_metadata_can_change_without_new_lists(tmp_path: Path) -> None:
    index = filled(tmp_path / "i")
    before, files = hits_of(index.searcher(mode="bm25")), sorted((tmp_path / "i").glob("words-*"))
    assert index.update_metadata(["d1"], {"new": 7}) == 1
    assert hits_of(index.searcher(mode="bm25")) == before
    assert sorted((tmp_path / "i").glob("words-*")) == files
    assert index.searcher(mode="bm25").search("rome", filter={"new": 7}).ids == ["d1"]
    index.check(deep=True)


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_answer_like_the_original(shards: int, tmp_path: Path) -> None:
    index = filled(tmp_path / "i")
    shard_index(index._snapshot, Quick(tmp_path / "root"), shards)
    root = citadel.Index.open(tmp_path / "root")
    root.check(deep=True)
    assert hits_of(root.searcher(mode="bm25")) == hits_of(index.searcher(mode="bm25"))
    hit = root.searcher(mode="bm25").search("unique7x0", k=1)[0]
    assert (hit.id, hit.text) == document(7)


def test_backup_and_restore(tmp_path: Path) -> None:
    index = filled(tmp_path / "i")
    index.backup(tmp_path / "backup")
    restored = citadel.Index.restore(tmp_path / "backup", tmp_path / "restored")
    assert hits_of(restored.searcher(mode="bm25")) == hits_of(index.searcher(mode="bm25"))


def test_long_documents_are_one_document_to_bm25(tmp_path: Path) -> None:
    index = create_hybrid(Quick(tmp_path), indexes.fields("long"))
    index.add_vectors(indexes.long_documents(index, range(12)))
    index.commit()
    index.delete(["d4"])
    index.merge()
    index.check(deep=True)
    assert index._snapshot.segments[0].passages > 11
    bm25 = index.searcher(mode="bm25")
    assert bm25.search("document 7", k=1)[0].id == "d7"
    assert len(bm25.search("document", k=100)) == 11
    assert bm25.search("document 7", k=1)[0].passages == ()


# ---- damage ------------------------------------------------------------------------------------------------


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [spoil, remove])
@pytest.mark.parametrize("prefixes", [("words-",), ("words-", "cols-"), ("cols-",)])
def test_damaged_word_lists_are_rebuilt_from_texts_without_a_model(
    damage: Callable[[Path], None], prefixes: Sequence[str], tmp_path: Path
) -> None:
    index = filled(tmp_path / "i").merge()
    before, model = hits_of(index.searcher(mode="bm25")), index.searcher()
    expected = model.search_vectors(**QUERY_VECTORS, k=100)
    wanted = list(zip(expected.ids, expected.scores, strict=True))
    for prefix in prefixes:
        damage(min((tmp_path / "i").glob(f"{prefix}*")))
    with pytest.raises(CorruptIndexError):
        citadel.Index.open(tmp_path / "i").check(deep=True)
    plan = repair(Quick(tmp_path / "i"))
    assert (plan.kept, plan.lost) == (39, 0)
    repaired = citadel.Index.open(tmp_path / "i")
    repaired.check(deep=True)
    assert hits_of(repaired.searcher(mode="bm25")) == before
    hits = repaired.searcher().search_vectors(**QUERY_VECTORS, k=100)
    assert list(zip(hits.ids, hits.scores, strict=True)) == wanted
    assert repaired.count({"words": {"$gt": 0}}) == 39


def test_a_small_memory_bound_rebuilds_several_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hits_of(filled(tmp_path / "i").merge().searcher(mode="bm25"))
    spoil(words_file(tmp_path / "i"))
    monkeypatch.setattr("citadel.index.repair._DOCUMENTS_PER_SEGMENT", 10)
    assert repair(Quick(tmp_path / "i")).lost == 0
    index = citadel.Index.open(tmp_path / "i")
    index.check(deep=True)
    assert len(index._snapshot.segments) == 4
    assert hits_of(index.searcher(mode="bm25")) == before


def test_another_analyser_neither_adds_nor_rebuilds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "i")
    monkeypatch.setitem(vars(get_analyser("plain")), "fingerprint", "plain-2-00000000")
    with citadel.Index.open(tmp_path / "i") as index:
        with pytest.raises(FingerprintError, match="this machine has plain-2-00000000"):
            index.add_vectors([vectors(*document(50))])
        with pytest.raises(FingerprintError, match="this machine has plain-2-00000000"):
            index.searcher(mode="bm25").search("rome")
        assert len(index.searcher().search_vectors(**QUERY_VECTORS, k=5)) == 5
    spoil(words_file(tmp_path / "i"))
    with pytest.raises(FingerprintError, match="this machine has plain-2-00000000"):
        repair(Quick(tmp_path / "i"), accept_loss=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["segments"][0].pop("words"),
        lambda data: data["settings"].pop("words"),
        lambda data: data["segments"][0]["words"].update(postings=7),
        lambda data: data["segments"][0]["words"].update(extra=1),
        lambda data: data["segments"][0]["words"]["file"].update(name=data["segments"][0]["file"]["name"]),
        lambda data: data["settings"]["words"].update(analyser=7),
        lambda data: data["settings"].update(model=None),
    ],
)
def test_hostile_manifests_are_refused(change: Callable[[Any], Any], tmp_path: Path) -> None:
    filled(tmp_path / "i")
    data = indexes.manifest(tmp_path / "i")
    change(data)
    indexes.write_manifest(tmp_path / "i", data)
    with pytest.raises(CorruptIndexError):
        citadel.Index.open(tmp_path / "i")


@pytest.mark.parametrize("section", ["LENGTHS", "TERM_OFFSETS", "PACKED_COUNTS", "LIST_STARTS", "META"])
def test_files_with_good_checksums_and_bad_contents(section: str, tmp_path: Path) -> None:
    folder = tmp_path / "i"
    filled(folder)
    path = words_file(folder)
    old = rewrite.sections(path)[section]
    new = json.dumps(json.loads(old) | {"kind": "sparse"}).encode() if section == "META" else old[:-8]
    record = rewrite.rewrite(path, {section: new})
    data = indexes.manifest(folder)
    [own] = [each["words"] for each in data["segments"] if each["words"]["file"]["name"] == path.name]
    own["file"].update(record._asdict())
    indexes.write_manifest(folder, data)
    with pytest.raises(CorruptIndexError) as caught:
        citadel.Index.open(folder).check(deep=True)
    assert caught.value.file == path.name


# ---- bad input ---------------------------------------------------------------------------------------------


def test_a_text_too_large_for_the_memory_drops_its_batch_only(tmp_path: Path) -> None:
    index = create_hybrid(Quick(tmp_path), memory=16 << 20)
    index.add_vectors(vectors(*document(number)) for number in range(3))
    large = " ".join(f"word{number}" for number in range(120_000))
    rows = [vectors("small", "rome"), {**vectors("large", "rome"), "text": large}]
    with pytest.raises(DocumentTooLargeError, match="document 'large'"):
        index._writer.add_vectors([batch_of(index, rows)])
    index.add_vectors([vectors(*document(9))])
    index.commit().check(deep=True)
    assert list(index.ids()) == ["d0", "d1", "d2", "d9"]
    assert len(index.searcher(mode="bm25").search("rome", k=9)) == 4


def batch_of(index: citadel.Index, rows: Sequence[dict[str, Any]]) -> VectorBatch:
    from citadel.index.vectors import batches

    [batch] = batches(rows, index.settings, 1 << 30)
    assert not isinstance(batch.passages, Passages)
    return batch


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name a model that is not bm25"):
        citadel.Index.create(tmp_path / "a", model="bm25", hybrid=True)
    with pytest.raises(UsageError, match="name a model that is not bm25"):
        citadel.Index.create(tmp_path / "b", fields={"semantic": 2}, fingerprint="x", hybrid=True)
    index = citadel.Index.create(Quick(tmp_path / "c"), model="bm25")
    index.add([{"id": "d1", "text": "rome"}])
    index.commit()
    assert index.search("rome", mode="bm25").ids == ["d1"]
    with pytest.raises(UsageError, match="no BM25 lists beside its model's: build it with `citadel index"):
        index.searcher(mode="hybrid")
    with pytest.raises(UsageError, match="unknown mode 'both': choose one of model, bm25, hybrid"):
        index.searcher(mode="both")


def test_indexes_without_word_lists_have_the_manifest_of_older_versions(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), fields={"semantic": 2}, fingerprint="x")
    index.add_vectors([{"id": "d1", "semantic": np.ones(2)}])
    index.commit()
    data = indexes.manifest(tmp_path)
    assert "words" not in data["settings"] and "words" not in data["segments"][0]
