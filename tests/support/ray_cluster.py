"""A Ray cluster of several nodes on this machine, and what Ray leaves behind."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

STORE = 80 << 20
RECONNECT, RECONNECT_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s", 600
os.environ[RECONNECT] = str(RECONNECT_SECONDS)  # read when ray is imported


@contextlib.contextmanager
def local_cluster(*cores: int) -> Iterator[Any]:
    """A head without cores and a node for each of the numbers; the tests are its driver."""
    ray: Any = pytest.importorskip("ray", reason="needs the extra [ray]")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"object_store_memory": STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node})
    for count in cores:
        made.add_node(num_cpus=count, object_store_memory=STORE)
    ray.init(address=made.address, log_to_driver=False)
    try:
        yield made
    finally:
        stop_cluster(made)


def stop_cluster(made: Any) -> None:
    """Disconnect from a cluster and end its processes."""
    import ray

    ray.shutdown()
    made.shutdown()
    collect_quietly()


def collect_quietly() -> None:
    """Collect the sockets that Ray leaves open, so that no later test is blamed for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
