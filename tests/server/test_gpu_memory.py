"""`gpu_memory` of the server and its former name."""

from __future__ import annotations

from dataclasses import replace

from citadel.server.config import ServerConfig


def test_both_names_set_the_limit() -> None:
    assert ServerConfig().gpu_memory is None
    assert ServerConfig(gpu_memory=1 << 30).gpu_memory == 1 << 30
    assert ServerConfig(card_memory=1 << 30).gpu_memory == 1 << 30
    assert replace(ServerConfig(card_memory=1 << 30), port=1).gpu_memory == 1 << 30
