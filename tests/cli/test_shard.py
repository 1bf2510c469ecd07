"""`citadel shard`, and the other commands on a sharded index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Citadel


@pytest.fixture
def folder(tmp_path: Path, citadel: Citadel) -> Path:
    """An index `idx` and the same documents in the sharded index `idx-shards`."""
    lines = [json.dumps({"id": f"d{n}", "text": f"fox w{n % 5}", "year": 1900 + n}) for n in range(40)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    citadel("index", tmp_path / "corpus.jsonl", tmp_path / "idx", "--model", "bm25")
    done = citadel("shard", tmp_path / "idx", "--shards", 4)
    assert done.out == f"{tmp_path}/idx-shards: 4 shards, 40 documents\n"
    return tmp_path


def test_reading_commands(folder: Path, citadel: Citadel) -> None:
    index, root = folder / "idx", folder / "idx-shards"
    for command in (
        ("search", "fox w3", "-k", 7, "--json"),
        ("search", "fox w3", "--filter", '{"year": {"$gt": 1920}}'),
        ("search", "w3", "--group-by", "year", "--offset", 2),
        ("count",),
        ("facets", "year"),
        ("explain", "fox w3", "d3"),
    ):
        name, *rest = command
        ours, theirs = (citadel(name, where, *rest).out for where in (root, index))
        assert ours.replace(str(root), "") == theirs.replace(str(index), "")
    assert sorted(citadel("list", root).out.splitlines()) == sorted(citadel("list", index).out.splitlines())
    assert json.loads(citadel("stats", root, "--json").out)["shards"] == 4
    assert "is whole: 40 documents, 4 segments" in citadel("check", root, "--deep").out


def test_eval(folder: Path, citadel: Citadel) -> None:
    (folder / "queries.jsonl").write_text('{"id": "q1", "text": "w3"}\n')
    (folder / "qrels").write_text("q1 0 d3 1\nq1 0 d4 1\n")
    judged = ("--queries", folder / "queries.jsonl", "--qrels", folder / "qrels", "--measures", "AP nDCG@10")
    ours, theirs = (citadel("eval", folder / name, *judged).out for name in ("idx-shards", "idx"))
    assert ours == theirs


def test_changing_commands_are_refused(folder: Path, citadel: Citadel) -> None:
    root = folder / "idx-shards"
    for command in (
        ("add", root, folder / "corpus.jsonl"),
        ("delete", root, "d1"),
        ("update", root, "--id", "d1", "--set", '{"a": 1}'),
        ("merge", root),
        ("optimize", root),
        ("check", root, "--repair"),
        ("shard", root, "--shards", 2),
    ):
        done = citadel(*command, code=2)
        assert "sharded" in done.err and len(done.err.splitlines()) == 1, command
    assert "sharded" in citadel("index", folder / "corpus.jsonl", root, "--model", "bm25", code=4).err
    assert citadel("count", root).out == "40\n"


def test_check_reports_damage(folder: Path, citadel: Citadel) -> None:
    root = folder / "idx-shards"
    citadel("shard", folder / "idx", "--shards", 2, "--overwrite")
    old = json.loads((root / "root.00000001").read_text().splitlines()[0])["shards"][0]["name"]
    next((root / old).glob("order-*")).unlink()
    assert "generation 1" in citadel("check", root, "--deep").err
    (root / "root.00000002").write_text("{}")
    assert "root.00000002: root manifest: its checksum does not match" in citadel("check", root, code=3).err


def test_options(folder: Path, citadel: Citadel) -> None:
    assert "--shards" in citadel("shard", folder / "idx", code=2).err
    assert "0 is not in the range" in citadel("shard", folder / "idx", "--shards", 0, code=2).err
    citadel("shard", folder / "nothing", "--shards", 2, code=4)
    done = citadel("shard", folder / "idx", "--shards", 2, "--output", folder / "elsewhere")
    assert done.out.startswith(str(folder / "elsewhere"))
