"""Lost, repeated, late and half-finished puts: an index in an object store loses no acknowledged commit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.errors import CorruptIndexError, LockHeldError, OwnershipError, ResourceError
from citadel.index import object_store
from citadel.index.object_store import ObjectStorage
from tests.conftest import NIGHT
from tests.support.bucket import Died, Put, TestBucket

URL = "memory://tests/index"
COMMITS = 6 if NIGHT else 4


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(object_store, "RENEWALS", 1e-3)  # never within a test


def storage(bucket: TestBucket, cache: Path) -> ObjectStorage:
    return ObjectStorage(URL, cache, bucket)


def rows(commit: int) -> list[dict[str, Any]]:
    return [{"id": f"d{commit}-{n}", "text": f"fox w{n}", "commit": commit} for n in range(3)]


def expected(commits: int) -> set[str]:
    """The ids after some commits: each adds three, and from the third on deletes one of the first."""
    ids = {row["id"] for commit in range(commits) for row in rows(commit)}
    return ids - {f"d{commit}-0" for commit in range(1, commits - 1)}


def workload(bucket: TestBucket, cache: Path, acknowledged: Callable[[int], Any]) -> None:
    """Create an index and commit to it; `acknowledged` is told the number of durable commits."""
    index = citadel.Index.create(storage(bucket, cache), model="bm25")
    acknowledged(0)
    for commit in range(COMMITS):
        index.add(rows(commit))
        if commit > 1:
            index.delete([f"d{commit - 1}-0"])
        index.commit()
        acknowledged(commit + 1)


def ids_of(bucket: TestBucket, cache: Path) -> set[str]:
    """The ids of the index, after a deep check of all files."""
    index = citadel.Index.open(storage(bucket, cache))
    index.check(deep=True)
    found = set(index.ids())
    assert set(index.search("fox", k=100).ids) == found
    return found


def require_state(bucket: TestBucket, cache: Path, done: int, may_have: int) -> None:
    """The index has `done` commits, or `may_have`; a new writer can go on."""
    if done < 0:
        try:
            found = ids_of(bucket, cache)
        except (citadel.IndexNotFoundError, CorruptIndexError):
            return
    else:
        found = ids_of(bucket, cache)
    assert found in (expected(max(done, 0)), expected(may_have)), (done, may_have, found)
    bucket.objects.pop("index/LOCK", None)  # the lease of the dead writer has ended
    index = citadel.Index.open(storage(bucket, cache))
    index.add([{"id": "later", "text": "fox"}])
    index.commit()
    assert ids_of(bucket, cache) == found | {"later"}


def crash_at(request: int, applied: bool, cut: bool, cache: Path) -> tuple[TestBucket, int, list[Put]] | None:
    """Kill the writer at a request, which arrives, or not; None if there are fewer requests."""
    bucket, done, pending = TestBucket(), [-1], list[Put]()

    def before(number: int, kind: str, put: Put | None) -> None:
        if number != request:
            return
        if put is not None:
            pending.append(put)
            if cut:  # a store that keeps half of what it was sent
                bucket.apply(put._replace(data=put.data[: len(put.data) // 2]))
        if not applied:
            raise Died

    def after(number: int, kind: str) -> None:
        if number == request:
            raise Died

    bucket.before, bucket.after = before, after
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            workload(bucket, cache, lambda commits: done.__setitem__(0, commits))
        except Died:
            return bucket.copy(), done[0], pending
    return None


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True])
def test_a_kill_at_every_request(tmp_path: Path, applied: bool) -> None:
    request = 0
    while crashed := crash_at(request := request + 1, applied, False, tmp_path / "writer"):
        bucket, done, _ = crashed
        require_state(bucket, tmp_path / "reader", done, done + 1)
    assert request > 5 * COMMITS


@pytest.mark.slow
def test_a_put_that_arrives_after_the_next_writer(tmp_path: Path) -> None:
    """A put of a dead writer that the network delivers late replaces nothing."""
    request = tried = 0
    while crashed := crash_at(request := request + 1, False, False, tmp_path / "writer"):
        bucket, done, pending = crashed
        if done < 0 or not pending:
            continue
        bucket.objects.pop("index/LOCK", None)
        index = citadel.Index.open(storage(bucket, tmp_path / "next"))
        before = set(index.ids())
        index.add([{"id": "later", "text": "fox"}])
        index.commit()
        try:
            bucket.apply(pending[0])
        except object_store.Conflict:
            tried += 1
        assert ids_of(bucket, tmp_path / "reader") == before | {"later"}
    assert tried >= COMMITS  # every manifest


@pytest.mark.slow
def test_a_half_finished_put(tmp_path: Path) -> None:
    """A store that keeps half an object: the damage is named, never served."""
    request = named = 0
    while crashed := crash_at(request := request + 1, False, True, tmp_path / "writer"):
        bucket, done, pending = crashed
        if done < 0 or not pending or pending[0].name.endswith("LOCK"):
            continue
        try:
            found = ids_of(bucket, tmp_path / "reader")
        except CorruptIndexError:
            named += 1
        else:
            assert found in (expected(done), expected(done + 1))  # or in a merge after the commit
    assert named >= COMMITS


@pytest.mark.parametrize("applied", [False, True])
def test_requests_that_fail_once(tmp_path: Path, applied: bool) -> None:
    """Every put fails on its first try, before or after it took effect."""
    bucket, failed = TestBucket(), set[str]()

    def before(number: int, kind: str, put: Put | None) -> None:
        if put is not None and put.name not in failed and not put.name.endswith("LOCK"):
            failed.add(put.name)
            if applied:
                bucket.apply(put)
            raise OSError("connection reset")

    bucket.before = before
    workload(bucket, tmp_path, lambda commits: None)
    assert len(failed) > 2 * COMMITS
    assert ids_of(bucket, tmp_path / "reader") == expected(COMMITS)


def test_a_store_that_stays_away(tmp_path: Path) -> None:
    bucket = TestBucket()
    workload(bucket, tmp_path, lambda commits: None)

    def before(number: int, kind: str, put: Put | None) -> None:
        raise OSError("the token has expired")

    index = citadel.Index.open(storage(bucket, tmp_path))
    bucket.before = before
    with pytest.raises(ResourceError, match=r"token has expired.*credentials"):
        index.add([{"id": "later", "text": "fox"}])
    bucket.before = lambda number, kind, put: None
    assert ids_of(bucket, tmp_path / "reader") == expected(COMMITS)


def test_two_writers(tmp_path: Path) -> None:
    bucket = TestBucket()
    first = citadel.Index.create(storage(bucket, tmp_path / "a"), model="bm25")
    second = citadel.Index.open(storage(bucket, tmp_path / "b"))
    first.add(rows(0))
    with pytest.raises(LockHeldError, match="lease"):
        second.add(rows(1))
    first.commit()
    second.add(rows(1))
    second.commit()
    assert ids_of(bucket, tmp_path / "c") == {row["id"] for row in [*rows(0), *rows(1)]}


def test_an_expired_writer_loses(tmp_path: Path) -> None:
    """A writer that slept past its lease publishes nothing, and harms nothing of its successor."""
    bucket = TestBucket()
    first = citadel.Index.create(storage(bucket, tmp_path / "a"), model="bm25")
    first.add(rows(0))
    later = bucket.objects["index/LOCK"].modified - 2 * object_store.LEASE_SECONDS
    bucket.objects["index/LOCK"] = bucket.objects["index/LOCK"]._replace(modified=later)
    second = citadel.Index.open(storage(bucket, tmp_path / "b"))
    second.add(rows(1))
    with pytest.raises(OwnershipError):
        first.commit()
    second.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first.close()
    assert ids_of(bucket, tmp_path / "c") == {row["id"] for row in rows(1)}


def test_a_writer_that_wakes_up_within_its_commit(tmp_path: Path) -> None:
    """The lease is taken over between its last check and the put of the manifest: the put decides."""
    bucket = TestBucket()
    first = citadel.Index.create(storage(bucket, tmp_path / "a"), model="bm25")
    first.add(rows(0))

    def before(number: int, kind: str, put: Put | None) -> None:
        if put is not None and "/gen." in put.name:
            bucket.before = lambda number, kind, put: None
            bucket.objects.pop("index/LOCK")
            second = citadel.Index.open(storage(bucket, tmp_path / "b"))
            for commit in range(1, 5):  # so many that the generation's name is free again
                second.add(rows(commit))
                second.commit()

    bucket.before = before
    with pytest.raises(OwnershipError):
        first.commit()
    assert ids_of(bucket, tmp_path / "c") == {row["id"] for commit in range(1, 5) for row in rows(commit)}


@pytest.mark.parametrize("kind", ["seg-", "docs-", "gen."])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_object_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    bucket = TestBucket()
    workload(bucket, tmp_path / "writer", lambda commits: None)
    manifest = citadel.Index.open(storage(bucket, tmp_path / "writer"))._snapshot.manifest
    names = [manifest.name, *(record.name for record in manifest.files())]
    name = next(f"index/{name}" for name in names if name.startswith(kind))
    data, middle = bucket.objects[name].data, len(bucket.objects[name].data) // 2
    if damage == "remove":
        del bucket.objects[name]
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        bucket.damage(name, flipped if damage == "flip" else data[:middle])
    if (kind, damage) == ("gen.", "remove"):
        assert ids_of(bucket, tmp_path / "reader") <= expected(COMMITS)
        return
    with pytest.raises((CorruptIndexError, FileNotFoundError)):
        ids_of(bucket, tmp_path / "reader")


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    bucket = TestBucket()
    workload(bucket, tmp_path / "writer", lambda commits: None)
    assert ids_of(bucket, tmp_path / "reader") == expected(COMMITS)
    copies = [path for path in (tmp_path / "reader").rglob("*") if path.is_file()]
    assert copies
    for copy in copies:
        copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    assert ids_of(bucket, tmp_path / "reader") == expected(COMMITS)
