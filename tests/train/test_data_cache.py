"""The data cache: equal data without reading the files again; one file per setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed: `pip install citadel-ir[train]`")

from citadel.errors import InputError
from citadel.train import data_cache
from citadel.train.config import TrainConfig
from citadel.train.data import Data, Examples, make_data
from citadel.train.data_cache import load_data
from citadel.train.mined import ScoredLists
from citadel.train.ragged import Ragged
from citadel.train.texts import TextStore
from citadel.train.tokens import load_tokenizer
from tests.support.training import Configs

MINED = [{"query": "what pumps blood", "positive": "d1", "negatives": ["d3", "d2"], "scores": [0.5, 0.4]}]
SCORED = [{"query": "lens", "positive": "d3", "passages": ["d3", "d4"], "scores": [2.5, -1.0]}]


def plain(value: Any) -> Any:
    """Convert to lists, to compare by value."""
    if isinstance(value, Ragged):
        return [value[row].tolist() for row in range(len(value))]
    if isinstance(value, Data | Examples | ScoredLists):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, TextStore):
        return list(value)
    if isinstance(value, dict):
        return {name: plain(some) for name, some in value.items()}
    return (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the configs whose data was read."""
    names: list[str] = []

    def counted(config: TrainConfig, *rest: Any) -> Data:
        names.append(config.name)
        return make_data(config, *rest)

    monkeypatch.setattr(data_cache, "make_data", counted)
    return names


def load(config: TrainConfig) -> Data:
    return load_data(config, load_tokenizer(config.model.backbone))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"held_out": True, "sources": {"s-d2": 0, "s-d4": 0}},
        {"negatives": True, "margin": 0.1},
        {"scores": True, "kinds": {"term": 0.5}},
    ],
)
def test_cached_data_equals_data(
    change: dict[str, Any],
    config: Configs,
    write: Callable[[str, Any], str],
    tmp_path: Path,
    reads: list[str],
) -> None:
    files = {"negatives": [{**MINED[0], "positive_score": 0.45, "dropped": ["d4"]}], "scores": SCORED}
    change = {key: write(f"{key}.jsonl", files[key]) if value is True and key in files else value
              for key, value in change.items()}  # fmt: skip
    expected = plain(load(config(data=change)))
    kept = config(data={**change, "cache": str(tmp_path / "kept")})
    assert plain(load(kept)) == expected
    assert plain(load(kept)) == expected
    assert reads == ["tiny", "tiny"] and len(list((tmp_path / "kept").glob("data-*.bin"))) == 1


def test_each_setting_that_determines_the_data_has_its_own_file(
    config: Configs, write: Callable[[str, Any], str], folder: Path, reads: list[str]
) -> None:
    cache = {"cache": str(folder / "kept")}
    mined = write("negatives.jsonl", MINED)
    changes: list[dict[str, Any]] = [{}, {"passage_length": 6}, {"query_length": 6}, {"kinds": {"term": 2}}]
    changes += [{"sources": {"s-d1": 0}}, {"max_pairs": 2}, {"held_out": True}, {"negatives": mined}]
    for change in changes:
        load(config(data={**cache, **change}))
    write("negatives.jsonl", [{**MINED[0], "negatives": ["d2", "d3"]}])
    load(config(data={**cache, "negatives": mined}))
    with (folder / "pairs.jsonl").open("a") as file:
        file.write(json.dumps({"query": "heart", "positive": "d1", "kind": "term"}) + "\n")
    assert len(load(config(data=cache)).examples) == 5
    assert len(reads) == len(changes) + 2 == len(list((folder / "kept").glob("data-*.bin")))


def test_sampling_settings_share_a_file(config: Configs, folder: Path, reads: list[str]) -> None:
    for change in ({}, {"group": 2}, {"crops": 0.5}):
        load(config(data={"cache": str(folder / "kept"), **change}))
    assert reads == ["tiny"]


def test_missing_and_damaged_files_are_errors(config: Configs, folder: Path) -> None:
    kept = config(data={"cache": str(folder / "kept")})
    load(kept)
    [file] = (folder / "kept").glob("data-*.bin")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data-\w+\.bin: the cache file is damaged: delete it"):
        load(kept)
    with pytest.raises(InputError, match=r"data\.negatives: no such file"):
        load(config(data={"cache": str(folder / "kept"), "negatives": str(folder / "absent.jsonl")}))
