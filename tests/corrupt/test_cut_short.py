"""Files that are truncated while in use raise a typed error; the process survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import citadel
from citadel.errors import ResourceError
from tests.corrupt import indexes
from tests.support.children import environment
from tests.support.serving import running

Whole = Callable[[str], Path]
READERS = ("search", "reference", "explain", "stats", "merge", "check")


def truncate_in_use(kind: str, prefix: str, keep: float, whole: Path, tmp_path: Path) -> dict[str, list[str]]:
    """Truncate files of an index in a child process; the error, if any, and its message per reader."""
    folder = indexes.copy(whole, tmp_path / "copy")
    command = [
        sys.executable,
        "-m",
        "tests.corrupt.cut_child",
        *map(str, (folder, kind, prefix, keep, whole)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), (done.returncode, done.stderr[-2000:])
    outcomes: dict[str, list[str]] = json.loads(done.stdout.splitlines()[0])
    return outcomes


@pytest.mark.parametrize("keep", [0.0, 0.3])
@pytest.mark.parametrize("kind", indexes.KINDS)
def test_readers_of_a_truncated_segment_raise(kind: str, keep: float, whole: Whole, tmp_path: Path) -> None:
    outcomes = truncate_in_use(kind, "seg-", keep, whole(kind), tmp_path)
    for reader in READERS:
        kinds, message = outcomes[reader]
        assert kinds == "CorruptIndexError", (reader, outcomes[reader])
        assert reader == "check" or message == "it became shorter while it was in use", (reader, message)


@pytest.mark.parametrize(("kind", "what"), [("bm25", "del-"), ("pq2", "codebook-")])
def test_truncated_deletions_and_codebooks_do_not_affect_searches(
    kind: str, what: str, whole: Whole, tmp_path: Path
) -> None:
    """They are held in memory; only a check reads the files again."""
    outcomes = truncate_in_use(kind, what, 0.5, whole(kind), tmp_path)
    assert {name for name, _ in outcomes.values()} <= {"", "CorruptIndexError"}
    assert outcomes["search"][0] == outcomes["ids"][0] == ""


@pytest.mark.parametrize("keep", [0.0, 0.3])
@pytest.mark.parametrize("kind", indexes.HAS_COLUMNS)
def test_filters_over_truncated_columns_raise(kind: str, keep: float, whole: Whole, tmp_path: Path) -> None:
    """Searches without a filter do not read them, and a merge writes them again from the documents."""
    outcomes = truncate_in_use(kind, "cols-", keep, whole(kind), tmp_path)
    assert outcomes["search"] == outcomes["ids"] == ["", ""]
    assert outcomes["filter"] == ["CorruptIndexError", "it became shorter while it was in use"]
    assert outcomes["merge"] == outcomes["check"] == ["", ""]  # the check reads what the merge wrote


def many_documents(folder: Path) -> citadel.Index:
    index = citadel.Index.create(folder, analyser="plain")
    index.add(indexes.text_of(number) for number in range(3000))
    return index.commit()


def test_truncated_documents_raise(tmp_path: Path) -> None:
    index = many_documents(tmp_path / "index")
    [path] = (tmp_path / "index").glob("docs-*")
    os.truncate(path, path.stat().st_size // 2)
    hits = index.searcher().search("cat owl", k=3000)
    assert hits.ids
    actions: list[Callable[[], object]] = [
        lambda: hits[0].text,
        lambda: [index.get(f"d{number}") for number in range(3000)],
        lambda: index.delete(["d1"]) and index.merge(),
        lambda: index.check(deep=True),
    ]
    for action in actions:
        with pytest.raises(citadel.CorruptIndexError) as caught:
            action()
        assert caught.value.file == path.name


def test_server_survives_truncation_and_reports_it(tmp_path: Path) -> None:
    """The index has several pages, so that some are not in memory when it is truncated."""
    for name in ("cut", "whole"):
        many_documents(tmp_path / name).close()
    query = {"query": "cat owl"}
    with (
        running(citadel.Index.open(tmp_path / "cut")) as cut,
        running(citadel.Index.open(tmp_path / "whole")) as other,
    ):
        status, expected = cut.post("/v1/search", query)
        assert status == 200
        for path in (tmp_path / "cut").glob("seg-*"):
            os.truncate(path, 4096)
        status, answer = cut.post("/v1/search", query)
        assert (status, answer["error"]["code"]) == (500, "corrupt")
        assert "became shorter while it was in use" in answer["error"]["message"]
        status, result = other.post("/v1/search", query)
        assert status == 200 and result["hits"] == expected["hits"]


def test_foreign_sigbus_kills_the_process(tmp_path: Path) -> None:
    """A fault in another mapping and a sent signal have their default effect."""
    script = (
        "import os, signal, sys, mmap, citadel\n"
        "index = citadel.Index.create(sys.argv[1], analyser='plain'); index.add([{'id': 'd', 'text': 'x'}])\n"
        "index.commit().searcher()\n"
        "if sys.argv[2] == 'sent': os.kill(os.getpid(), signal.SIGBUS)\n"
        "with open(sys.argv[1] + '/foreign', 'w+b') as file:\n"
        "    file.truncate(8192); view = mmap.mmap(file.fileno(), 0); file.truncate(0); print(view[5000])\n"
    )
    for how in ("sent", "fault"):
        command = [sys.executable, "-c", script, str(tmp_path / how), how]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
        assert done.returncode == -signal.SIGBUS, (how, done)


def test_unreadable_pages_are_a_disk_failure(tmp_path: Path) -> None:
    """As on a disk with a bad sector: a fault, but the file has its full length."""
    index = many_documents(tmp_path / "index")
    searcher = index.searcher(threads=1)
    expected = searcher.search("cat owl").ids
    [path] = (tmp_path / "index").glob("seg-*")
    contents = path.read_bytes()
    os.truncate(path, 0)
    with pytest.raises(citadel.CorruptIndexError, match="became shorter"):
        searcher.search("cat owl")
    path.write_bytes(contents)
    actions: list[Callable[[], object]] = [lambda: searcher.search("cat owl"), index.stats]
    for action in actions:
        with pytest.raises(ResourceError, match="the disk failed") as caught:
            action()
        assert caught.value.exit_code == 6
    assert citadel.Index.open(tmp_path / "index").searcher().search("cat owl").ids == expected
