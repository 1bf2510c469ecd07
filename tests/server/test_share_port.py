"""Several servers of one index on one port: the kernel balances connections."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import citadel
from citadel.server.config import ServerConfig
from tests.cli.conftest import in_process
from tests.support.serving import TOKEN, command, text_index

CONNECTIONS = 64  # that all of them reach one of two servers: once in 2^63


def who_answers(url: str) -> set[int]:
    """The servers that respond, by their number of workers."""
    found = set()
    for _ in range(CONNECTIONS):
        client = citadel.Client(url)
        found.add(client.stats()["server"]["workers"])
        client.close()
    return found


def test_two_share_a_port_and_one_goes_on_alone(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    read_only = {"CITADEL_WRITE_TOKEN": ""}
    with command(tmp_path / "i", "--share-port", "--workers", "1", **read_only) as (first, client):
        port = client.url.rpartition(":")[2]
        assert in_process("serve", tmp_path / "i", "--port", port).code == 2  # it shares with those who share
        with command(tmp_path / "i", "--share-port", "--port", port, "--workers", "2", **read_only):
            assert who_answers(client.url) == {1, 2}
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
            assert who_answers(client.url) == {2}


def test_a_writer_does_not_share() -> None:
    with pytest.raises(citadel.UsageError, match="on another port"):
        ServerConfig(share_port=True, write_token=TOKEN)
