"""Sharding survives a power loss: a reader sees the old generation or the new one, never a part."""

from __future__ import annotations

import pytest

import citadel
from citadel.errors import IndexNotFoundError
from citadel.index.shard import shard_index
from tests.support.crashes import Crash, Crashes
from tests.support.disk import MemoryDisk
from tests.support.seeds import NIGHT, seeded

STATES = 20_000 if NIGHT else 1_500
Contents = tuple[tuple[str, str], ...]


def source(version: int) -> citadel.Index:
    index = citadel.Index.create(MemoryDisk(), model="bm25")
    index.add({"id": f"d{n}", "text": f"version {version} w{n}"} for n in range(8 + version))
    return index.commit()


def contents(disk: MemoryDisk) -> Contents | None:
    try:
        index = citadel.Index.open(disk)
    except IndexNotFoundError:
        return None
    index.check(deep=True)
    return tuple(sorted((document.id, document.text) for document in index.documents()))


def recorded(disk: MemoryDisk) -> list[Contents | None]:
    """Shard three versions into one folder; return the contents after each acknowledgement."""
    states: list[Contents | None] = [None]
    for version in range(3):
        shard_index(source(version)._snapshot, disk, 2, overwrite=True)
        disk.acknowledge()
        states.append(contents(disk))
    return states


def problem(crashes: Crashes, crash: Crash, expected: list[Contents | None], resumes: bool) -> str | None:
    disk = MemoryDisk(crashes.data(crash.state))
    try:
        seen = contents(disk)
        if seen not in expected[crash.acknowledged : crash.acknowledged + 2]:
            return f"{seen} after acknowledgement {crash.acknowledged}"
        if resumes:
            shard_index(source(9)._snapshot, disk, 3, overwrite=True)
            if len(citadel.Index.open(disk)) != 17:
                return "the next run failed"
            disk.locked = False
    except citadel.CitadelError as error:
        return f"{type(error).__name__}: {error}"
    return None


def problems(disk: MemoryDisk, states: int) -> list[str]:
    expected = recorded(disk)
    assert expected[1] and expected[1] != expected[2] != expected[3]
    crashes = Crashes(disk.log, generator := seeded("shards"))
    found = [problem(crashes, crash, expected, generator.random() < 0.1) for crash in crashes.states(states)]
    return [each for each in found if each]


@pytest.mark.slow
def test_no_state_loses_or_mixes() -> None:
    assert problems(MemoryDisk(), STATES) == []


class NeverSyncsFolders(MemoryDisk):
    def sync_folder(self, folder: str) -> None:
        if not folder:  # names in the top folder are synced, those in shards are not
            super().sync_folder(folder)


@pytest.mark.slow
def test_a_broken_protocol_is_caught() -> None:
    assert problems(NeverSyncsFolders(), 300)
