"""An index on a local S3 server (moto) and in memory: build, shard, search, reopen; addresses and errors."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.errors import CorruptIndexError, LockHeldError, OwnershipError, ResourceError, UsageError
from citadel.index.object_store import ObjectStorage
from citadel.index.obstore_bucket import connect
from citadel.index.shard import shard_index

pytest.importorskip("obstore", reason="needs the extra [objects]")
ROWS = [{"id": f"d{n}", "text": f"fox w{n % 5}", "year": 1900 + n} for n in range(40)]


class FreeLock:
    """A lease that nobody keeps to."""

    def check(self) -> None: ...
    def release(self) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A local S3 server with a bucket."""
    moto: Any = pytest.importorskip("moto.server", reason="needs moto and flask")
    boto: Any = pytest.importorskip("boto3")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    address = "http://{}:{}".format(*running.get_host_and_port())
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "region_name": "us-east-1"}
    boto.client("s3", endpoint_url=address, **keys).create_bucket(Bucket="citadel")
    yield address
    running.stop()


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("CITADEL_CACHE", str(tmp_path / "cache"))
    name = uuid.uuid4().hex
    if request.param == "memory":
        return f"memory://citadel/{name}"
    address = request.getfixturevalue("server")
    for variable, value in (
        ("AWS_ENDPOINT_URL", address), ("AWS_ALLOW_HTTP", "true"), ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "key"), ("AWS_REGION", "us-east-1"),
    ):  # fmt: skip
        monkeypatch.setenv(variable, value)
    connect.cache_clear()
    return f"s3://citadel/{name}"


def test_an_index(url: str) -> None:
    index = citadel.Index.create(url, model="bm25")
    index.add(ROWS)
    index.commit()
    index.delete(["d3"])
    index.add([{"id": "d4", "text": "dog"}])
    index.commit()
    opened = citadel.Index.open(url)
    opened.check(deep=True)
    assert len(opened) == 39
    assert opened.search("dog").ids == ["d4"]
    assert opened.search("fox", 100, filter={"year": {"$lt": 1902}}).ids == ["d0", "d1"]
    assert opened.get("d7") == index.get("d7")
    index.merge()
    assert opened.refresh().generation == index.generation
    assert opened.search("fox", 100).ids == index.search("fox", 100).ids
    with pytest.raises(UsageError, match=r"exists|overwrite"):
        citadel.Index.create(url, model="bm25")


def test_shards(url: str) -> None:
    index = citadel.Index.create(f"{url}/one", model="bm25")
    index.add(ROWS)
    index.commit()
    shard_index(index._snapshot, ObjectStorage(f"{url}/root"), 3)
    root = citadel.Index.open(f"{url}/root")
    root.check(deep=True)
    ours, theirs = root.search("fox w3", 100), index.search("fox w3", 100)
    assert (ours.ids, ours.scores) == (theirs.ids, theirs.scores)


def test_one_of_several_writers_wins(url: str) -> None:
    """Threads with storages of their own publish the same generation at one moment."""
    citadel.Index.create(url, model="bm25").close()
    barrier = threading.Barrier(4)

    def write(number: int) -> str | None:
        storage = ObjectStorage(url)
        storage.lock = FreeLock  # type: ignore[method-assign, assignment]
        index = citadel.Index(storage, 1 << 26, None, 1, None)
        index.add([{"id": f"d{number}", "text": "fox"}])
        barrier.wait()
        try:
            index.commit()
        except (OwnershipError, CorruptIndexError):  # the winner may have removed its files
            index.rollback()
            return None
        return f"d{number}"

    with ThreadPoolExecutor(4) as pool:
        winners = [id for id in pool.map(write, range(4)) if id is not None]
    assert len(winners) == 1
    assert list(citadel.Index.open(url).ids()) == winners


def test_the_lease(url: str) -> None:
    lock = ObjectStorage(url).lock()
    with pytest.raises(LockHeldError):
        ObjectStorage(url).lock()
    lock.check()
    lock.release()
    ObjectStorage(url).lock().release()


def test_commands(url: str, tmp_path: Path) -> None:
    """Other processes see only what the server has."""
    if url.startswith("memory"):
        return
    index = citadel.Index.create(url, model="bm25")
    index.add(ROWS)
    index.commit()
    for command in (["search", url, "fox", "-k", "1"], ["check", url, "--deep"], ["stats", url]):
        done = subprocess.run(
            [sys.executable, "-m", "citadel.cli", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("s3://", "ftp://a/b", "http://a/b"):
        with pytest.raises(UsageError, match="s3://BUCKET"):
            citadel.Index.open(wrong)
    assert ObjectStorage("memory://a/b/").location == "memory://a/b"
    assert ObjectStorage("memory://a").names() == []


def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from obstore.store import S3Store

    from citadel.index.obstore_bucket import ObstoreBucket

    store = S3Store(
        "away", endpoint="http://127.0.0.1:9", region="us-east-1", access_key_id="id",
        secret_access_key="key", client_options={"allow_http": True, "timeout": "1s"},
        retry_config={"max_retries": 0},
    )  # fmt: skip
    storage = ObjectStorage("s3://away/index", tmp_path, ObstoreBucket(store))
    with pytest.raises(ResourceError, match=r"object store failed.*credentials"):
        citadel.Index.open(storage)
