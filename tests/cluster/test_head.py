"""The head of a cluster gone and back: searches go on meanwhile, builds end, replicas are replaced.

Ray keeps the state of the cluster on disk (`gcs_storage`), so a new head takes over where the old one died.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import citadel
from citadel.index.shard import shard_index
from citadel.index.storage import FolderStorage
from tests.cluster.test_ray_build import build, job_of, require_equal
from tests.cluster.test_remote_engine import texts
from tests.cluster.test_units import documents
from tests.index.quick import Quick
from tests.support.ray_cluster import RECONNECT_SECONDS, STORE, stop_cluster
from tests.support.serving import wait_until

ray: Any = pytest.importorskip("ray", reason="needs the extra [ray]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets open
]
SHARDS = 2
GONE = [pytest.param(5.0, id="5 s"), pytest.param(60.0, id="60 s", marks=pytest.mark.night)]
PATIENCE = 120.0  # seconds; generous, because the machine may be busy


class Head:
    """A cluster whose head can be killed and started again; this process is a driver on another node."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            port = opened.getsockname()[1]
        state = {"gcs_storage": "rocksdb", "gcs_storage_path": str(folder / "state")}
        self._options: dict[str, Any] = {
            "num_cpus": 0,
            "object_store_memory": STORE,
            "include_dashboard": False,
            "gcs_server_port": port,
            "_system_config": {**state, "gcs_rpc_server_reconnect_timeout_s": RECONNECT_SECONDS},
        }
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=self._options)
        for number in (2, 3):  # addresses of their own, so that this driver is not one of the head's
            self.cluster.add_node(num_cpus=2, object_store_memory=STORE, node_ip_address=f"127.0.0.{number}")
        ray.init(address=self.cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)

    def kill(self) -> None:
        """Kill every process of the head."""
        self.cluster.remove_node(self.cluster.head_node, allow_graceful=False)
        self.cluster.head_node = None

    def start(self) -> None:
        """Start the head again, and wait until the nodes are connected to it."""
        self.cluster.add_node(wait=False, **self._options)
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 3, PATIENCE)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A cluster that keeps its state on disk: a head without cores and two nodes."""
    made = Head(tmp_path_factory.mktemp("cluster"))
    yield made
    stop_cluster(made.cluster)


class Served(NamedTuple):
    """An index whose shards the cluster searches, and its source."""

    source: citadel.Index
    opened: citadel.Index
    pool: Any

    def searcher(self) -> citadel.Searcher:
        return self.opened.refresh().searcher(engine=self.pool.open_engine)

    def next_generation(self) -> None:
        self.source.add([{"id": "new", "text": "fox"}])
        self.source.commit()
        root = FolderStorage(Path(self.opened._storage.location))
        shard_index(self.source._snapshot, root, SHARDS, overwrite=True)


@pytest.fixture(scope="module")
def served(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from citadel.cluster.remote_engine import RemoteOptions
    from citadel.cluster.shard_pool import ShardOptions, ShardPool

    folder = tmp_path_factory.mktemp("served")
    index = citadel.Index.create(Quick(folder / "one"), model="bm25")
    index.add(texts(120))
    index.commit()
    shard_index(index._snapshot, FolderStorage(folder / "root"), SHARDS)
    pool = ShardPool(ray, str(folder / "root"), ShardOptions(2, 0.5, remote=RemoteOptions(5.0)))
    yield Served(index, citadel.Index.open(folder / "root"), pool)
    pool.close()
    from ray import serve

    serve.shutdown()


def replicas() -> list[psutil.Process]:
    """The processes that serve shards."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "ServeReplica" in title and "shard-" in title and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def search_for(searcher: citadel.Searcher, seconds: float) -> None:
    """Search for some seconds; every answer is complete."""
    whole, end = len(searcher.snapshot), time.monotonic() + seconds
    while time.monotonic() < end:
        hits = searcher.search("fox dog cat red old", k=500)
        assert (hits.shards, len(hits)) == ((SHARDS, SHARDS), whole)
        time.sleep(0.02)


@pytest.mark.parametrize("seconds", GONE)
def test_searches_go_on(head: Head, served: Served, seconds: float) -> None:
    """Also of a new generation, and when a replica dies, which is replaced when the head is back."""
    search_for(served.searcher(), 1)
    assert len(replicas()) == 2 * SHARDS
    head.kill()
    search_for(served.searcher(), seconds)
    served.next_generation()
    search_for(served.searcher(), 1)
    replicas()[0].kill()
    search_for(served.searcher(), 2)
    head.start()
    search_for(served.searcher(), 2)
    wait_until(lambda: len(replicas()) == 2 * SHARDS, PATIENCE)
    search_for(served.searcher(), 2)


@pytest.mark.parametrize("seconds", GONE)
def test_a_build_ends(head: Head, tmp_path: Path, seconds: float) -> None:
    """Units are encoded and shards are joined once a head is there again; nothing is lost or twice."""
    begun = threading.Event()

    def report(done: int, old: int) -> None:
        if done > 40:
            begun.set()

    with ThreadPoolExecutor(1) as pool:  # Ray starts a head in the main thread only
        building = pool.submit(build, job_of(tmp_path / "root"), documents(300), report)
        assert begun.wait(PATIENCE)
        head.kill()
        time.sleep(seconds)
        head.start()
        building.result(PATIENCE)
    require_equal(tmp_path / "root", documents(300), tmp_path / "one")
