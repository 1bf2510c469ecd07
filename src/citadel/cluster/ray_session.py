"""Connect to a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from citadel.errors import ResourceError, UsageError
from citadel.settings import available_threads

LOCAL = "local"
RECONNECT_SECONDS = "600"  # that the head may be away; Ray's 60 may be too few to start a machine
_OBJECT_STORE = 256 << 20  # texts of waiting units


@contextlib.contextmanager
def ray_session(address: str, cores: int | None = None) -> Iterator[Any]:
    """Connect to a cluster and yield the module `ray`; `local` starts one for this process.

    A local cluster claims to have `cores`, by default those of this machine. A connection that exists
    already is used and kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no report of its use
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT_SECONDS)
    try:
        import ray
    except ImportError:
        raise UsageError("--cluster needs Ray: install it with pip install 'citadel-ir[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == LOCAL:
            size: dict[str, Any] = {
                "num_cpus": cores or available_threads(),
                "object_store_memory": _OBJECT_STORE,
            }
            ray.init(address=LOCAL, include_dashboard=False, **size, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ResourceError(
            f"cannot connect to the Ray cluster {address!r} ({reason}); start one with `ray start --head`, "
            "use its token (RAY_AUTH_TOKEN), or use --cluster local"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
