"""Several servers of one index on one port: the kernel balances connections."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import citadel
from citadel.server.config import ServerConfig
from tests.cli.conftest import in_process
from tests.support.serving import TOKEN, command, text_index

CONNECTIONS = 64  # all reach the same of two servers with a probability of 2^-63


def responding_servers(url: str) -> set[int]:
    """The servers that respond, by their number of workers."""
    workers = set()
    for _ in range(CONNECTIONS):
        client = citadel.Client(url)
        workers.add(client.stats()["server"]["workers"])
        client.close()
    return workers


def test_two_servers_share_a_port(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    read_only = {"CITADEL_WRITE_TOKEN": ""}
    with command(tmp_path / "i", "--share-port", "--workers", "1", **read_only) as (first, client):
        port = client.url.rpartition(":")[2]
        assert in_process("serve", tmp_path / "i", "--port", port).code == 2  # without --share-port
        with command(tmp_path / "i", "--share-port", "--port", port, "--workers", "2", **read_only):
            assert responding_servers(client.url) == {1, 2}
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
            assert responding_servers(client.url) == {2}


def test_writable_server_cannot_share_its_port() -> None:
    with pytest.raises(citadel.UsageError, match="on another port"):
        ServerConfig(share_port=True, write_token=TOKEN)
