"""`add`, `delete`, `merge`, `stats` and `demo`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citadel import Index
from tests.cli.conftest import Citadel, in_process, write_jsonl


def texts(path: Path) -> dict[str, str]:
    with Index.open(path) as index:
        documents = (index.get(f"d{n}") for n in range(10))
        return {document.id: document.text for document in documents if document}


def test_add_adds_and_replaces(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    more = write_jsonl(tmp_path / "more.jsonl", [{"id": "d2", "text": "new"}, {"id": "d4", "text": "fourth"}])
    assert citadel("add", index, more).out == f"{index}: 2 documents added, 1 replaced; 4 in total\n"
    assert (texts(index)["d2"], texts(index)["d4"]) == ("new", "fourth")


def test_add_from_standard_input(index: Path, citadel: Citadel) -> None:
    assert (
        "1 document added; 4 in total"
        in citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n').out
    )
    assert (
        "1 document added; 5 in total"
        in citadel("add", index, "-", "--format", "tsv", stdin=b"d5\tfifth\n").out
    )


def test_add_is_all_or_nothing(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "d4", "text": "fourth"}\n{"id": "d1", "text": "new"}\noops\n')
    before = texts(index)
    assert f"{bad}:3: not valid JSON" in citadel("add", index, bad, code=4).err
    assert texts(index) == before
    assert (
        "2 documents added, 1 replaced, 1 skipped; 4 in total"
        in citadel("add", index, bad, "--on-error", "skip").out
    )


def test_merge_reports_the_disk_space_it_needs(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    more = write_jsonl(tmp_path / "more.jsonl", [{"id": "d4", "text": "fourth"}])
    citadel("add", index, more)
    assert f"{index}: merging needs up to 0.1 MB of free disk space" in citadel("merge", index).err
    assert citadel("merge", index).err == ""  # nothing to do


def test_merge_without_disk_space_ends_with_code_6(
    index: Path, tmp_path: Path, citadel: Citadel, monkeypatch: pytest.MonkeyPatch
) -> None:
    citadel("add", index, write_jsonl(tmp_path / "more.jsonl", [{"id": "d4", "text": "fourth"}]))
    monkeypatch.setattr("citadel.index.storage.FolderStorage.free_space", lambda _: 1_000)
    assert "MB of disk space, 0.0 MB are free" in citadel("merge", index, code=6).err


def test_delete_by_id_and_from_a_file(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "ids.txt").write_text("d2\n\nd9\n")
    done = citadel("delete", index, "d1", "--ids", tmp_path / "ids.txt")
    assert done.out == f"{index}: 2 deleted, 1 id not found, 1 document left\n"
    assert list(texts(index)) == ["d3"]
    assert "1 deleted, 0 documents left" in citadel("delete", index, "--ids", "-", stdin=b"d3\r\n").out


def test_delete_refuses_ids_that_are_not_utf8(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "ids.txt").write_bytes(b"d1\n\xff\n")
    assert "ids.txt:2: not UTF-8" in citadel("delete", index, "--ids", tmp_path / "ids.txt", code=4).err
    citadel("delete", index, "\udcff", code=4)
    citadel("delete", index, "--ids", tmp_path / "absent.txt", code=4)
    assert len(texts(index)) == 3


def test_merge_leaves_one_segment_and_equal_rankings(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    citadel("add", index, "-", stdin=b'{"id": "d4", "text": "gravity and physics"}\n')
    citadel("delete", index, "d1")
    before = citadel("search", index, "physics", "proposed", "--json").out
    assert citadel("merge", index).out == f"{index}: merged, 3 documents\n"
    assert citadel("search", index, "physics", "proposed", "--json").out == before
    stats = json.loads(citadel("stats", index, "--json").out)
    assert (stats["segments"], stats["deleted"], stats["documents"]) == (1, 0, 3)


def test_retrain_needs_a_codec_with_a_codebook(index: Path, citadel: Citadel) -> None:
    assert (
        "only the codecs pq2 and pq1 and the router centroid"
        in citadel("merge", index, "--retrain", code=2).err
    )


def test_stats_text_and_json_agree(index: Path, citadel: Citadel) -> None:
    stats = json.loads(citadel("stats", index, "--json").out)
    rows = dict(line.split("  ", 1) for line in citadel("stats", index).out.splitlines())
    assert (
        {name.strip(): value.strip() for name, value in rows.items()}["documents"]
        == str(stats["documents"])
        == "3"
    )
    assert stats["router"] == "bm25"


def test_stats_count_skipped_documents(tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "c.jsonl").write_text('oops\n{"id": "1", "text": "a"}\n')
    citadel("index", tmp_path / "c.jsonl", tmp_path / "idx", "--on-error", "skip")
    assert "counts: skipped" in citadel("stats", tmp_path / "idx").out


def test_demo_runs(citadel: Citadel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("citadel.demo.run_demo", lambda: print("three questions"))
    assert citadel("demo").out == "three questions\n"


def test_error_is_one_line(index: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "d9", "text": "a"}\noops\n')
    for done in (in_process("add", index, bad), in_process("index", bad, tmp_path / "new")):
        assert done.code == 4
        assert len(done.err.splitlines()) == 1 and f"{bad}:2: not valid JSON" in done.err
