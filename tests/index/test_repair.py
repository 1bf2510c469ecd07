"""Repair keeps every readable document, lists the others, and needs consent to lose one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import citadel
from citadel.encode.batches import encoded_batches
from citadel.encode.encoder import Encoder
from citadel.errors import CorruptIndexError, FingerprintError, RepairLossError
from citadel.index.manifest import generations
from citadel.index.repair import EncodeDocuments, plan_repair, repair
from citadel.settings import long_documents
from citadel.text.analyser import get_analyser
from citadel.types import Document, VectorBatch
from tests.corrupt import rewrite
from tests.index.quick import Quick
from tests.support.models import ModelFolder

WORDS = [f"word{n}" for n in range(40)]


def build(storage: Quick) -> citadel.Index:
    index = citadel.Index.create(storage, analyser="plain")
    index.add({"id": f"d{n:04}", "text": f"{WORDS[n % 40]} marker{n:04}"} for n in range(1400))
    return index.commit()


def spoil(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def spoil_lists(storage: Quick) -> None:
    (path,) = storage.path.glob("seg-*")
    spoil(path, path.stat().st_size // 2)


def spoil_document(storage: Quick, number: int) -> None:
    (path,) = storage.path.glob("docs-*")
    spoil(path, path.read_bytes().index(f"marker{number:04}".encode()))


@pytest.fixture
def storage(tmp_path: Path) -> Quick:
    storage = Quick(tmp_path / "index")
    build(storage)
    return storage


def test_one_damaged_document_loses_only_itself(storage: Quick) -> None:
    expected = citadel.Index.open(storage).searcher().search("word7", k=100).ids
    spoil_document(storage, 700)
    with pytest.raises(RepairLossError, match=r"keeps 1,399 documents and loses 1: d0700; .* --yes"):
        repair(storage)
    with pytest.raises(CorruptIndexError):
        citadel.Index.open(storage).check(deep=True)  # nothing was changed
    plan = repair(storage, accept_loss=True)
    assert (plan.kept, plan.lost, plan.lost_ids) == (1399, 1, ("d0700",))
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert (len(index), "d0700" in index, "d0701" in index) == (1399, False, True)
    assert index.searcher().search("word7", k=100).ids == expected
    index.add([{"id": "new", "text": "new"}])
    assert len(index.commit()) == 1400


def test_damaged_lists_are_rebuilt_from_texts(storage: Quick) -> None:
    before = citadel.Index.open(storage).searcher().search("word7 marker0007", k=50)
    expected = [(hit.id, hit.score) for hit in before]
    spoil_lists(storage)
    assert repair(storage).lost == 0
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert [(hit.id, hit.score) for hit in index.searcher().search("word7 marker0007", k=50)] == expected


def test_deleted_documents_stay_deleted(storage: Quick) -> None:
    index = citadel.Index.open(storage)
    index.delete(["d0001", "d0002"])
    index.commit()
    spoil_document(storage, 2)
    assert repair(storage).lost == 0
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert (len(index), "d0001" in index) == (1398, False)


def test_repair_fails_when_no_document_is_readable(tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    build(storage)
    for pattern in ("docs-*", "seg-*"):
        (path,) = storage.path.glob(pattern)
        spoil(path, 20)
    before = generations(storage)
    with pytest.raises(CorruptIndexError, match="no document can be saved"):
        repair(storage, accept_loss=True)
    assert generations(storage) == before


def test_given_vectors_of_damaged_lists_are_lost_and_listed(tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    index = citadel.Index.create(storage, fields={"lexical": 4}, fingerprint="x")
    for id in "ab":
        index.add_vectors([{"id": id, "keys": [1], "weights": [1.0], "vectors": [[1.0, 0, 0, 0]]}])
        index.commit()
    damaged = storage.path / index._snapshot.segments[1].name
    spoil(damaged, damaged.stat().st_size // 2)
    plan = plan_repair(storage)
    assert (plan.action, plan.kept, plan.lost_ids) == ("rewrite", 1, ("b",))
    repair(storage, accept_loss=True)
    assert [
        hit.id for hit in citadel.Index.open(storage).searcher().search_vectors([1], [1.0], [[1.0, 0, 0, 0]])
    ] == ["a"]


def test_damaged_merge_returns_to_previous_generation(tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    index = citadel.Index.create(storage, fields={"lexical": 4}, fingerprint="x")
    for n in range(6):  # the sixth commit merges
        index.add_vectors([{"id": f"d{n}", "keys": [1], "weights": [1.0], "vectors": [[1.0, 0, 0, 0]]}])
        index.commit()
    (merged,) = (storage.path / segment.name for segment in index._snapshot.segments)
    spoil(merged, merged.stat().st_size // 2)
    plan = repair(storage)
    assert (plan.action, plan.lost) == ("return", 0)
    assert len(citadel.Index.open(storage)) == 6


# ---- lists rebuilt with a model --------------------------------------------------------------------------


TEXTS = ["einstein proposed relativity in physics", "darwin proposed evolution", "a history of rome"]
QUERY = "who proposed relativity"


def model_index(storage: Quick, folder: Path, texts: list[str]) -> list[tuple[str, float]]:
    """Build an index with a model, damage its lists, and return its hits from before the damage."""
    index = citadel.Index.create(storage, model=folder)
    index.add({"id": f"d{n}", "text": text} for n, text in enumerate(texts))
    expected = hits_of(index.commit(), len(texts))
    spoil_lists(storage)
    return expected


def hits_of(index: citadel.Index, k: int) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in index.searcher().search(QUERY, k=k)]


def encoder_of(folder: Path, memory: int = 1 << 28) -> EncodeDocuments:
    encoder = Encoder(folder)
    long = long_documents(None, None, None, encoder.tokenizer.window)
    return lambda documents: encoded_batches(documents, encoder, memory, lambda name, count: None, long=long)


@pytest.mark.parametrize("router", ["dynamic", "none"])
def test_model_rebuilds_damaged_lists(router: str, tiny_model: ModelFolder, tmp_path: Path) -> None:
    storage, folder = Quick(tmp_path / "index"), tiny_model(router)
    expected = model_index(storage, folder, TEXTS)
    plan = repair(storage, encode=encoder_of(folder))
    assert (plan.action, plan.kept, plan.lost) == ("rewrite", 3, 0)
    index = citadel.Index.open(storage, model=folder)
    index.check(deep=True)
    assert hits_of(index, 3) == expected
    assert [index.get(f"d{n}") for n in range(3)] == [Document(f"d{n}", text) for n, text in enumerate(TEXTS)]


def test_deleted_and_unreadable_documents_are_not_encoded(tiny_model: ModelFolder, tmp_path: Path) -> None:
    storage, folder = Quick(tmp_path / "index"), tiny_model()
    index = citadel.Index.create(storage, model=folder)
    index.add({"id": f"d{n}", "text": f"rome marker{n:04}"} for n in range(5))
    index.commit().delete(["d1"])
    index.commit()
    spoil_lists(storage)
    spoil_document(storage, 3)
    encoded, encode = list[str](), encoder_of(folder)

    def recorded(documents: Iterable[Document]) -> Iterator[VectorBatch]:
        for batch in encode(documents):
            encoded.extend(document.id for document in batch.documents)
            yield batch

    assert repair(storage, accept_loss=True, encode=recorded).kept == 3
    assert encoded == ["d0", "d2", "d4"]
    index = citadel.Index.open(storage, model=folder)
    index.check(deep=True)
    assert [id for id in ("d0", "d1", "d2", "d3", "d4") if id in index] == encoded


def test_without_its_model_nothing_is_dropped(tiny_model: ModelFolder, tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    model_index(storage, tiny_model(), TEXTS)
    before = {name: storage.map(name).tobytes() for name in storage.names()}
    with pytest.raises(
        FingerprintError, match=r"rebuilt only with the model .* name its folder with --model DIR"
    ):
        repair(storage, accept_loss=True)
    assert {name: storage.map(name).tobytes() for name in storage.names()} == before


def test_rebuilding_with_a_model_keeps_the_memory_bound(tiny_model: ModelFolder, tmp_path: Path) -> None:
    storage, folder, memory = Quick(tmp_path / "index"), tiny_model(), 1 << 20
    expected = model_index(storage, folder, [f"{TEXTS[n % 3]} {'x ' * 400}" for n in range(200)])
    assert repair(storage, encode=encoder_of(folder, memory), memory=memory).lost == 0
    index = citadel.Index.open(storage, model=folder)
    index.check(deep=True)
    assert len(index._snapshot.segments) > 2
    rebuilt = dict(hits_of(index, 200))
    assert rebuilt == pytest.approx(dict(expected), rel=1e-5)


# ---- lists rebuilt with an analyser ------------------------------------------------------------------------


def change_analyser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave like a machine whose stemmer makes other terms."""
    monkeypatch.setitem(vars(get_analyser("plain")), "fingerprint", "plain-1-00000000")


def test_other_analyser_does_not_rebuild_lists(storage: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_lists(storage)
    change_analyser(monkeypatch)
    before = {name: storage.map(name).tobytes() for name in storage.names()}
    with pytest.raises(
        FingerprintError, match=r"this machine has plain-1-00000000; install the same PyStemmer"
    ):
        repair(storage, accept_loss=True)
    assert {name: storage.map(name).tobytes() for name in storage.names()} == before


def test_other_analyser_is_accepted_while_lists_are_whole(
    storage: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_document(storage, 700)
    change_analyser(monkeypatch)
    assert repair(storage, accept_loss=True).kept == 1399


def test_rebuilding_from_texts_keeps_the_memory_bound(tmp_path: Path) -> None:
    storage, memory = Quick(tmp_path / "index"), 4 << 20
    index = citadel.Index.create(storage, analyser="plain")
    index.add({"id": f"d{n}", "text": f"marker{n} " + "word " * 20_000} for n in range(60))  # 100 kB each
    index.commit()
    spoil_lists(storage)
    assert repair(storage, memory=memory).lost == 0
    index = citadel.Index.open(storage)
    index.check(deep=True)
    segments = index._snapshot.segments
    assert len(segments) > 2
    assert all(100_000 * segment.documents <= memory // 2 for segment in segments)
    assert [index.searcher().search(f"marker{n}").ids for n in (0, 59)] == [["d0"], ["d59"]]


# ---- damaged columns ---------------------------------------------------------------------------------------


def columns_index(storage: Quick) -> Path:
    """Vectors, which cannot be rebuilt, with metadata in two segments; returns one of the columns files."""
    index = citadel.Index.create(storage, fields={"lexical": 4}, fingerprint="x")
    for part in (range(20), range(20, 30)):
        index.add_vectors(
            {
                "id": f"d{n}",
                "keys": [1],
                "weights": [1.0],
                "vectors": [[1.0, n, 0, 0]],
                "year": 1900 + n,
                "tags": ["even"] if n % 2 == 0 else [],
            }
            for n in part
        )
        index.commit()
    index.delete(["d4"])
    index.commit()
    record = index._snapshot.manifest.segments[0].columns_file
    assert record is not None
    return storage.path / record.name


def filtered_hits(storage: Quick) -> list[tuple[str, float]]:
    filter = {"year": {"$lt": 1925}, "tags": {"$contains": "even"}}
    searcher = citadel.Index.open(storage).searcher()
    hits = searcher.search_vectors([1], [1.0], [[1.0, 1.0, 0, 0]], k=30, filter=filter)
    return [(hit.id, hit.score) for hit in hits]


def flip_header(path: Path) -> None:
    spoil(path, 20)


def flip_fields(path: Path) -> None:
    spoil(path, 70)


def flip_data(path: Path) -> None:
    spoil(path, path.read_bytes().index(b"even"))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def use_other_columns(path: Path) -> None:
    """Those of the other segment, under this name."""
    (other,) = set(path.parent.glob("cols-*")) - {path}
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    "damage", [flip_header, flip_fields, flip_data, cut_short, Path.unlink, use_other_columns]
)
def test_damaged_columns_are_rebuilt_from_documents(damage: Callable[[Path], None], tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    path = columns_index(storage)
    expected = filtered_hits(storage)
    assert len(expected) == 12
    damage(path)
    with pytest.raises(CorruptIndexError) as caught:
        citadel.Index.open(storage).check(deep=True)
    assert caught.value.file == path.name
    plan = repair(storage)
    assert (plan.action, plan.kept, plan.lost) == ("rewrite", 29, 0)
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert (len(index), "d4" in index, filtered_hits(storage)) == (29, False, expected)
    assert all(segment.record.columns_file for segment in index._snapshot.segments)


def test_columns_that_differ_from_the_documents_are_noticed(tmp_path: Path) -> None:
    """Columns with valid checksums, of documents with other metadata."""
    storage = Quick(tmp_path / "index")
    path = columns_index(storage)
    expected = filtered_hits(storage)
    data = rewrite.sections(path)["COLUMN_DATA"]
    first = data.index((1900).to_bytes(8, "little"))
    rewrite.tamper(
        storage.path,
        path.name,
        {"COLUMN_DATA": data[:first] + (1901).to_bytes(8, "little") + data[first + 8 :]},
    )
    with pytest.raises(CorruptIndexError, match="differs from the documents' metadata"):
        citadel.Index.open(storage).check(deep=True)
    assert repair(storage).lost == 0
    citadel.Index.open(storage).check(deep=True)
    assert filtered_hits(storage) == expected
