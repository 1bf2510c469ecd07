"""Units without Ray: cutting, encoding, joining; what a dead or damaged one leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.cluster import join_units as joining
from citadel.cluster.encode_unit import UnitEncoder, is_finished, unit_folder
from citadel.cluster.job import Job
from citadel.cluster.join_units import join_units
from citadel.cluster.units import Unit, cut_units
from citadel.encode.locate import default_model
from citadel.errors import CorruptIndexError, LockHeldError
from citadel.index.root_manifest import RootManifest, write_root
from citadel.settings import EncodeOn
from citadel.types import Document

BM25 = {"model": "bm25"}


def documents(count: int = 60) -> list[Document]:
    """Every tenth id occurs twice; the second text counts."""
    texts = [Document(f"d{n}", f"fox w{n % 7} x{n}", metadata={"year": 1900 + n}) for n in range(count)]
    again = [Document(f"d{n}", f"dog again w{n % 3}") for n in range(0, count, 10)]
    return texts[: count // 2] + again[:2] + texts[count // 2 :] + again


def make_job(root: Path, **options: Any) -> Job:
    given: dict[str, Any] = {"settings": BM25, "unit_documents": 8, "memory": 64 << 20, "graph": False}
    return Job(str(root), "corpus", 3, **{**given, **options})


def publish(job: Job, units: list[Unit]) -> citadel.Index:
    settings = UnitEncoder(job).prepare()
    keys: list[list[str]] = [[u.key for u in units if u.shard == shard] for shard in range(job.shards)]
    shards = [join_units(job, shard, own, settings) for shard, own in enumerate(keys)]
    write_root(job.target, RootManifest("0" * 32, 1, settings, tuple(one.record for one in shards)))
    return citadel.Index.open(job.root)


def test_equal_corpora_give_equal_units(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    first, second = list(cut_units(documents(), job)), list(cut_units(iter(documents()), job))
    assert [unit.key for unit in first] == [unit.key for unit in second]
    assert len({unit.key for unit in first}) == len(first) > 6
    changed = documents()
    changed[-1] = Document("d50", "other")
    assert {u.key for u in cut_units(changed, job)} != {u.key for u in first}
    for other in (make_job(tmp_path, generation=2), make_job(tmp_path, options={"k1": "2"})):
        assert not {u.key for u in cut_units(documents(), other)} & {u.key for u in first}


def test_a_unit_has_an_id_once(tmp_path: Path) -> None:
    given = [Document("a", "1"), Document("b", "2"), Document("a", "3")]
    [unit] = cut_units(given, Job(str(tmp_path), "c", 1, BM25))
    assert [(d.id, d.text) for d in unit.documents] == [("b", "2"), ("a", "3")]
    assert unit.positions == [1, 2]


def test_large_texts_fill_a_unit(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "c", 1, BM25, unit_bytes=1000)
    units = cut_units((Document(f"d{n}", "x" * 400) for n in range(7)), job)
    assert [len(unit.documents) for unit in units] == [3, 3, 1]


@pytest.fixture
def encoded(tmp_path: Path) -> tuple[Job, list[Unit]]:
    job = make_job(tmp_path / "root")
    job.target.make()
    encoder, units = UnitEncoder(job), list(cut_units(documents(), job))
    for unit in units:
        assert encoder.encode(unit) == len(unit.documents)
        assert is_finished(job, unit.key)
    return job, units


@pytest.mark.parametrize("at_once", [2, 64])
def test_rankings_equal_those_of_one_index(
    encoded: tuple[Job, list[Unit]], tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_MERGED_AT_ONCE", at_once)
    root = publish(*encoded)
    root.check(deep=True)
    index = citadel.Index.create(tmp_path / "one", model="bm25")
    index.add(documents())
    index.commit()
    assert (len(root), sorted(root.ids())) == (60, sorted(index.ids()))
    for query in ("fox", "dog again", "w1 w2", "x11 fox"):
        ours, theirs = root.search(query, 100), index.search(query, 100)
        assert (ours.ids, ours.scores) == (theirs.ids, theirs.scores)
    assert root.get("d10") == Document("d10", "dog again w1")
    names = {path.name.split("-")[0] for path in Path(root._storage.location).glob("shard-*/*")}
    assert names == {"seg", "docs", "cols", "order", "gen.00000001"}  # no intermediate segment is left
    assert len(list(Path(root._storage.location).glob("shard-*/seg-*"))) == 3


def test_encoding_twice_changes_nothing(encoded: tuple[Job, list[Unit]]) -> None:
    job, units = encoded
    folder = Path(unit_folder(job, units[0].key).location)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert UnitEncoder(job).encode(units[0]) == len(units[0].documents)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_an_unfinished_unit_is_encoded_again(
    encoded: tuple[Job, list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, units = encoded
    job.work.remove(f"unit-{units[0].key}")

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("citadel.api.Index.commit", die)
        with pytest.raises(KeyboardInterrupt), pytest.warns(citadel.UncommittedChangesWarning):
            UnitEncoder(job).encode(units[0])
    assert not is_finished(job, units[0].key)
    assert unit_folder(job, units[0].key).names()
    UnitEncoder(job).encode(units[0])
    assert is_finished(job, units[0].key)
    assert len(publish(job, units)) == 60


def test_two_workers_on_one_unit(encoded: tuple[Job, list[Unit]]) -> None:
    job, units = encoded
    job.work.remove(f"unit-{units[0].key}")
    storage = unit_folder(job, units[0].key)
    storage.make()
    lock = storage.lock()
    with pytest.raises(LockHeldError):
        UnitEncoder(job).encode(units[0])
    lock.release()
    assert UnitEncoder(job).encode(units[0]) == len(units[0].documents)


@pytest.mark.parametrize("pattern", ["seg-*", "docs-*", "cols-*", "order-*", "gen.*"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_unit_is_reported_and_encoded_again(
    encoded: tuple[Job, list[Unit]], pattern: str, damage: str
) -> None:
    job, units = encoded
    file = sorted(Path(unit_folder(job, units[0].key).location).glob(pattern))[-1]
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    file.write_bytes(flipped if damage == "flip" else data[:middle])
    if damage == "remove":
        file.unlink()
    with pytest.raises(CorruptIndexError, match="rerun the same command"):
        publish(job, units)
    assert not is_finished(job, units[0].key)
    UnitEncoder(job).encode(units[0])
    assert len(publish(job, units)) == 60


@pytest.mark.skipif(default_model() is None, reason="the default model is not installed")
def test_units_encoded_on_a_device(tmp_path: Path) -> None:
    """The torch path that GPUs use; the model is loaded once for all units."""
    pytest.importorskip("torch")
    settings: dict[str, Any] = {"model": "default", "tau": 1.5}
    roots, given = [], documents(12)
    for device in ("cpu", "torch-cpu"):
        job = make_job(tmp_path / device, settings=settings, encode_on=EncodeOn(device, "fp32"))
        job.target.make()
        encoder, units = UnitEncoder(job), list(cut_units(given, job))
        for unit in units:
            encoder.encode(unit)
        roots.append((publish(job, units), [unit.key for unit in units], encoder))
    (one, keys, _), (other, same_keys, encoder) = roots
    assert keys == same_keys and encoder._on_device[0].device == "torch-cpu"
    for query in ("fox w3", "dog again"):
        ours, theirs = one.search(query, 20), other.search(query, 20)
        assert sorted(ours.ids) == sorted(theirs.ids)
        assert sorted(ours.scores) == pytest.approx(sorted(theirs.scores), rel=0.02)


def test_units_with_bm25_lists_beside_a_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "default", "hybrid": True}
    job = Job(str(tmp_path / "root"), "corpus", 2, settings, unit_documents=4, memory=64 << 20, graph=False)
    job.target.make()
    given = documents(12)
    encoder, units = UnitEncoder(job), list(cut_units(given, job))
    for unit in units:
        encoder.encode(unit)
    root = publish(job, units)
    root.check(deep=True)
    with citadel.Index.create(tmp_path / "one", **settings) as one:
        one.add(given)
        one.commit()
    for mode in ("bm25", "hybrid"):
        hits, expected = (each.search("fox w3 again", 20, mode=mode) for each in (root, one))
        assert hits.to_dicts() == expected.to_dicts()
