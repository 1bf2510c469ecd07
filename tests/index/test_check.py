"""Check generations, and return to an older one only by repair."""

from __future__ import annotations

from pathlib import Path

import pytest

import citadel
from citadel.index.check import whole_generations
from citadel.index.manifest import generations
from citadel.index.repair import repair
from tests.index.quick import Quick


@pytest.fixture
def storage(tmp_path: Path) -> Quick:
    """Three commits: add "a…", add "b", delete "a0"; the last two generations are kept."""
    storage = Quick(tmp_path / "i")
    index = citadel.Index.create(storage, analyser="plain")
    index.add([{"id": f"a{n}", "text": "ant"} for n in range(9)])
    index.commit()
    index.add([{"id": "b", "text": "bee"}])
    index.commit()
    index.delete(["a0"])
    index.commit()
    return storage


def spoil(path: Path, byte: int = 70) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_kept_generations_pass_deep_check(storage: Quick) -> None:
    assert generations(storage) == whole_generations(storage) == [3, 4]


@pytest.mark.parametrize("pattern", ["gen.00000004", "del-*.cit"])
def test_damaged_newest_generation_raises_until_repaired(pattern: str, storage: Quick) -> None:
    """An older generation is never used without a repair."""
    spoil(next(storage.path.glob(pattern)))
    with pytest.raises(citadel.CorruptIndexError):
        citadel.Index.open(storage).check(deep=True)
    assert whole_generations(storage) == [3]
    with pytest.raises(citadel.RepairLossError, match="loses what came after it"):
        repair(storage)
    assert repair(storage, accept_loss=True).target == 3
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert (len(index), "a0" in index) == (10, True)
    index.delete(["b"])
    assert len(index.commit()) == 9


def test_repair_fails_when_all_manifests_are_damaged(storage: Quick) -> None:
    for path in storage.path.glob("gen.*"):
        spoil(path)
    with pytest.raises(citadel.CorruptIndexError, match="no document can be saved"):
        repair(storage)
    assert generations(storage) == [3, 4]


def test_repair_leaves_intact_index_unchanged(storage: Quick) -> None:
    assert (repair(storage).action, generations(storage)) == ("none", [3, 4])


def test_progress_reports_file_names(storage: Quick) -> None:
    from citadel.index.check import check

    names: list[str] = []
    check(storage, deep=True, progress=names.append)
    assert [name[:4] for name in names] == ["seg-", "seg-", "del-"]
